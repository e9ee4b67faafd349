//! Verifies the requests of machines whose public keys are in Host objects. The protocol is upstream's.

use std::time::{Duration, SystemTime};

use api_meta::{Timestamp, Tree as _, validation::dns1123_subdomain};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use client::Resource;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::machine::{Cluster, RequestingMachine};

/// The objects that record machines, their public keys and their instance groups.
pub const HOSTS: Resource = Resource::constant("kops.k8s.io", "v1alpha2", "hosts", "Host", true);
/// The namespace of Hosts.
pub const HOSTS_NAMESPACE: &str = "kops-system";
/// The scheme of the authorization, also for keys that are not in a TPM.
pub(crate) const SCHEME: &str = "x-pki-tpm";
pub(crate) const AUDIENCE: &str = "kops.k8s.io/node-bootstrap";
const KEY_LABEL: &str = "PUBLIC KEY";

/// The reason why a request is not of a machine with a Host. It is logged; the sender learns only that it was rejected.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostError {
    #[error("the authorization is not a token of scheme {SCHEME}")]
    Token,
    #[error("the token is for audience {0:?}")]
    Audience(String),
    #[error("the token's time {0} differs too much from this machine's; check the clocks")]
    Time(i64),
    #[error("the token was signed for another body")]
    Body,
    #[error("the token names {0:?}, which cannot be a Host")]
    Name(String),
    #[error("Host {HOSTS_NAMESPACE}/{0} does not exist; create it with the machine's public key")]
    Missing(String),
    #[error("Host {HOSTS_NAMESPACE}/{0} does not name an instance group in spec.instanceGroup")]
    Group(String),
    #[error("Host {HOSTS_NAMESPACE}/{0} has no public key of a supported kind in spec.publicKey")]
    Key(String),
    #[error("the signature is not of the key of Host {HOSTS_NAMESPACE}/{0}")]
    Signature(String),
    #[error("reading Host {HOSTS_NAMESPACE}/{name}: {source}")]
    Api { name: String, source: client::Error },
}

/// A request, as far as its sender proves its identity by it.
pub(super) struct SignedRequest<'a> {
    pub(super) authorization: &'a str,
    pub(super) body: &'a [u8],
    pub(super) now: SystemTime,
}

/// A token whose signature is not verified yet.
struct Token {
    data: Vec<u8>,
    signature: Vec<u8>,
    host: String,
}

impl SignedRequest<'_> {
    /// Returns the machine that signed the request, with the instance group of its Host.
    pub(super) async fn machine(
        &self,
        cluster: &dyn Cluster,
        skew: Duration,
    ) -> Result<RequestingMachine, HostError> {
        let Token { data, signature, host: machine } = self.token(skew)?;
        let found = match cluster.find(&HOSTS, HOSTS_NAMESPACE, &machine).await {
            Ok(found) => found,
            Err(source) => return Err(HostError::Api { name: machine, source }),
        };
        let Some(host) = found else { return Err(HostError::Missing(machine)) };
        let Some(group) = group_of(&host).map(str::to_owned) else {
            return Err(HostError::Group(machine));
        };
        let blocks = pki::decode_all(host.text("spec.publicKey")).unwrap_or_default();
        let key = blocks.iter().find(|(label, _)| label == KEY_LABEL);
        let is_own = key.map(|(_, key)| pki::verify_possession(key, &data, &signature));
        match is_own {
            Some(Ok(true)) => Ok(RequestingMachine { machine, group, created_at: None }),
            Some(Ok(false)) => Err(HostError::Signature(machine)),
            None | Some(Err(_)) => Err(HostError::Key(machine)),
        }
    }

    /// Returns the token, if it is for this body, audience and time.
    fn token(&self, skew: Duration) -> Result<Token, HostError> {
        let encoded =
            self.authorization.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix(' '));
        let token = encoded.and_then(|encoded| json(&STANDARD.decode(encoded).ok()?));
        let token = token.ok_or(HostError::Token)?;
        let part = |name: &str| STANDARD.decode(token.text(name)).map_err(|_| HostError::Token);
        let (data, signature) = (part("data")?, part("signature")?);
        let claim = json(&data).ok_or(HostError::Token)?;
        if claim.text("audience") != AUDIENCE {
            return Err(HostError::Audience(claim.text("audience").to_owned()));
        }
        let time = claim.at("timestamp").as_i64().unwrap_or_default();
        if time.abs_diff(Timestamp::from(self.now).unix()) > skew.as_secs() {
            return Err(HostError::Time(time));
        }
        if claim.text("requestHash") != STANDARD.encode(Sha256::digest(self.body)) {
            return Err(HostError::Body);
        }
        let host = claim.text("instance").to_owned();
        if !dns1123_subdomain(&host).is_empty() {
            return Err(HostError::Name(host));
        }
        Ok(Token { data, signature, host })
    }
}

/// Returns the instance group of a Host.
pub(super) fn group_of(host: &Value) -> Option<&str> {
    let group = host.text("spec.instanceGroup");
    dns1123_subdomain(group).is_empty().then_some(group)
}

fn json(text: &[u8]) -> Option<Value> {
    serde_json::from_slice(text).ok()
}

//! Creates and reads PodCertificateRequests, and checks what the signer has written.

use api_meta::{ObjectMeta, PartialObject, Timestamp, Tree as _, go_quote};
use client::{List, ListOptions, Resource};
use data_encoding::BASE64;
use k8s_openapi::api::core::v1::PodCertificateProjection;
use kubelet_objects::ObjectsError;
use pki::{Cert, SigningRequest, Subject, WorkloadKeyType};
use serde::Deserialize;
use serde_json::json;

use crate::{
    certificates::Pending,
    error::{CertificateError, Error},
    plugin::Request,
    token::account_name,
};

const REQUESTS: Resource = Resource::POD_CERTIFICATE_REQUESTS;
/// The maximum size of a chain, in bytes. The API server has the same limit.
const MAX_CHAIN_SIZE: usize = 100 << 10;

/// The outcome of a request.
pub(super) enum Outcome {
    Waiting,
    Missing,
    Issued {
        chain: String,
        refresh: Timestamp,
        end: Timestamp,
    },
    Refused {
        /// The reason and the message of the Event.
        event: (&'static str, String),
        error: CertificateError,
    },
}

/// The reason why a chain cannot be used.
#[derive(Debug, thiserror::Error)]
enum ChainError {
    #[error("it is longer than {MAX_CHAIN_SIZE} bytes")]
    Size,
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("it has a PEM block {0:?}; only CERTIFICATE is allowed")]
    Block(String),
    #[error("it has no certificate")]
    Empty,
    #[error("its first certificate has another public key")]
    Key,
    #[error("the status has no {0}")]
    Time(&'static str),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CertificateRequest {
    metadata: ObjectMeta,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    conditions: Vec<Condition>,
    certificate_chain: String,
    begin_refresh_at: Option<Timestamp>,
    not_after: Option<Timestamp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    reason: String,
    message: String,
}

/// A new key: its PEM text, its public half and a PKCS#10 request that it has signed.
struct NewKey {
    pem: String,
    public: Vec<u8>,
    stub: Vec<u8>,
}

impl NewKey {
    fn generate(kind: WorkloadKeyType) -> Result<Self, pki::Error> {
        let key = kind.generate()?;
        let stub = SigningRequest::create(&Subject::default(), &[], &key)?;
        let (pem, public) = (key.to_pkcs8_pem()?, key.public_der()?);
        Ok(Self { pem, public, stub: stub.der().to_vec() })
    }
}

/// Returns the current time.
pub(super) fn now(request: &Request<'_>) -> Timestamp {
    request.volumes.clock.now().into()
}

/// Returns the error of a volume that needs the API server on a kubelet without one.
fn standalone(request: &Request<'_>) -> ObjectsError {
    let name = request.pod.metadata.name.clone().unwrap_or_default();
    ObjectsError::Standalone { kind: "certificate of Pod", name }
}

/// Makes a key and a request for its certificate.
pub(super) async fn create(
    request: &Request<'_>,
    projection: &PodCertificateProjection,
) -> Result<Pending, Error> {
    let volumes = request.volumes;
    let client = volumes.objects.client().ok_or_else(|| standalone(request))?;
    let node = volumes.node.get().ok_or(CertificateError::Node)?;
    let kind = WorkloadKeyType::named(&projection.key_type)
        .ok_or_else(|| CertificateError::KeyType(projection.key_type.clone()))?;
    // An RSA key takes up to seconds.
    let made = tokio::task::spawn_blocking(move || NewKey::generate(kind)).await;
    let made = made.map_err(|error| CertificateError::Key(error.to_string()))?;
    let made = made.map_err(|error| CertificateError::Key(error.to_string()))?;
    let (pod, namespace) = (&request.pod.metadata, request.namespace());
    let account = account_name(request.pod);
    let found: PartialObject = client
        .get(&Resource::SERVICE_ACCOUNTS, namespace, account)
        .await
        .map_err(ObjectsError::from)?;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid});
    let mut body = json!({
        "metadata": {"generateName": "req-", "ownerReferences": [owner]},
        "spec": {
            "signerName": projection.signer_name,
            "podName": pod.name,
            "podUID": pod.uid,
            "serviceAccountName": account,
            "serviceAccountUID": found.metadata.uid,
            "nodeName": volumes.node_name,
            "nodeUID": node.uid(),
            "stubPKCS10Request": BASE64.encode(&made.stub),
        },
    });
    if let Some(seconds) = projection.max_expiration_seconds {
        body.set("spec.maxExpirationSeconds", seconds);
    }
    if let Some(annotations) = &projection.user_annotations {
        body.set("spec.unverifiedUserAnnotations", json!(annotations));
    }
    let made_request: PartialObject =
        client.create(&REQUESTS, namespace, &body).await.map_err(ObjectsError::from)?;
    let name = made_request.metadata.name;
    Ok(Pending { key: made.pem, public: made.public, name, created: now(request) })
}

/// Reads a request. Nodes may list the requests of their Pods.
pub(super) async fn read(request: &Request<'_>, pending: &Pending) -> Result<Outcome, Error> {
    let client = request.volumes.objects.client().ok_or_else(|| standalone(request))?;
    let (node, name) = (&request.volumes.node_name, &pending.name);
    let options = ListOptions::fields(&format!("spec.nodeName={node},metadata.name={name}"));
    let list: List<CertificateRequest> =
        client.list(&REQUESTS, request.namespace(), &options).await.map_err(ObjectsError::from)?;
    let found = list.items.into_iter().find(|found| found.metadata.name == *name);
    Ok(found.map_or(Outcome::Missing, |found| found.outcome(pending, request.namespace())))
}

impl CertificateRequest {
    fn outcome(self, pending: &Pending, namespace: &str) -> Outcome {
        let name = format!("{namespace}/{}", self.metadata.name);
        let ended = ["Denied", "Failed", "Issued"];
        let of = self.status.conditions.iter().find(|c| ended.contains(&c.kind.as_str()));
        let Some(condition) = of else { return Outcome::Waiting };
        let (reason, message) = (condition.reason.clone(), condition.message.clone());
        let (quoted, told) = (go_quote(&reason), go_quote(&message));
        let (event, outcome, verb) = match condition.kind.as_str() {
            "Denied" => ("Denied", "denied", "was denied"),
            "Failed" => ("Failed", "failed", "failed"),
            _ => return self.issued(pending, name),
        };
        Outcome::Refused {
            event: (
                event,
                format!("PodCertificateRequest {name} {verb}, reason={quoted}, message={told}"),
            ),
            error: CertificateError::Refused { outcome, reason, message },
        }
    }

    fn issued(&self, pending: &Pending, name: String) -> Outcome {
        match self.status.usable(&pending.public) {
            Ok((chain, refresh, end)) => Outcome::Issued { chain, refresh, end },
            Err(cause) => {
                let error = CertificateError::Chain { name, cause: cause.to_string() };
                Outcome::Refused { event: ("Failed", error.to_string()), error }
            }
        }
    }
}

impl Status {
    /// Returns the chain in PEM without other text, the time of its refresh and that of its end.
    fn usable(&self, key: &[u8]) -> Result<(String, Timestamp, Timestamp), ChainError> {
        if self.certificate_chain.len() > MAX_CHAIN_SIZE {
            return Err(ChainError::Size);
        }
        let mut chain = String::new();
        for (label, der) in pki::decode_all(&self.certificate_chain)? {
            if label != "CERTIFICATE" {
                return Err(ChainError::Block(label));
            }
            let certificate = Cert::from_der(der)?;
            if chain.is_empty() && certificate.public_der()? != key {
                return Err(ChainError::Key);
            }
            chain.push_str(&certificate.to_pem());
        }
        if chain.is_empty() {
            return Err(ChainError::Empty);
        }
        let refresh = self.begin_refresh_at.ok_or(ChainError::Time("beginRefreshAt"))?;
        Ok((chain, refresh, self.not_after.ok_or(ChainError::Time("notAfter"))?))
    }
}

//! Trust of a joining machine in a cluster: cluster-info, its signature by a token, and pins of the CA. Read [`verify`]
//! first.

use api_config::{
    Kubeconfig,
    kubeconfig::{Cluster, NamedCluster},
};
use api_meta::Tree as _;
use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use pki::Cert;
use serde_json::{Value, json};

use crate::{
    error::{DiscoveryError, Error},
    tokens::Token,
};

/// The public ConfigMap in `kube-public`.
pub const CLUSTER_INFO: &str = "cluster-info";
/// The prefix of the key for a token's signature; the token's id follows.
pub const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";

/// The error of a pin that has no known form.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PinError {
    #[error("the hash must be 64 hexadecimal digits")]
    Hash,
    #[error("unknown hash type {0:?}; only sha256 is supported")]
    HashType(String),
    #[error("the hash must have the form sha256:<hex>")]
    Form,
}

/// Validates the form `sha256:<64 hexadecimal digits>` of a pin.
pub(crate) fn check_pin(pin: &str) -> Result<(), PinError> {
    match pin.split_once(':') {
        Some(("sha256", hash))
            if hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()) =>
        {
            Ok(())
        }
        Some(("sha256", _)) => Err(PinError::Hash),
        Some((kind, _)) => Err(PinError::HashType(kind.to_owned())),
        None => Err(PinError::Form),
    }
}

/// Checks that at least one certificate is pinned. Without pins every certificate is trusted.
pub(crate) fn check_pinned(certs: &[Cert], pins: &[String]) -> Result<(), Error> {
    if pins.is_empty() {
        return Ok(());
    }
    let present: Vec<String> = certs.iter().map(Cert::pin).collect::<Result<_, _>>()?;
    if present.iter().any(|pin| pins.iter().any(|other| other.eq_ignore_ascii_case(pin))) {
        return Ok(());
    }
    Err(DiscoveryError::Unpinned(present).into())
}

/// Returns the kubeconfig in cluster-info: a server and its CA without a user.
pub fn cluster_info_kubeconfig(server: &str, ca_pem: &str) -> Kubeconfig {
    Kubeconfig {
        clusters: vec![NamedCluster {
            name: String::new(),
            cluster: Cluster::with_ca(server, ca_pem),
        }],
        ..Kubeconfig::default()
    }
}

/// Returns the public ConfigMap cluster-info, which the controller manager then signs.
pub fn cluster_info(kubeconfig: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"kubeconfig": kubeconfig},
        "metadata": {"name": CLUSTER_INFO, "namespace": "kube-public"},
    })
}

/// Signs `content` with a token; the result is a detached JWS (HS256).
pub fn sign(content: &str, token: &Token) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": token.id}).to_string());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
}

/// Returns `true` if `jws` is a signature of `content` by `token`.
pub fn is_signed_by(jws: &str, content: &str, token: &Token) -> bool {
    let Some((header, signature)) = jws.split_once("..") else { return false };
    let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else { return false };
    let alg =
        URL_SAFE_NO_PAD.decode(header).ok().and_then(|h| serde_json::from_slice::<Value>(&h).ok());
    if alg.is_none_or(|h| h["alg"] != "HS256" || h["kid"] != token.id.as_str()) {
        return false;
    }
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.secret.as_bytes());
    hmac::verify(&key, signed.as_bytes(), &signature).is_ok()
}

/// The verified result of discovery by token.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifiedCluster {
    /// The server and its CA.
    pub cluster: Cluster,
    /// The CA's certificates.
    pub ca: Vec<Cert>,
}

/// Verifies an untrusted cluster-info ConfigMap by the token's signature and the pins.
pub fn verify(
    config_map: &Value,
    token: &Token,
    pins: &[String],
) -> Result<VerifiedCluster, Error> {
    let data = |name: &str| config_map.opt_text(&["data", name]);
    let content = data("kubeconfig").ok_or(DiscoveryError::NoKubeconfig)?;
    let jws = data(&format!("{SIGNATURE_PREFIX}{}", token.id))
        .ok_or_else(|| DiscoveryError::NoSignature(token.id.clone()))?;
    if !is_signed_by(jws, content, token) {
        return Err(DiscoveryError::WrongSignature(token.id.clone()).into());
    }
    let config = Kubeconfig::parse(content)?;
    let [NamedCluster { cluster, .. }] = config.clusters.as_slice() else {
        return Err(DiscoveryError::Clusters(config.clusters.len()).into());
    };
    let pem = cluster.ca_pem()?.ok_or(DiscoveryError::NoAuthority)?;
    let ca = Cert::all_from_pem(&pem)?;
    check_pinned(&ca, pins)?;
    Ok(VerifiedCluster { cluster: cluster.clone(), ca })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use pki::{Authority, KeyAlgorithm, Validity};

    use super::*;

    fn token(text: &str) -> Token {
        text.parse().unwrap()
    }

    fn ca() -> Cert {
        let validity = Validity::starting(
            SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30),
            Duration::from_secs(1 << 20),
        );
        Authority::create("kubernetes", KeyAlgorithm::EcdsaP256, validity).unwrap().cert().clone()
    }

    fn signed(ca: &Cert, by: &Token) -> Value {
        let content =
            cluster_info_kubeconfig("https://10.0.0.1:6443", &ca.to_pem()).to_yaml().unwrap();
        let mut map = cluster_info(&content);
        map["data"][format!("{SIGNATURE_PREFIX}{}", by.id)] = sign(&content, by).into();
        map
    }

    #[test]
    fn signs_like_openssl() {
        // Created with `openssl dgst -sha256 -hmac` from the same header and payload.
        let jws = sign("hello", &token("abcdef.0123456789abcdef"));
        assert_eq!(jws, include_str!("../testdata/hello.jws").trim());
    }

    #[test]
    fn trusts_signed_and_pinned_cluster() {
        let (ca, token) = (ca(), token("abcdef.0123456789abcdef"));
        let found = verify(&signed(&ca, &token), &token, &[ca.pin().unwrap()]).unwrap();
        assert_eq!(
            (found.cluster.server.as_str(), found.ca),
            ("https://10.0.0.1:6443", vec![ca.clone()])
        );
        verify(&signed(&ca, &token), &token, &[]).unwrap();
    }

    #[test]
    fn rejects_other_signatures_and_pins() {
        let (own, mine) = (ca(), token("abcdef.0123456789abcdef"));
        let mut altered = signed(&own, &mine);
        altered["data"]["kubeconfig"] =
            altered["data"]["kubeconfig"].as_str().unwrap().replace("10.0.0.1", "10.0.0.2").into();
        let cases = [
            (
                signed(&own, &token("abcdef.fedcba9876543210")),
                mine.clone(),
                "can't trust this API Server",
            ),
            (signed(&own, &mine), token("xxxxxx.0123456789abcdef"), "no JWS signed token"),
            (altered, mine.clone(), "can't trust this API Server"),
            (json!({"data": {}}), mine.clone(), "no kubeconfig"),
        ];
        for (map, token, wanted) in cases {
            let error = verify(&map, &token, &[]).unwrap_err().to_string();
            assert!(error.contains(wanted) && !error.contains("0123456789abcdef"), "{error}");
        }
        let error =
            verify(&signed(&own, &mine), &mine, &[ca().pin().unwrap()]).unwrap_err().to_string();
        assert!(error.contains("pinned"), "{error}");
    }

    #[test]
    fn validates_form_of_pins() {
        assert!(check_pin(&ca().pin().unwrap()).is_ok());
        for bad in ["abc", "md5:00", "sha256:00", "sha256:zz"] {
            assert!(check_pin(bad).is_err(), "{bad}");
        }
    }
}

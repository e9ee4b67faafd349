//! Certificate signing requests, and the validation of requests of each signer.

use std::collections::BTreeSet;

use api_meta::{ObjectMeta, null_default};
use pki::{AltName, RequestInfo, SigningRequest};
use serde::Deserialize;
use serde_json::Value;

use crate::views::{Condition, condition};

pub(super) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(super) const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub(super) const API_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(super) const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// A CertificateSigningRequest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Csr {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Spec,
    pub(super) status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    pub(super) request: String,
    pub(super) signer_name: String,
    pub(super) expiration_seconds: Option<u64>,
    #[serde(deserialize_with = "null_default")]
    pub(super) usages: Vec<String>,
    pub(super) username: String,
    pub(super) uid: String,
    #[serde(deserialize_with = "null_default")]
    pub(super) groups: Vec<String>,
    pub(super) extra: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    #[serde(deserialize_with = "null_default")]
    pub(super) conditions: Vec<Condition>,
    pub(super) certificate: Option<String>,
}

/// The reason for which a request is not signed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("subject organization is not system:nodes")]
    Organization,
    #[error("subject common name does not begin with system:node:")]
    CommonName,
    #[error("{0} subjectAltNames are not allowed")]
    AltName(&'static str),
    #[error("DNS or IP subjectAltName is required")]
    NoServerName,
    #[error("usages did not match [{}]", .0.join(" "))]
    Usages([&'static str; 3]),
    #[error("invalid usage for client certificate: {0}")]
    ClientUsage(String),
    #[error("missing required usage for client certificate: client auth")]
    NoClientAuth,
}

impl Csr {
    /// Reports whether the request has a condition of this type.
    pub(super) fn has(&self, kind: &str) -> bool {
        condition(&self.status.conditions, kind).is_some()
    }

    /// Decodes the request for the approver and the signer.
    pub(super) fn request(&self) -> Result<(SigningRequest, RequestInfo), RequestError> {
        let request = SigningRequest::from_base64(&self.spec.request)?;
        let info = request.info()?;
        Ok((request, info))
    }

    /// Checks that the usages are `expected`, in any order. Key encipherment is optional: only RSA keys use it.
    fn validate_usages(&self, expected: [&'static str; 3]) -> Result<(), RequestError> {
        let listed: BTreeSet<&str> = self.spec.usages.iter().map(String::as_str).collect();
        let mut without_encipherment = BTreeSet::from(expected);
        without_encipherment.remove("key encipherment");
        if listed == BTreeSet::from(expected) || listed == without_encipherment {
            return Ok(());
        }
        Err(RequestError::Usages(expected))
    }

    /// Validates a kubelet's request for a client certificate.
    pub(super) fn validate_kubelet_client(
        &self,
        request: &RequestInfo,
    ) -> Result<(), RequestError> {
        validate_group(request)?;
        if let Some(name) = request.alt_names.first() {
            return Err(RequestError::AltName(kind_of(name)));
        }
        validate_node(request)?;
        self.validate_usages(["client auth", "digital signature", "key encipherment"])
    }

    /// Validates a kubelet's request for a serving certificate.
    pub(super) fn validate_kubelet_serving(
        &self,
        request: &RequestInfo,
    ) -> Result<(), RequestError> {
        validate_group(request)?;
        let served = |name: &&AltName| matches!(name, AltName::Dns(_) | AltName::Ip(_));
        if !request.alt_names.iter().any(|name| served(&name)) {
            return Err(RequestError::NoServerName);
        }
        if let Some(name) = request.alt_names.iter().find(|name| !served(name)) {
            return Err(RequestError::AltName(kind_of(name)));
        }
        self.validate_usages(["digital signature", "key encipherment", "server auth"])?;
        validate_node(request)
    }

    /// Validates a request for a client certificate of any user.
    pub(super) fn validate_api_client(&self) -> Result<(), RequestError> {
        let usages = &self.spec.usages;
        let allowed = ["client auth", "digital signature", "key encipherment"];
        if let Some(usage) = usages.iter().find(|usage| !allowed.contains(&usage.as_str())) {
            return Err(RequestError::ClientUsage(usage.clone()));
        }
        if usages.iter().any(|usage| usage == "client auth") {
            Ok(())
        } else {
            Err(RequestError::NoClientAuth)
        }
    }
}

fn validate_group(request: &RequestInfo) -> Result<(), RequestError> {
    if request.subject.organizations == ["system:nodes"] {
        Ok(())
    } else {
        Err(RequestError::Organization)
    }
}

fn validate_node(request: &RequestInfo) -> Result<(), RequestError> {
    if request.subject.common_name.starts_with("system:node:") {
        Ok(())
    } else {
        Err(RequestError::CommonName)
    }
}

fn kind_of(name: &AltName) -> &'static str {
    match name {
        AltName::Dns(_) => "DNS",
        AltName::Email(_) => "Email",
        AltName::Ip(_) => "IP",
        AltName::Uri(_) => "URI",
    }
}

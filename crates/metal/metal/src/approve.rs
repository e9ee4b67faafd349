//! Decides whether a certificate signing request belongs to a known machine.

use pki::SigningRequest;
use serde::Deserialize;

use crate::plan::BOOTSTRAPPERS;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// The fields of a CertificateSigningRequest that the decision uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Csr {
    pub(crate) spec: Spec,
    pub(crate) status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Spec {
    pub(crate) request: String,
    pub(crate) signer_name: String,
    pub(crate) usages: Vec<String>,
    /// The user that created the request.
    pub(crate) username: String,
    pub(crate) groups: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) certificate: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

/// The reasons why a request is not one for a node's client certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CsrError {
    #[error(transparent)]
    Request(#[from] pki::Error),
    #[error("its usages are not those of a kubelet's client certificate")]
    Usages,
    #[error("its subject is not that of a single node")]
    Subject,
    #[error("its common name does not begin with system:node:")]
    CommonName,
}

impl Csr {
    /// Returns `true` if the request is pending and was made with a machine's bootstrap token.
    pub(crate) fn is_pending_machine_request(&self) -> bool {
        let decided = |c: &Condition| matches!(c.kind.as_str(), "Approved" | "Denied" | "Failed");
        self.spec.signer_name == SIGNER
            && self.spec.groups.iter().any(|group| group == BOOTSTRAPPERS)
            && self.status.certificate.is_none()
            && !self.status.conditions.iter().any(decided)
    }

    /// Returns the name of the node that the certificate is for.
    pub(crate) fn node(&self) -> Result<String, CsrError> {
        let info =
            SigningRequest::from_base64(&self.spec.request).and_then(|request| request.info())?;
        let allowed = ["client auth", "digital signature", "key encipherment"];
        let usages = &self.spec.usages;
        if usages.iter().any(|usage| !allowed.contains(&usage.as_str()))
            || !allowed[..2].iter().all(|usage| usages.iter().any(|other| other == usage))
        {
            return Err(CsrError::Usages);
        }
        if info.subject.organizations != ["system:nodes"] || !info.alt_names.is_empty() {
            return Err(CsrError::Subject);
        }
        match info.subject.common_name.strip_prefix("system:node:") {
            Some(name) if !name.is_empty() => Ok(name.to_owned()),
            _ => Err(CsrError::CommonName),
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use pki::{AltName, Key, KeyAlgorithm, Subject};

    use super::*;

    pub(crate) fn csr(subject: &Subject, names: &[AltName], usages: &[&str]) -> Csr {
        let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let request = SigningRequest::create(subject, names, &key).unwrap();
        let spec = Spec {
            request: STANDARD.encode(request.to_pem()),
            signer_name: SIGNER.into(),
            usages: usages.iter().map(|usage| (*usage).to_owned()).collect(),
            username: "system:bootstrap:abcdef".into(),
            groups: vec![BOOTSTRAPPERS.into()],
        };
        Csr { spec, status: Status::default() }
    }

    #[test]
    fn accepts_only_client_certificates_of_nodes() {
        let node = Subject::new("system:node:rack-1").in_group("system:nodes");
        let usual = ["client auth", "digital signature"];
        let good = csr(&node, &[], &usual);
        assert!(good.is_pending_machine_request());
        assert_eq!(good.node().unwrap(), "rack-1");
        for bad in [
            csr(&Subject::new("system:node:a").in_group("system:masters"), &[], &usual),
            csr(&node.clone().in_group("system:masters"), &[], &usual),
            csr(&Subject::new("admin").in_group("system:nodes"), &[], &usual),
            csr(&Subject::new("system:node:").in_group("system:nodes"), &[], &usual),
            csr(&node, &[AltName::dns("kubernetes")], &usual),
            csr(&node, &[], &["client auth"]),
            csr(&node, &[], &["client auth", "digital signature", "server auth"]),
        ] {
            assert!(bad.node().is_err(), "{bad:?}");
        }
        let mut decided = good.clone();
        decided.status.conditions = vec![Condition { kind: "Denied".into() }];
        assert!(!decided.is_pending_machine_request());
        let mut others = good;
        others.spec.groups = vec!["system:bootstrappers:kubeadm:default-node-token".into()];
        assert!(!others.is_pending_machine_request());
    }
}

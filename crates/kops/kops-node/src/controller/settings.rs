//! The settings of kops-controller: the document that upstream's add-on has, or that of cloud local.

use std::{path::PathBuf, time::Duration};

use api_meta::Tree as _;
use serde_json::Value;

use crate::error::Error;

/// The directory of the keys and settings.
pub(crate) const DIRECTORY: &str = "/etc/kubernetes/kops-controller";
/// The default of `server.pki.MaxTimeSkew`.
const TIME_SKEW: Duration = Duration::from_secs(300);

/// The settings of kops-controller.
#[derive(Debug, PartialEq)]
pub(super) struct Settings {
    /// The URL of the cluster's directory in the state store.
    pub(super) store: String,
    pub(super) listen: String,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    /// The directory of the signing authority.
    pub(super) authorities: PathBuf,
    /// The names of the certificates that machines may request.
    pub(super) cert_names: Vec<String>,
    /// The way in which machines prove their identity.
    pub(super) proof: ProofSettings,
}

/// The way in which machines prove their identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProofSettings {
    /// A client certificate of cloud local.
    Certificate,
    /// A signature with the key of the machine's Host.
    Host {
        /// The largest difference between the clocks of the machine and of kops-controller.
        skew: Duration,
    },
}

impl Settings {
    pub(super) fn parse(tree: &Value) -> Result<Self, Error> {
        if tree.text("configBase").is_empty() {
            return Ok(Self::local(tree));
        }
        let server = tree.at("server");
        let pki = server.at("pki");
        if !pki.is_object() {
            return Err(Error::Proof { cloud: tree.text("cloud").to_owned() });
        }
        let seconds = pki.at("MaxTimeSkew").as_u64().filter(|seconds| *seconds > 0);
        // An address without a host is all addresses in Go.
        let listen = server.text("Listen");
        let host = if listen.starts_with(':') { "0.0.0.0" } else { "" };
        Ok(Self {
            store: tree.text("configBase").to_owned(),
            listen: format!("{host}{listen}"),
            certificate: server.text("serverCertificatePath").into(),
            key: server.text("serverKeyPath").into(),
            authorities: server.text("caBasePath").into(),
            cert_names: server.texts("certNames").map(str::to_owned).collect(),
            proof: ProofSettings::Host { skew: seconds.map_or(TIME_SKEW, Duration::from_secs) },
        })
    }

    fn local(tree: &Value) -> Self {
        let directory = PathBuf::from(DIRECTORY);
        Self {
            store: tree.text("store").to_owned(),
            listen: tree.text("listen").to_owned(),
            certificate: directory.join("kops-controller.crt"),
            key: directory.join("kops-controller.key"),
            authorities: directory,
            cert_names: vec!["kubelet".to_owned(), "kube-proxy".to_owned()],
            proof: ProofSettings::Certificate,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parses_settings_of_upstreams_add_on() {
        let mut tree = json!({
            "clusterName": "a.example.com", "cloud": "metal", "configBase": "s3://bucket/a.example.com",
            "secretStore": "s3://bucket/a.example.com/secrets",
            "server": {
                "Listen": ":3988", "provider": {}, "pki": {},
                "serverKeyPath": "/pki/kops-controller.key", "serverCertificatePath": "/pki/kops-controller.crt",
                "caBasePath": "/pki", "signingCAs": ["kubernetes-ca"], "certNames": ["kubelet", "kubelet-server"],
            },
        });
        let settings = Settings::parse(&tree).unwrap();
        assert_eq!(settings.listen, "0.0.0.0:3988");
        assert_eq!(settings.proof, ProofSettings::Host { skew: TIME_SKEW });
        assert_eq!(settings.cert_names, ["kubelet", "kubelet-server"]);
        assert_eq!(settings.authorities, PathBuf::from("/pki"));
        tree["server"]["pki"]["MaxTimeSkew"] = 60.into();
        let skew = Duration::from_secs(60);
        assert_eq!(Settings::parse(&tree).unwrap().proof, ProofSettings::Host { skew });
        tree["server"]["pki"] = Value::Null;
        assert!(matches!(Settings::parse(&tree), Err(Error::Proof { cloud }) if cloud == "metal"));
    }
}

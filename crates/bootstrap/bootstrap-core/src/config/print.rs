//! Prints the configuration.

use std::net::IpAddr;

use api_config::kubeadm::{
    BootstrapTokenDiscovery, Discovery, JoinConfiguration, ResetConfiguration,
    UpgradeConfiguration, V1BETA4,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    defaults::{default_join, default_reset, default_upgrade},
    facts::Facts,
    init::Init,
    read::{Documents, Read},
};
use crate::{Error, constants::PRINTED_VERSION};

/// The documents of an [`Init`] to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// InitConfiguration and ClusterConfiguration.
    Kubeadm,
    /// These, KubeletConfiguration and KubeProxyConfiguration.
    WithComponents,
}

/// Returns `object` as a document of v1beta4 with its kind.
pub fn document(kind: &str, object: &impl Serialize) -> Result<Value, Error> {
    let mut value =
        serde_json::to_value(object).map_err(|e| api_config::Error::Emit(e.to_string()))?;
    if let Value::Object(fields) = &mut value {
        fields.insert("apiVersion".to_owned(), V1BETA4.into());
        fields.insert("kind".to_owned(), kind.into());
    }
    Ok(value)
}

impl Init {
    /// Returns the documents for `config print` and `config migrate`.
    pub fn documents(&self, kinds: Kinds) -> Result<Vec<Value>, Error> {
        let mut documents = vec![
            document("InitConfiguration", &self.init)?,
            document("ClusterConfiguration", &self.cluster)?,
        ];
        if kinds == Kinds::WithComponents {
            documents.push(self.kubelet.to_value()?);
            documents.push(self.proxy.to_value()?);
        }
        Ok(documents)
    }
}

/// The token of every example. A cluster that uses it would be open to all readers.
const SAMPLE_TOKEN: &str = "abcdef.0123456789abcdef";

/// Returns fixed facts, so that printed defaults are the same on every machine.
fn placeholders(node: &str, repository: &str) -> Facts {
    Facts {
        hostname: node.to_owned(),
        address: Some(IpAddr::from([1, 2, 3, 4])),
        kubernetes_version: PRINTED_VERSION.to_owned(),
        image_repository: repository.to_owned(),
        token: Some(SAMPLE_TOKEN.to_owned()),
        ..Facts::default()
    }
}

/// Returns the documents of `config print init-defaults`.
pub fn init_defaults(kinds: Kinds, repository: &str) -> Result<Vec<Value>, Error> {
    Init::complete(Documents::default(), &placeholders("node", repository)).documents(kinds)
}

/// Returns the document of `config print join-defaults`, which contains this machine's name.
pub fn join_defaults(hostname: &str) -> Result<Vec<Value>, Error> {
    let mut join = JoinConfiguration {
        discovery: Discovery {
            bootstrap_token: Some(BootstrapTokenDiscovery {
                token: SAMPLE_TOKEN.to_owned(),
                api_server_endpoint: "kube-apiserver:6443".to_owned(),
                unsafe_skip_ca_verification: true,
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    default_join(&mut join, &placeholders(hostname, ""));
    Ok(vec![document("JoinConfiguration", &join)?])
}

/// Returns the document of `config print reset-defaults`.
pub fn reset_defaults() -> Result<Vec<Value>, Error> {
    let mut reset = ResetConfiguration::default();
    default_reset(&mut reset);
    Ok(vec![document("ResetConfiguration", &reset)?])
}

/// Returns the document of `config print upgrade-defaults`.
pub fn upgrade_defaults() -> Result<Vec<Value>, Error> {
    let mut upgrade = UpgradeConfiguration::default();
    default_upgrade(&mut upgrade);
    Ok(vec![document("UpgradeConfiguration", &upgrade)?])
}

/// Returns the documents in the newest version, for `config migrate`.
pub fn migrate(read: &Read) -> Result<Vec<Value>, Error> {
    let documents = &read.documents;
    let mut out = Vec::new();
    macro_rules! write {
        ($($field:ident $kind:literal),*) => {
            $(if let Some(object) = &documents.$field { out.push(document($kind, object)?); })*
        };
    }
    write!(init "InitConfiguration", cluster "ClusterConfiguration", join "JoinConfiguration",
           reset "ResetConfiguration", upgrade "UpgradeConfiguration");
    Ok(out)
}

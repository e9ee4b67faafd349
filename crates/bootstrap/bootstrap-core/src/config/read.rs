//! Reads configuration files.

use api_config::{
    Decoded, KubeProxyConfiguration, KubeletConfiguration, decode, gvk,
    kubeadm::{
        ClusterConfiguration, GROUP, InitConfiguration, JoinConfiguration, ResetConfiguration,
        UpgradeConfiguration, V1BETA3, V1BETA4,
    },
    kubelet, proxy, yaml,
};
use serde_json::{Value, json};

use super::convert;
use crate::Error;

/// The documents of a configuration file, before defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Documents {
    /// The machine's configuration.
    pub init: Option<InitConfiguration>,
    /// The cluster's configuration.
    pub cluster: Option<ClusterConfiguration>,
    /// The configuration of a join.
    pub join: Option<JoinConfiguration>,
    /// The configuration of a reset.
    pub reset: Option<ResetConfiguration>,
    /// The configuration of an upgrade.
    pub upgrade: Option<UpgradeConfiguration>,
    /// The kubelets' configuration.
    pub kubelet: Option<KubeletConfiguration>,
    /// kube-proxy's configuration.
    pub proxy: Option<KubeProxyConfiguration>,
}

/// A parsed configuration file with its warnings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Read {
    /// The documents.
    pub documents: Documents,
    /// Messages about unknown fields, which are errors in `config validate`.
    pub strict: Vec<String>,
    /// Other warnings.
    pub warnings: Vec<String>,
}

/// Parses every document of a configuration file.
pub fn read(text: &str) -> Result<Read, Error> {
    let mut read = Read::default();
    let mut api_server_timeout = None;
    for mut value in yaml::parse_all(text)? {
        let (version, kind) = gvk(&value);
        let (version, kind) = (version.to_owned(), kind.to_owned());
        if version.is_empty() || kind.is_empty() {
            return Err(Error::NoKind);
        }
        if version == V1BETA3 {
            read.warnings.push(Error::deprecated(&version, &kind));
            if let Value::Object(object) = &mut value {
                api_server_timeout = convert::from_v1beta3(&kind, object).or(api_server_timeout);
            }
        } else if version.starts_with(GROUP) && version != V1BETA4 {
            return Err(Error::OldVersion { version, kind });
        }
        read.take(&version, &kind, value)?;
    }
    if let Some(timeout) = api_server_timeout {
        let mut init = json!({});
        init["timeouts"] = json!({ "controlPlaneComponentHealthCheck": timeout });
        let timeouts = decode::<InitConfiguration>("ClusterConfiguration", init)?
            .value
            .timeouts
            .unwrap_or_default();
        let own = read.documents.init.get_or_insert_default().timeouts.get_or_insert_default();
        if own.control_plane_component_health_check.is_none() {
            own.control_plane_component_health_check =
                timeouts.control_plane_component_health_check;
        }
    }
    Ok(read)
}

impl Read {
    fn take(&mut self, version: &str, kind: &str, mut value: Value) -> Result<(), Error> {
        match (version, kind) {
            (kubelet::API_VERSION, kubelet::KIND) => {
                return self
                    .place(kind, KubeletConfiguration::from_value(value)?, |d| &mut d.kubelet);
            }
            (proxy::API_VERSION, proxy::KIND) => {
                return self
                    .place(kind, KubeProxyConfiguration::from_value(value)?, |d| &mut d.proxy);
            }
            _ => {}
        }
        if let Value::Object(fields) = &mut value {
            fields.remove("apiVersion");
            fields.remove("kind");
        }
        match kind {
            _ if !version.starts_with(GROUP) => {
                let what = format!("apiVersion {version:?}, kind {kind:?}");
                self.warnings
                    .push(format!("[config] WARNING: Ignored configuration document with {what}"));
                Ok(())
            }
            "InitConfiguration" => {
                self.place(kind, decode("InitConfiguration", value)?, |d| &mut d.init)
            }
            "ClusterConfiguration" => {
                self.place(kind, decode("ClusterConfiguration", value)?, |d| &mut d.cluster)
            }
            "JoinConfiguration" => {
                self.place(kind, decode("JoinConfiguration", value)?, |d| &mut d.join)
            }
            "ResetConfiguration" => {
                self.place(kind, decode("ResetConfiguration", value)?, |d| &mut d.reset)
            }
            "UpgradeConfiguration" => {
                self.place(kind, decode("UpgradeConfiguration", value)?, |d| &mut d.upgrade)
            }
            _ => Err(Error::UnknownKind { version: version.to_owned(), kind: kind.to_owned() }),
        }
    }

    fn place<T>(
        &mut self,
        kind: &str,
        decoded: Decoded<T>,
        slot: fn(&mut Documents) -> &mut Option<T>,
    ) -> Result<(), Error> {
        let slot = slot(&mut self.documents);
        if slot.is_some() {
            return Err(Error::Twice { kind: kind.to_owned() });
        }
        if let Some(warning) = decoded.warning() {
            self.strict.push(format!("{kind}: {warning}"));
        }
        *slot = Some(decoded.value);
        Ok(())
    }
}

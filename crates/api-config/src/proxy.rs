//! `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1`.
//!
//! Upstream's kind leaves nothing out when it is written: what is not set is null, empty or zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Decoded, Error, GoDuration, decode,
    shared::{ClientConnection, Logging, unset},
};

/// The one version that upstream has.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// What `kind` must say.
pub const KIND: &str = "KubeProxyConfiguration";

/// A whole file of kube-proxy's configuration, in upstream's fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    pub api_version: String,
    pub kind: String,
    #[serde(skip_serializing_if = "unset")]
    pub feature_gates: BTreeMap<String, bool>,
    pub client_connection: ClientConnection,
    pub logging: Logging,
    pub hostname_override: String,
    pub bind_address: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    /// `iptables`, `nftables` or `ipvs`; empty is iptables.
    pub mode: String,
    pub iptables: Iptables,
    pub ipvs: Ipvs,
    pub nftables: Nftables,
    pub winkernel: Winkernel,
    pub detect_local_mode: String,
    pub detect_local: DetectLocal,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub node_port_addresses: Option<Vec<String>>,
    pub oom_score_adj: Option<i32>,
    pub conntrack: Conntrack,
    pub config_sync_period: GoDuration,
    pub port_range: String,
    #[serde(skip_serializing_if = "unset")]
    pub windows_run_as_service: bool,
}

/// How rules are written in the mode `iptables`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Iptables {
    /// The bit of the packet mark that asks for masquerading, 0 to 31; 14 where it is not set.
    pub masquerade_bit: Option<i32>,
    pub masquerade_all: bool,
    pub localhost_node_ports: Option<bool>,
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
}

/// The mode `ipvs`, whose settings are read so that a file of upstream's stays valid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ipvs {
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
    pub scheduler: String,
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Option<Vec<String>>,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub tcp_timeout: GoDuration,
    pub tcp_fin_timeout: GoDuration,
    pub udp_timeout: GoDuration,
}

/// How rules are written in the mode `nftables`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Nftables {
    pub masquerade_bit: Option<i32>,
    pub masquerade_all: bool,
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
}

/// What kube-proxy sets of the kernel's connection tracking; unset keeps the kernel's own value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conntrack {
    pub max_per_core: Option<i32>,
    pub min: Option<i32>,
    pub tcp_established_timeout: Option<GoDuration>,
    pub tcp_close_wait_timeout: Option<GoDuration>,
    pub tcp_be_liberal: bool,
    pub udp_timeout: GoDuration,
    pub udp_stream_timeout: GoDuration,
}

/// How a Pod of this node is told by its interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DetectLocal {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

/// Kept for files that are shared with Windows nodes; nothing here acts on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Winkernel {
    pub network_name: String,
    pub source_vip: String,
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    pub root_hns_endpoint_name: String,
    pub forward_health_check_vip: bool,
}

impl KubeProxyConfiguration {
    /// An empty configuration with its version and kind, which are written out.
    pub fn new() -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: KIND.to_owned(), ..Self::default() }
    }

    /// Decodes the kind; kube-proxy lets unknown fields pass with a warning.
    pub fn from_value(value: Value) -> Result<Decoded<Self>, Error> {
        let (version, kind) = crate::gvk(&value);
        if (version, kind) != (API_VERSION, KIND) {
            return Err(Error::WrongKind {
                wanted: KIND,
                group: API_VERSION,
                found: format!("{kind} of {version}"),
            });
        }
        decode(KIND, value)
    }

    /// The kind as a tree, with numbers as Go writes them.
    pub fn to_value(&self) -> Result<Value, Error> {
        let mut value = serde_json::to_value(self).map_err(|e| Error::Emit(e.to_string()))?;
        // Go writes a whole float without its point.
        if let Some(qps) = value.pointer_mut("/clientConnection/qps")
            && let Some(whole) = qps.as_f64().filter(|q| q.fract() == 0.0 && q.abs() < 1e15)
        {
            *qps = (whole as i64).into();
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_configuration_is_written_as_upstream_writes_it() {
        let text =
            crate::yaml::to_string(&KubeProxyConfiguration::new().to_value().unwrap()).unwrap();
        assert_eq!(text, include_str!("../testdata/kube-proxy-empty.yaml"));
        let read = KubeProxyConfiguration::from_value(crate::yaml::parse(&text).unwrap()).unwrap();
        assert_eq!((read.unknown, read.value), (vec![], KubeProxyConfiguration::new()));
    }
}

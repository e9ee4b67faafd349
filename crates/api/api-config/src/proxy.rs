//! `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1`.
//!
//! Upstream omits no fields: unset ones are written as null, empty or zero.

use std::collections::BTreeMap;

use api_meta::GoDuration;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    decode::{Decoded, decode_kind},
    error::Error,
    shared::{ClientConnection, Logging, unset},
};

/// The only version of the kind.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The kind.
pub const KIND: &str = "KubeProxyConfiguration";

/// A kube-proxy configuration file, with upstream's fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    /// The apiVersion, [`API_VERSION`].
    pub api_version: String,
    /// The kind, [`KIND`].
    pub kind: String,
    /// The feature gates.
    #[serde(skip_serializing_if = "unset")]
    pub feature_gates: BTreeMap<String, bool>,
    /// The connection to the API server.
    pub client_connection: ClientConnection,
    /// The logging settings.
    pub logging: Logging,
    /// The name of the Node, if it is not the host name.
    pub hostname_override: String,
    /// The address of the proxy, which decides the primary IP family.
    pub bind_address: String,
    /// The address and port of the health endpoint.
    pub healthz_bind_address: String,
    /// The address and port of the metrics endpoint.
    pub metrics_bind_address: String,
    /// `true` to exit if a port cannot be bound.
    pub bind_address_hard_fail: bool,
    /// `true` to serve profiles.
    pub enable_profiling: bool,
    /// The version whose hidden metrics are shown.
    pub show_hidden_metrics_for_version: String,
    /// The mode: `iptables`, `nftables` or `ipvs`; empty for iptables.
    pub mode: String,
    /// The settings of the mode `iptables`.
    pub iptables: Iptables,
    /// The settings of the mode `ipvs`.
    pub ipvs: Ipvs,
    /// The settings of the mode `nftables`.
    pub nftables: Nftables,
    /// The settings of Windows.
    pub winkernel: Winkernel,
    /// The way to recognize traffic of local Pods.
    pub detect_local_mode: String,
    /// The settings of the recognition of local Pods.
    pub detect_local: DetectLocal,
    /// The range of Pod addresses, for the recognition of local Pods.
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    /// The address ranges that node ports are served on; `None` for the mode's default.
    pub node_port_addresses: Option<Vec<String>>,
    /// The `oom_score_adj` of kube-proxy.
    pub oom_score_adj: Option<i32>,
    /// The settings of connection tracking.
    pub conntrack: Conntrack,
    /// The interval of refreshing the configuration from the API server.
    pub config_sync_period: GoDuration,
    /// The range of host ports.
    pub port_range: String,
    /// `true` to run as a Windows service.
    #[serde(skip_serializing_if = "unset")]
    pub windows_run_as_service: bool,
}

/// The settings of the mode `iptables`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Iptables {
    /// The bit of the packet mark that requests masquerading, 0 to 31; 14 by default.
    pub masquerade_bit: Option<i32>,
    /// `true` to masquerade all Service traffic.
    pub masquerade_all: bool,
    /// `true` to serve node ports on loopback.
    pub localhost_node_ports: Option<bool>,
    /// The interval of full syncs.
    pub sync_period: GoDuration,
    /// The minimum interval between two syncs.
    pub min_sync_period: GoDuration,
}

/// The settings of the mode `ipvs`. They are only parsed, so that upstream's files stay valid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ipvs {
    /// The interval of full syncs.
    pub sync_period: GoDuration,
    /// The minimum interval between two syncs.
    pub min_sync_period: GoDuration,
    /// The scheduler of IPVS.
    pub scheduler: String,
    /// The address ranges that are not cleaned up.
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Option<Vec<String>>,
    /// `true` to answer ARP only for addresses of the interface.
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    /// The timeout of idle TCP connections.
    pub tcp_timeout: GoDuration,
    /// The timeout of TCP connections after a FIN.
    pub tcp_fin_timeout: GoDuration,
    /// The timeout of UDP packets.
    pub udp_timeout: GoDuration,
}

/// The settings of the mode `nftables`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Nftables {
    /// The bit of the packet mark that requests masquerading, 0 to 31.
    pub masquerade_bit: Option<i32>,
    /// `true` to masquerade all Service traffic.
    pub masquerade_all: bool,
    /// The interval of full syncs.
    pub sync_period: GoDuration,
    /// The minimum interval between two syncs.
    pub min_sync_period: GoDuration,
}

/// The settings of the kernel's connection tracking. `None` and zero keep the kernel's values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conntrack {
    /// The maximum number of connections per core.
    pub max_per_core: Option<i32>,
    /// The minimum number of connections.
    pub min: Option<i32>,
    /// The timeout of established TCP connections.
    pub tcp_established_timeout: Option<GoDuration>,
    /// The timeout of TCP connections in CLOSE_WAIT.
    pub tcp_close_wait_timeout: Option<GoDuration>,
    /// `true` to accept packets outside the TCP window.
    pub tcp_be_liberal: bool,
    /// The timeout of UDP entries with a single packet.
    pub udp_timeout: GoDuration,
    /// The timeout of UDP streams.
    pub udp_stream_timeout: GoDuration,
}

/// The recognition of local Pods by their interfaces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DetectLocal {
    /// The bridge of local Pods.
    pub bridge_interface: String,
    /// The prefix of local Pods' interfaces.
    pub interface_name_prefix: String,
}

/// The settings of Windows, parsed for files that are shared with Windows nodes. They have no effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Winkernel {
    /// The name of the HNS network.
    pub network_name: String,
    /// The source address of a VIP.
    pub source_vip: String,
    /// `true` for direct server return.
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    /// The name of the root HNS endpoint.
    pub root_hns_endpoint_name: String,
    /// `true` to forward health checks to the VIP.
    pub forward_health_check_vip: bool,
}

impl KubeProxyConfiguration {
    /// Creates an empty configuration with its version and kind.
    pub fn new() -> Self {
        Self { api_version: API_VERSION.to_owned(), kind: KIND.to_owned(), ..Self::default() }
    }

    /// Decodes the kind. kube-proxy accepts unknown fields with a warning.
    pub fn from_value(value: Value) -> Result<Decoded<Self>, Error> {
        decode_kind(API_VERSION, KIND, value)
    }

    /// Encodes the kind as a tree, with numbers like Go's.
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
    fn writes_empty_configuration_like_upstream() {
        let text =
            crate::yaml::to_string(&KubeProxyConfiguration::new().to_value().unwrap()).unwrap();
        assert_eq!(text, include_str!("../testdata/kube-proxy-empty.yaml"));
        let read = KubeProxyConfiguration::from_value(crate::yaml::parse(&text).unwrap()).unwrap();
        assert_eq!((read.unknown, read.value), (vec![], KubeProxyConfiguration::new()));
    }
}

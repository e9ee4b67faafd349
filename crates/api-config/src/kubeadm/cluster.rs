use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::unset;
use crate::GoDuration;

/// What holds for the whole cluster; kept in the ConfigMap kubeadm-config.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterConfiguration {
    pub etcd: Etcd,
    pub networking: Networking,
    #[serde(skip_serializing_if = "unset")]
    pub kubernetes_version: String,
    #[serde(skip_serializing_if = "unset")]
    pub control_plane_endpoint: String,
    pub api_server: ApiServer,
    pub controller_manager: ControlPlaneComponent,
    pub scheduler: ControlPlaneComponent,
    pub dns: Dns,
    pub proxy: Proxy,
    #[serde(skip_serializing_if = "unset")]
    pub certificates_dir: String,
    #[serde(skip_serializing_if = "unset")]
    pub image_repository: String,
    #[serde(skip_serializing_if = "unset")]
    pub feature_gates: BTreeMap<String, bool>,
    #[serde(skip_serializing_if = "unset")]
    pub cluster_name: String,
    #[serde(skip_serializing_if = "unset")]
    pub encryption_algorithm: String,
    #[serde(skip_serializing_if = "unset")]
    pub certificate_validity_period: Option<GoDuration>,
    #[serde(skip_serializing_if = "unset", rename = "caCertificateValidityPeriod")]
    pub ca_certificate_validity_period: Option<GoDuration>,
    /// An extension of Windlass: on every node a balancer over all API servers, which the node's components go by.
    #[serde(skip_serializing_if = "unset")]
    pub node_balancer: Option<NodeBalancer>,
    /// An extension of Windlass: an address for the API that one of the control planes holds.
    #[serde(skip_serializing_if = "unset")]
    pub virtual_address: Option<VirtualAddress>,
    /// An extension of Windlass: snapshots of the cluster's objects, taken by each API server on its own machine.
    #[serde(skip_serializing_if = "unset")]
    pub snapshots: Option<Snapshots>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshots {
    pub directory: String,
    /// How often one is taken.
    pub interval: Option<GoDuration>,
    /// How many are kept.
    pub keep: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VirtualAddress {
    pub address: String,
    /// Where control planes hold it; empty for the interface of each API server's own address.
    #[serde(skip_serializing_if = "unset")]
    pub interface: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeBalancer {
    /// Where it listens, on the node's loopback address.
    pub port: i32,
}

/// One flag of a component; a flag may stand several times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arg {
    pub name: String,
    pub value: String,
}

impl Arg {
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ControlPlaneComponent {
    #[serde(skip_serializing_if = "unset")]
    pub extra_args: Vec<Arg>,
    #[serde(skip_serializing_if = "unset")]
    pub extra_volumes: Vec<HostPathMount>,
    /// Environment variables as a container has them.
    #[serde(skip_serializing_if = "unset")]
    pub extra_envs: Vec<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApiServer {
    #[serde(skip_serializing_if = "unset")]
    pub extra_args: Vec<Arg>,
    #[serde(skip_serializing_if = "unset")]
    pub extra_volumes: Vec<HostPathMount>,
    #[serde(skip_serializing_if = "unset")]
    pub extra_envs: Vec<Value>,
    #[serde(skip_serializing_if = "unset", rename = "certSANs")]
    pub cert_sans: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostPathMount {
    pub name: String,
    pub host_path: String,
    pub mount_path: String,
    #[serde(skip_serializing_if = "unset")]
    pub read_only: bool,
    #[serde(skip_serializing_if = "unset")]
    pub path_type: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Networking {
    #[serde(skip_serializing_if = "unset")]
    pub service_subnet: String,
    #[serde(skip_serializing_if = "unset")]
    pub pod_subnet: String,
    #[serde(skip_serializing_if = "unset")]
    pub dns_domain: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Dns {
    #[serde(skip_serializing_if = "unset")]
    pub image_repository: String,
    #[serde(skip_serializing_if = "unset")]
    pub image_tag: String,
    #[serde(skip_serializing_if = "unset")]
    pub disabled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Proxy {
    #[serde(skip_serializing_if = "unset")]
    pub disabled: bool,
}

/// Where cluster state is kept; at most one of them is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Etcd {
    #[serde(skip_serializing_if = "unset")]
    pub local: Option<LocalEtcd>,
    #[serde(skip_serializing_if = "unset")]
    pub external: Option<ExternalEtcd>,
    /// An extension of Windlass: the API server's own store, in place of etcd, for one control plane.
    #[serde(skip_serializing_if = "unset")]
    pub embedded: Option<EmbeddedStore>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LocalEtcd {
    #[serde(skip_serializing_if = "unset")]
    pub image_repository: String,
    #[serde(skip_serializing_if = "unset")]
    pub image_tag: String,
    pub data_dir: String,
    #[serde(skip_serializing_if = "unset")]
    pub extra_args: Vec<Arg>,
    #[serde(skip_serializing_if = "unset")]
    pub extra_envs: Vec<Value>,
    #[serde(skip_serializing_if = "unset", rename = "serverCertSANs")]
    pub server_cert_sans: Vec<String>,
    #[serde(skip_serializing_if = "unset", rename = "peerCertSANs")]
    pub peer_cert_sans: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExternalEtcd {
    pub endpoints: Vec<String>,
    #[serde(skip_serializing_if = "unset", rename = "httpEndpoints")]
    pub http_endpoints: Vec<String>,
    pub ca_file: String,
    pub cert_file: String,
    pub key_file: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EmbeddedStore {
    pub data_dir: String,
}

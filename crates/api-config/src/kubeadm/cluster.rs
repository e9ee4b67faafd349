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

/// Scheduled snapshots of the cluster's objects, on each machine with an API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshots {
    /// A directory of the machine, made if it is missing.
    pub directory: String,
    /// How often one is taken.
    pub interval: Option<GoDuration>,
    /// How many are kept.
    pub keep: i32,
}

/// An address that moves to another control plane when its holder dies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VirtualAddress {
    /// An IP address of the control planes' network that no machine has.
    pub address: String,
    /// Where control planes hold it; empty for the interface of each API server's own address.
    #[serde(skip_serializing_if = "unset")]
    pub interface: String,
}

/// A TCP balancer on every node, in place of one before the control planes.
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
    /// A flag by its name without dashes.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// What kubeadm adds to the static Pod of the controller manager or the scheduler.
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

/// What kubeadm adds to the API server's static Pod, and to its certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApiServer {
    #[serde(skip_serializing_if = "unset")]
    pub extra_args: Vec<Arg>,
    #[serde(skip_serializing_if = "unset")]
    pub extra_volumes: Vec<HostPathMount>,
    #[serde(skip_serializing_if = "unset")]
    pub extra_envs: Vec<Value>,
    /// Further names and addresses that the serving certificate is for.
    #[serde(skip_serializing_if = "unset", rename = "certSANs")]
    pub cert_sans: Vec<String>,
}

/// A directory or file of the machine that a static Pod sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostPathMount {
    pub name: String,
    pub host_path: String,
    pub mount_path: String,
    #[serde(skip_serializing_if = "unset")]
    pub read_only: bool,
    /// The `type` of a hostPath volume, such as `DirectoryOrCreate`; empty checks nothing.
    #[serde(skip_serializing_if = "unset")]
    pub path_type: String,
}

/// The cluster's ranges and its DNS domain. Two families are two ranges with a comma between.
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

/// The cluster's DNS add-on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Dns {
    /// The cluster's repository where it is empty; likewise the tag is this version's.
    #[serde(skip_serializing_if = "unset")]
    pub image_repository: String,
    #[serde(skip_serializing_if = "unset")]
    pub image_tag: String,
    #[serde(skip_serializing_if = "unset")]
    pub disabled: bool,
}

/// The kube-proxy add-on.
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

/// etcd as a static Pod on each control plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LocalEtcd {
    #[serde(skip_serializing_if = "unset")]
    pub image_repository: String,
    #[serde(skip_serializing_if = "unset")]
    pub image_tag: String,
    /// A directory of the machine, `/var/lib/etcd` unless it is set.
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

/// An etcd that somebody else runs. The three files are needed where its endpoints are https.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExternalEtcd {
    pub endpoints: Vec<String>,
    /// Where etcd serves HTTP apart from gRPC (`--listen-client-http-urls`), if not at its endpoints.
    #[serde(skip_serializing_if = "unset", rename = "httpEndpoints")]
    pub http_endpoints: Vec<String>,
    pub ca_file: String,
    pub cert_file: String,
    pub key_file: String,
}

/// The store within the API server's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EmbeddedStore {
    /// A directory of the machine with the log and its snapshots.
    pub data_dir: String,
}

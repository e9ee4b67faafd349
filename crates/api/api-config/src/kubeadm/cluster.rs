use std::collections::BTreeMap;

use api_meta::GoDuration;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::shared::unset;

/// The configuration of the whole cluster, stored in the ConfigMap kubeadm-config.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterConfiguration {
    /// The store of the cluster's state.
    pub etcd: Etcd,
    /// The address ranges and the DNS domain.
    pub networking: Networking,
    /// The Kubernetes version, such as `v1.36.2`.
    #[serde(skip_serializing_if = "unset")]
    pub kubernetes_version: String,
    /// The stable address of the control plane, as `host:port`.
    #[serde(skip_serializing_if = "unset")]
    pub control_plane_endpoint: String,
    /// The API server.
    pub api_server: ApiServer,
    /// The controller manager.
    pub controller_manager: ControlPlaneComponent,
    /// The scheduler.
    pub scheduler: ControlPlaneComponent,
    /// The DNS add-on.
    pub dns: Dns,
    /// The kube-proxy add-on.
    pub proxy: Proxy,
    /// The directory of the certificates.
    #[serde(skip_serializing_if = "unset")]
    pub certificates_dir: String,
    /// The repository of the control plane's images.
    #[serde(skip_serializing_if = "unset")]
    pub image_repository: String,
    /// kubeadm's feature gates.
    #[serde(skip_serializing_if = "unset")]
    pub feature_gates: BTreeMap<String, bool>,
    /// The name of the cluster.
    #[serde(skip_serializing_if = "unset")]
    pub cluster_name: String,
    /// The algorithm of keys, such as `RSA-2048`.
    #[serde(skip_serializing_if = "unset")]
    pub encryption_algorithm: String,
    /// The validity of certificates other than CAs.
    #[serde(skip_serializing_if = "unset")]
    pub certificate_validity_period: Option<GoDuration>,
    /// The validity of CA certificates.
    #[serde(skip_serializing_if = "unset", rename = "caCertificateValidityPeriod")]
    pub ca_certificate_validity_period: Option<GoDuration>,
    /// An extension of Windlass: a load balancer for all API servers on every node, which the node's components use.
    #[serde(skip_serializing_if = "unset")]
    pub node_balancer: Option<NodeBalancer>,
    /// An extension of Windlass: an address of the API that one of the control planes holds.
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
    /// The directory on the machine, created if missing.
    pub directory: String,
    /// The interval between snapshots.
    pub interval: Option<GoDuration>,
    /// The number of snapshots to keep.
    pub keep: i32,
}

/// An address that moves to another control plane when its holder fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VirtualAddress {
    /// An unused IP address of the control planes' network.
    pub address: String,
    /// The network interface; empty for the interface of each API server's own address.
    #[serde(skip_serializing_if = "unset")]
    pub interface: String,
}

/// A TCP load balancer on every node, instead of one in front of the control planes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeBalancer {
    /// The port on the node's loopback address.
    pub port: i32,
}

/// A flag of a component. A flag may occur several times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arg {
    /// The name without dashes.
    pub name: String,
    /// The value.
    pub value: String,
}

impl Arg {
    /// Creates a flag from its name without dashes.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// The additions to the static Pod of the controller manager or the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ControlPlaneComponent {
    /// The additional or replaced flags.
    #[serde(skip_serializing_if = "unset")]
    pub extra_args: Vec<Arg>,
    /// The additional hostPath volumes.
    #[serde(skip_serializing_if = "unset")]
    pub extra_volumes: Vec<HostPathMount>,
    /// The additional environment variables, in a container's form.
    #[serde(skip_serializing_if = "unset")]
    pub extra_envs: Vec<Value>,
}

/// The additions to the API server's static Pod and its certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApiServer {
    /// The additional or replaced flags.
    #[serde(skip_serializing_if = "unset")]
    pub extra_args: Vec<Arg>,
    /// The additional hostPath volumes.
    #[serde(skip_serializing_if = "unset")]
    pub extra_volumes: Vec<HostPathMount>,
    /// The additional environment variables, in a container's form.
    #[serde(skip_serializing_if = "unset")]
    pub extra_envs: Vec<Value>,
    /// The additional names and addresses of the serving certificate.
    #[serde(skip_serializing_if = "unset", rename = "certSANs")]
    pub cert_sans: Vec<String>,
}

/// A directory or file of the machine that is mounted into a static Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostPathMount {
    /// The name of the volume.
    pub name: String,
    /// The path on the machine.
    pub host_path: String,
    /// The path in the container.
    pub mount_path: String,
    /// `true` if the mount is read-only.
    #[serde(skip_serializing_if = "unset")]
    pub read_only: bool,
    /// The `type` of the hostPath volume, such as `DirectoryOrCreate`; empty for no check.
    #[serde(skip_serializing_if = "unset")]
    pub path_type: String,
}

/// The cluster's address ranges and DNS domain. A dual-stack range is two CIDRs separated by a comma.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Networking {
    /// The range of Service addresses.
    #[serde(skip_serializing_if = "unset")]
    pub service_subnet: String,
    /// The range of Pod addresses.
    #[serde(skip_serializing_if = "unset")]
    pub pod_subnet: String,
    /// The DNS domain of the cluster.
    #[serde(skip_serializing_if = "unset")]
    pub dns_domain: String,
}

/// The cluster's DNS add-on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Dns {
    /// The image repository; empty for the cluster's.
    #[serde(skip_serializing_if = "unset")]
    pub image_repository: String,
    /// The image tag; empty for this version's.
    #[serde(skip_serializing_if = "unset")]
    pub image_tag: String,
    /// `true` to omit the add-on.
    #[serde(skip_serializing_if = "unset")]
    pub disabled: bool,
}

/// The kube-proxy add-on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Proxy {
    /// `true` to omit the add-on.
    #[serde(skip_serializing_if = "unset")]
    pub disabled: bool,
}

/// The store of the cluster's state. At most one field is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Etcd {
    /// etcd in static Pods.
    #[serde(skip_serializing_if = "unset")]
    pub local: Option<LocalEtcd>,
    /// An existing etcd.
    #[serde(skip_serializing_if = "unset")]
    pub external: Option<ExternalEtcd>,
    /// An extension of Windlass: the API server's own store instead of etcd, for a single control plane.
    #[serde(skip_serializing_if = "unset")]
    pub embedded: Option<EmbeddedStore>,
}

/// etcd in a static Pod on each control plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LocalEtcd {
    /// The image repository; empty for the cluster's.
    #[serde(skip_serializing_if = "unset")]
    pub image_repository: String,
    /// The image tag; empty for this version's.
    #[serde(skip_serializing_if = "unset")]
    pub image_tag: String,
    /// The data directory on the machine; `/var/lib/etcd` by default.
    pub data_dir: String,
    /// The additional or replaced flags.
    #[serde(skip_serializing_if = "unset")]
    pub extra_args: Vec<Arg>,
    /// The additional environment variables, in a container's form.
    #[serde(skip_serializing_if = "unset")]
    pub extra_envs: Vec<Value>,
    /// The additional names and addresses of the server certificate.
    #[serde(skip_serializing_if = "unset", rename = "serverCertSANs")]
    pub server_cert_sans: Vec<String>,
    /// The additional names and addresses of the peer certificate.
    #[serde(skip_serializing_if = "unset", rename = "peerCertSANs")]
    pub peer_cert_sans: Vec<String>,
}

/// An existing etcd. The three files are required for https endpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExternalEtcd {
    /// The URLs of the members.
    pub endpoints: Vec<String>,
    /// The URLs at which etcd serves HTTP separately from gRPC (`--listen-client-http-urls`); empty for the endpoints.
    #[serde(skip_serializing_if = "unset", rename = "httpEndpoints")]
    pub http_endpoints: Vec<String>,
    /// The CA of etcd's server certificates.
    pub ca_file: String,
    /// The client certificate.
    pub cert_file: String,
    /// The key of the client certificate.
    pub key_file: String,
}

/// The store in the API server's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EmbeddedStore {
    /// The directory on the machine with the log and its snapshots.
    pub data_dir: String,
}

use api_meta::GoDuration;
use serde::{Deserialize, Serialize};

use super::cluster::Arg;
use crate::shared::{Taint, unset};

/// The configuration of `init`, besides that of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InitConfiguration {
    /// The bootstrap tokens to create.
    #[serde(skip_serializing_if = "unset")]
    pub bootstrap_tokens: Vec<BootstrapToken>,
    /// `true` to make no changes.
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: bool,
    /// The registration of the node.
    pub node_registration: NodeRegistration,
    /// The address of the node's API server.
    #[serde(rename = "localAPIEndpoint")]
    pub local_api_endpoint: ApiEndpoint,
    /// The hex key that encrypts the certificates in the Secret kubeadm-certs.
    #[serde(skip_serializing_if = "unset")]
    pub certificate_key: String,
    /// The phases to skip.
    #[serde(skip_serializing_if = "unset")]
    pub skip_phases: Vec<String>,
    /// The patches of manifests.
    #[serde(skip_serializing_if = "unset")]
    pub patches: Option<Patches>,
    /// The timeouts.
    #[serde(skip_serializing_if = "unset")]
    pub timeouts: Option<Timeouts>,
}

/// A token for joining nodes, which is stored as a Secret in `kube-system`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BootstrapToken {
    /// The ID and the secret part, `abcdef.0123456789abcdef`.
    pub token: String,
    /// The description for users.
    #[serde(skip_serializing_if = "unset")]
    pub description: String,
    /// The lifetime.
    #[serde(skip_serializing_if = "unset")]
    pub ttl: Option<GoDuration>,
    /// The expiration, an RFC 3339 time; excludes `ttl`.
    #[serde(skip_serializing_if = "unset")]
    pub expires: Option<String>,
    /// The usages: `signing` for the discovery's ConfigMap, `authentication` for requests.
    #[serde(skip_serializing_if = "unset")]
    pub usages: Vec<String>,
    /// The groups of requests with the token, each below `system:bootstrappers:`.
    #[serde(skip_serializing_if = "unset")]
    pub groups: Vec<String>,
}

/// The registration of this machine as a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeRegistration {
    /// The name of the Node; empty for the host name.
    #[serde(skip_serializing_if = "unset")]
    pub name: String,
    /// The container runtime's socket, as a `unix://` URL.
    #[serde(skip_serializing_if = "unset")]
    pub cri_socket: String,
    /// The taints. `None` is kubeadm's choice; an empty list means no taint.
    pub taints: Option<Vec<Taint>>,
    /// The additional or replaced flags of the kubelet.
    #[serde(skip_serializing_if = "unset")]
    pub kubelet_extra_args: Vec<Arg>,
    /// The preflight checks whose errors are ignored.
    #[serde(skip_serializing_if = "unset")]
    pub ignore_preflight_errors: Vec<String>,
    /// The pull policy of images.
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_policy: String,
    /// `true` to pull images one after another.
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_serial: Option<bool>,
}

/// The address of this machine's API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApiEndpoint {
    /// The address to advertise.
    #[serde(skip_serializing_if = "unset")]
    pub advertise_address: String,
    /// The port to listen on.
    #[serde(skip_serializing_if = "unset")]
    pub bind_port: i32,
}

/// The patches of manifests and of the kubelet's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Patches {
    /// The directory with the files `TARGET[SUFFIX][+PATCHTYPE].EXTENSION`.
    #[serde(skip_serializing_if = "unset")]
    pub directory: String,
}

/// kubeadm's timeouts. `None` is upstream's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Timeouts {
    /// The timeout for a healthy control plane component.
    #[serde(skip_serializing_if = "unset")]
    pub control_plane_component_health_check: Option<GoDuration>,
    /// The timeout for a healthy kubelet.
    #[serde(skip_serializing_if = "unset")]
    pub kubelet_health_check: Option<GoDuration>,
    /// The timeout of Kubernetes API calls, with retries.
    #[serde(skip_serializing_if = "unset", rename = "kubernetesAPICall")]
    pub kubernetes_api_call: Option<GoDuration>,
    /// The timeout of etcd API calls, with retries.
    #[serde(skip_serializing_if = "unset", rename = "etcdAPICall")]
    pub etcd_api_call: Option<GoDuration>,
    /// The timeout of the TLS bootstrap.
    #[serde(skip_serializing_if = "unset")]
    pub tls_bootstrap: Option<GoDuration>,
    /// The timeout of the discovery.
    #[serde(skip_serializing_if = "unset")]
    pub discovery: Option<GoDuration>,
    /// The timeout of upgrading the manifests of static Pods.
    #[serde(skip_serializing_if = "unset")]
    pub upgrade_manifests: Option<GoDuration>,
}

/// The configuration of `reset`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResetConfiguration {
    /// `true` to remove the directory of temporary files.
    #[serde(skip_serializing_if = "unset")]
    pub cleanup_tmp_dir: bool,
    /// The directory of the certificates.
    #[serde(skip_serializing_if = "unset")]
    pub certificates_dir: String,
    /// The container runtime's socket, as a `unix://` URL.
    #[serde(skip_serializing_if = "unset")]
    pub cri_socket: String,
    /// `true` to make no changes.
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: bool,
    /// `true` to ask no questions.
    #[serde(skip_serializing_if = "unset")]
    pub force: bool,
    /// The preflight checks whose errors are ignored.
    #[serde(skip_serializing_if = "unset")]
    pub ignore_preflight_errors: Vec<String>,
    /// The phases to skip.
    #[serde(skip_serializing_if = "unset")]
    pub skip_phases: Vec<String>,
    /// The flags for unmounting the kubelet's directories, such as `MNT_FORCE`.
    #[serde(skip_serializing_if = "unset")]
    pub unmount_flags: Vec<String>,
    /// The timeouts.
    #[serde(skip_serializing_if = "unset")]
    pub timeouts: Option<Timeouts>,
}

use serde::{Deserialize, Serialize};

use super::{Arg, unset};
use crate::{GoDuration, shared::Taint};

/// What `init` needs beyond the cluster's configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InitConfiguration {
    #[serde(skip_serializing_if = "unset")]
    pub bootstrap_tokens: Vec<BootstrapToken>,
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: bool,
    pub node_registration: NodeRegistration,
    #[serde(rename = "localAPIEndpoint")]
    pub local_api_endpoint: ApiEndpoint,
    #[serde(skip_serializing_if = "unset")]
    pub certificate_key: String,
    #[serde(skip_serializing_if = "unset")]
    pub skip_phases: Vec<String>,
    #[serde(skip_serializing_if = "unset")]
    pub patches: Option<Patches>,
    #[serde(skip_serializing_if = "unset")]
    pub timeouts: Option<Timeouts>,
}

/// A token for those who join, and the Secret in `kube-system` that it becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BootstrapToken {
    /// The ID and the secret part, `abcdef.0123456789abcdef`.
    pub token: String,
    #[serde(skip_serializing_if = "unset")]
    pub description: String,
    #[serde(skip_serializing_if = "unset")]
    pub ttl: Option<GoDuration>,
    /// An RFC 3339 time; excludes `ttl`.
    #[serde(skip_serializing_if = "unset")]
    pub expires: Option<String>,
    /// `signing` for the discovery's ConfigMap, `authentication` for requests.
    #[serde(skip_serializing_if = "unset")]
    pub usages: Vec<String>,
    /// What groups a request with it is of, each below `system:bootstrappers:`.
    #[serde(skip_serializing_if = "unset")]
    pub groups: Vec<String>,
}

/// What this machine is as a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeRegistration {
    /// The host's name where it is empty.
    #[serde(skip_serializing_if = "unset")]
    pub name: String,
    /// The container runtime's socket, as a `unix://` URL.
    #[serde(skip_serializing_if = "unset")]
    pub cri_socket: String,
    /// None is kubeadm's choice; an empty list is no taint.
    pub taints: Option<Vec<Taint>>,
    #[serde(skip_serializing_if = "unset")]
    pub kubelet_extra_args: Vec<Arg>,
    #[serde(skip_serializing_if = "unset")]
    pub ignore_preflight_errors: Vec<String>,
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_policy: String,
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_serial: Option<bool>,
}

/// Where the API server of this machine is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApiEndpoint {
    #[serde(skip_serializing_if = "unset")]
    pub advertise_address: String,
    #[serde(skip_serializing_if = "unset")]
    pub bind_port: i32,
}

/// Where files lie that manifests and the kubelet's configuration are patched with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Patches {
    /// Files are named `TARGET[SUFFIX][+PATCHTYPE].EXTENSION`.
    #[serde(skip_serializing_if = "unset")]
    pub directory: String,
}

/// How long kubeadm waits for each thing before it gives up; upstream's defaults where they are not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Timeouts {
    #[serde(skip_serializing_if = "unset")]
    pub control_plane_component_health_check: Option<GoDuration>,
    #[serde(skip_serializing_if = "unset")]
    pub kubelet_health_check: Option<GoDuration>,
    #[serde(skip_serializing_if = "unset", rename = "kubernetesAPICall")]
    pub kubernetes_api_call: Option<GoDuration>,
    #[serde(skip_serializing_if = "unset", rename = "etcdAPICall")]
    pub etcd_api_call: Option<GoDuration>,
    #[serde(skip_serializing_if = "unset")]
    pub tls_bootstrap: Option<GoDuration>,
    #[serde(skip_serializing_if = "unset")]
    pub discovery: Option<GoDuration>,
    #[serde(skip_serializing_if = "unset")]
    pub upgrade_manifests: Option<GoDuration>,
}

/// What `reset` undoes and how roughly.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResetConfiguration {
    #[serde(skip_serializing_if = "unset")]
    pub cleanup_tmp_dir: bool,
    #[serde(skip_serializing_if = "unset")]
    pub certificates_dir: String,
    #[serde(skip_serializing_if = "unset")]
    pub cri_socket: String,
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: bool,
    #[serde(skip_serializing_if = "unset")]
    pub force: bool,
    #[serde(skip_serializing_if = "unset")]
    pub ignore_preflight_errors: Vec<String>,
    #[serde(skip_serializing_if = "unset")]
    pub skip_phases: Vec<String>,
    /// What the kubelet's mounts are unmounted with, such as `MNT_FORCE`.
    #[serde(skip_serializing_if = "unset")]
    pub unmount_flags: Vec<String>,
    #[serde(skip_serializing_if = "unset")]
    pub timeouts: Option<Timeouts>,
}

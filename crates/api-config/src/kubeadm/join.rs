use serde::{Deserialize, Serialize};

use super::{ApiEndpoint, NodeRegistration, Patches, Timeouts, unset};

/// What `join` needs: where the cluster is, whom to believe, and what the node becomes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JoinConfiguration {
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: bool,
    pub node_registration: NodeRegistration,
    #[serde(skip_serializing_if = "unset")]
    pub ca_cert_path: String,
    pub discovery: Discovery,
    /// Set for a node that is to be a control plane.
    #[serde(skip_serializing_if = "unset")]
    pub control_plane: Option<JoinControlPlane>,
    #[serde(skip_serializing_if = "unset")]
    pub skip_phases: Vec<String>,
    #[serde(skip_serializing_if = "unset")]
    pub patches: Option<Patches>,
    #[serde(skip_serializing_if = "unset")]
    pub timeouts: Option<Timeouts>,
}

/// How the joining node finds the cluster and learns to trust it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Discovery {
    #[serde(skip_serializing_if = "unset")]
    pub bootstrap_token: Option<BootstrapTokenDiscovery>,
    #[serde(skip_serializing_if = "unset")]
    pub file: Option<FileDiscovery>,
    #[serde(skip_serializing_if = "unset")]
    pub tls_bootstrap_token: String,
}

/// The cluster is found at an address and believed by a token that it signs, or by its CA's hash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BootstrapTokenDiscovery {
    pub token: String,
    #[serde(skip_serializing_if = "unset", rename = "apiServerEndpoint")]
    pub api_server_endpoint: String,
    /// `sha256:` and the hex digest of an authority's public key (SPKI); one match is enough.
    #[serde(skip_serializing_if = "unset", rename = "caCertHashes")]
    pub ca_cert_hashes: Vec<String>,
    #[serde(skip_serializing_if = "unset", rename = "unsafeSkipCAVerification")]
    pub unsafe_skip_ca_verification: bool,
}

/// The cluster is found, and its authority believed, by a kubeconfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileDiscovery {
    /// A path or an https URL.
    #[serde(rename = "kubeConfigPath")]
    pub kube_config_path: String,
}

/// What a joining control plane is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JoinControlPlane {
    #[serde(rename = "localAPIEndpoint")]
    pub local_api_endpoint: ApiEndpoint,
    /// The key, in hex, that the certificates in the Secret kubeadm-certs were encrypted with.
    #[serde(skip_serializing_if = "unset")]
    pub certificate_key: String,
}

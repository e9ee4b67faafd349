use serde::{Deserialize, Serialize};

use super::node::{ApiEndpoint, NodeRegistration, Patches, Timeouts};
use crate::shared::unset;

/// The configuration of `join`: the cluster, its trust, and the role of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JoinConfiguration {
    /// `true` to make no changes.
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: bool,
    /// The registration of the node.
    pub node_registration: NodeRegistration,
    /// The path of the cluster's CA certificate.
    #[serde(skip_serializing_if = "unset")]
    pub ca_cert_path: String,
    /// The discovery of the cluster.
    pub discovery: Discovery,
    /// The control plane; `None` for a worker node.
    #[serde(skip_serializing_if = "unset")]
    pub control_plane: Option<JoinControlPlane>,
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

/// The discovery of the cluster and its CA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Discovery {
    /// The discovery with a bootstrap token.
    #[serde(skip_serializing_if = "unset")]
    pub bootstrap_token: Option<BootstrapTokenDiscovery>,
    /// The discovery with a kubeconfig.
    #[serde(skip_serializing_if = "unset")]
    pub file: Option<FileDiscovery>,
    /// The token for the TLS bootstrap; empty for the token of the discovery.
    #[serde(skip_serializing_if = "unset")]
    pub tls_bootstrap_token: String,
}

/// The discovery from an API server's address. The cluster is trusted because of a signature with the token, or because
/// of the CA's hash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BootstrapTokenDiscovery {
    /// The bootstrap token.
    pub token: String,
    /// The address of an API server, as `host:port`.
    #[serde(skip_serializing_if = "unset", rename = "apiServerEndpoint")]
    pub api_server_endpoint: String,
    /// The accepted CAs: `sha256:` and the hex digest of a public key (SPKI). One match is enough.
    #[serde(skip_serializing_if = "unset", rename = "caCertHashes")]
    pub ca_cert_hashes: Vec<String>,
    /// `true` to trust any CA.
    #[serde(skip_serializing_if = "unset", rename = "unsafeSkipCAVerification")]
    pub unsafe_skip_ca_verification: bool,
}

/// The discovery from a kubeconfig, which contains the address and the CA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileDiscovery {
    /// The path of the kubeconfig, or an https URL.
    #[serde(rename = "kubeConfigPath")]
    pub kube_config_path: String,
}

/// The configuration of a joining control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JoinControlPlane {
    /// The address of the node's API server.
    #[serde(rename = "localAPIEndpoint")]
    pub local_api_endpoint: ApiEndpoint,
    /// The hex key that decrypts the certificates in the Secret kubeadm-certs.
    #[serde(skip_serializing_if = "unset")]
    pub certificate_key: String,
}

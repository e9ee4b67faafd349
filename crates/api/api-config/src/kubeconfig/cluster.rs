//! The clusters of a kubeconfig.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A named cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedCluster {
    /// The name.
    pub name: String,
    /// The cluster.
    pub cluster: Cluster,
}

/// The address of an API server and the trust in it. Inline data wins over the file of the same name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Cluster {
    /// The URL of the API server.
    pub server: String,
    /// The name that the server's certificate must contain; empty for the URL's host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tls_server_name: String,
    /// `true` to accept any server certificate.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_tls_verify: bool,
    /// The path of the CA bundle.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate_authority: String,
    /// The CA bundle, as base64 of PEM.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate_authority_data: String,
    /// The URL of a proxy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub proxy_url: String,
    /// `true` to request uncompressed responses.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_compression: bool,
    /// The extensions of other programs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Value>,
}

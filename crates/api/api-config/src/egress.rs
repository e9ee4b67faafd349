//! `EgressSelectorConfiguration` (apiserver.k8s.io): the proxies through which an API server reaches networks.

use serde::Deserialize;

use crate::{
    decode::{Strictness, versioned},
    error::Error,
    yaml,
};

/// The versions that upstream reads.
const SERVED: [&str; 2] = ["apiserver.k8s.io/v1beta1", "apiserver.k8s.io/v1alpha1"];

/// The root of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EgressSelectorConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// The connections by network.
    pub egress_selections: Vec<EgressSelection>,
}

impl EgressSelectorConfiguration {
    /// Parses a file's text without validating it. An unknown field is an error.
    pub fn parse(text: &str) -> Result<Self, Error> {
        versioned("EgressSelectorConfiguration", yaml::parse(text)?, &SERVED, Strictness::Refuse)
    }
}

/// The connections to one network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EgressSelection {
    /// The network: `cluster`, `controlplane` or `etcd`.
    pub name: String,
    /// The way to the network.
    pub connection: Connection,
}

/// The way to a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Connection {
    /// `Direct`, `HTTPConnect` or `GRPC`.
    pub proxy_protocol: String,
    /// The connection to the proxy; none for `Direct`.
    pub transport: Option<Transport>,
}

/// The connection to a proxy, either by TCP or by a Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Transport {
    /// A connection by TCP.
    pub tcp: Option<TcpTransport>,
    /// A connection by a Unix socket.
    pub uds: Option<UdsTransport>,
}

/// A proxy that is reached by TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TcpTransport {
    /// The URL of the proxy, `http://` or `https://`.
    pub url: String,
    /// The files for TLS, required for `https://`.
    #[serde(rename = "tlsConfig")]
    pub tls_config: Option<TlsConfig>,
}

/// A proxy that is reached by a Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UdsTransport {
    /// The path of the socket.
    #[serde(rename = "udsName")]
    pub uds_name: String,
}

/// The PEM files for TLS with a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TlsConfig {
    /// The authorities of the proxy's certificate; empty for the system's.
    pub ca_bundle: String,
    /// The key of the client certificate.
    pub client_key: String,
    /// The client certificate.
    pub client_cert: String,
}

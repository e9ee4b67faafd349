//! The inputs of a machine's configuration.

use std::collections::BTreeMap;

use instances::Machine;
use serde_json::Value;

/// The inputs of a machine's configuration.
pub(super) struct NodeContext {
    /// The boot configuration, which the machine was created with.
    pub(super) boot: Value,
    /// The node configuration of the machine's group.
    pub(super) config: Value,
    pub(super) machine: Machine,
    /// The credentials of registries, by host.
    pub(super) credentials: BTreeMap<String, String>,
}

/// The configuration that a machine receives.
pub(super) struct NodeAnswer {
    /// The node configuration.
    pub(super) config: String,
    /// A worker's certificates.
    pub(super) certificates: Option<Certificates>,
    /// The credentials of registries, a `config.json` of Docker.
    pub(super) docker_config: Option<Vec<u8>>,
}

/// The client certificates of a worker.
pub(super) struct Certificates {
    pub(super) kubelet: Certificate,
    /// The certificate of kube-proxy; `None` if the control planes are of a version that does not issue it.
    pub(super) proxy: Option<Certificate>,
}

/// A client certificate and its key, in PEM.
pub(super) struct Certificate {
    pub(super) cert: String,
    pub(super) key: String,
}

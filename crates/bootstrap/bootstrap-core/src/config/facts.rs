//! The facts about a machine that defaults depend on.

use std::net::IpAddr;

use crate::constants::DEFAULT_REPOSITORY;
use version::KUBERNETES_VERSION;

/// The facts about a machine that defaults depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The host name in lower case, the default node name.
    pub hostname: String,
    /// The source address of the default route.
    pub address: Option<IpAddr>,
    /// The global address of the loopback interface, for machines whose other interfaces have none.
    pub loopback_address: Option<IpAddr>,
    /// The existing sockets of container runtimes, as URLs.
    pub cri_sockets: Vec<String>,
    /// The default version of Kubernetes.
    pub kubernetes_version: String,
    /// The default image repository.
    pub image_repository: String,
    /// The token for a configuration without tokens.
    pub token: Option<String>,
    /// `true` if systemd-resolved runs; its own file then lists the upstream resolvers.
    pub systemd_resolved: bool,
    /// The kubelet's cgroup driver: `cgroupfs` on a host without systemd.
    pub cgroup_driver: String,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            hostname: String::new(),
            address: None,
            loopback_address: None,
            cri_sockets: Vec::new(),
            kubernetes_version: KUBERNETES_VERSION.to_owned(),
            image_repository: DEFAULT_REPOSITORY.to_owned(),
            token: None,
            systemd_resolved: false,
            cgroup_driver: "systemd".to_owned(),
        }
    }
}

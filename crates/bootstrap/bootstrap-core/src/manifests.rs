//! The static Pods of a control plane. Read [`manifest`] first.

mod api_server;
mod args;
mod controller_manager;
mod etcd;
mod pod;
mod reach;
mod scheduler;
mod volumes;

use api_config::kubeadm::{ApiEndpoint, ClusterConfiguration};
use serde_json::Value;

use crate::{Error, Layout, constants};

pub use etcd::{EtcdMember, EtcdRelease};
pub use reach::{BALANCER, BALANCER_SERVERS, VIRTUAL_ADDRESS, balancer, virtual_address};

/// The inputs for one machine's manifests.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// The cluster's configuration.
    pub cluster: &'a ClusterConfiguration,
    /// The address of this machine's API server.
    pub local: &'a ApiEndpoint,
    /// The name of the Node.
    pub node_name: &'a str,
    /// The paths of the node's files.
    pub layout: &'a Layout,
    /// The [`CA_DIRECTORIES`] that exist on the host.
    pub ca_directories: &'a [String],
    /// The machine's proxy settings as `(NAME, value)`, which components also need.
    pub proxy_env: &'a [(String, String)],
    /// `false` if the CA's key is kept elsewhere (external CA mode), so that the controller manager cannot sign.
    pub has_ca_key: bool,
    /// The etcd members to join, this one included; empty for the first member.
    pub etcd_members: &'a [EtcdMember],
}

/// The directories in which distributions keep trusted certificates.
pub const CA_DIRECTORIES: [&str; 5] = [
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// The components with static Pods, in the order of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    ApiServer,
    ControllerManager,
    Scheduler,
    Etcd,
}

impl Component {
    /// The components of every control plane, with local or external etcd.
    pub const CONTROL_PLANE: [Self; 3] =
        [Self::ApiServer, Self::ControllerManager, Self::Scheduler];

    /// Returns the name of the binary, the image and the container.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiServer => constants::API_SERVER,
            Self::ControllerManager => constants::CONTROLLER_MANAGER,
            Self::Scheduler => constants::SCHEDULER,
            Self::Etcd => constants::ETCD,
        }
    }

    /// Returns the file name of the manifest.
    pub fn file(self) -> String {
        format!("{}.yaml", self.name())
    }
}

/// Returns the static Pod of one component.
pub fn manifest(component: Component, machine: &Machine<'_>) -> Result<Value, Error> {
    match component {
        Component::ApiServer => api_server::pod(machine),
        Component::ControllerManager => Ok(controller_manager::pod(machine)),
        Component::Scheduler => Ok(scheduler::pod(machine)),
        Component::Etcd => etcd::pod(machine),
    }
}

#[cfg(test)]
mod tests;

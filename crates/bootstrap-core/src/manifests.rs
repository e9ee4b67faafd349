//! The static Pods of a control plane.

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

/// What the manifests of one machine are made from.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    pub cluster: &'a ClusterConfiguration,
    pub local: &'a ApiEndpoint,
    pub node_name: &'a str,
    pub layout: &'a Layout,
    /// Which of [`CA_DIRECTORIES`] exist on the host: they hold the system's trusted certificates.
    pub ca_directories: &'a [String],
    /// Proxy settings of the machine, as `NAME`, `value`; components need them to reach the world as it does.
    pub proxy_env: &'a [(String, String)],
    /// Without the CA's key here (external CA mode) the controller manager must not try to sign.
    pub has_ca_key: bool,
    /// The members of etcd that this one joins, itself included; empty where it is the first.
    pub etcd_members: &'a [EtcdMember],
}

/// Directories in which distributions keep trusted certificates.
pub const CA_DIRECTORIES: [&str; 5] = [
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// The components with static Pods, in the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    ApiServer,
    ControllerManager,
    Scheduler,
    Etcd,
}

impl Component {
    /// What every control plane runs, be etcd with it or elsewhere.
    pub const CONTROL_PLANE: [Self; 3] =
        [Self::ApiServer, Self::ControllerManager, Self::Scheduler];

    /// The name of the binary, the image and the container.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiServer => constants::API_SERVER,
            Self::ControllerManager => constants::CONTROLLER_MANAGER,
            Self::Scheduler => constants::SCHEDULER,
            Self::Etcd => constants::ETCD,
        }
    }

    /// The manifest's file name.
    pub fn file(self) -> String {
        format!("{}.yaml", self.name())
    }
}

/// The static Pod of one component.
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

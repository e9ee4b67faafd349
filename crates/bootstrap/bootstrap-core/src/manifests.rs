//! The static Pods of a control plane. Read [`manifest`] first.

mod api_server;
mod args;
mod component;
mod controller_manager;
mod etcd;
mod machine;
mod pod;
mod reach;
mod scheduler;
mod volumes;

use serde_json::Value;

use crate::Error;

pub use component::Component;
pub use etcd::EtcdRelease;
pub use machine::{CA_DIRECTORIES, EtcdMember, Machine};
pub use reach::{BALANCER, BALANCER_SERVERS, VIRTUAL_ADDRESS, balancer, virtual_address};

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

//! The machines of a cluster in any cloud, as validations and rolling updates see and replace them.

pub(crate) mod aws;
pub(crate) mod local;
pub(crate) mod metal;

use std::{collections::BTreeMap, iter::once, time::Duration};

use api_meta::Tree as _;
use client::Client;
use kops_core::life;
use kops_local::MachineProblem;
use serde_json::Value;

use crate::error::Error;

/// The role of control planes.
pub(crate) const CONTROL_PLANE: &str = "ControlPlane";
/// The role of machines that are no Nodes.
pub(crate) const BASTION: &str = "Bastion";

/// A function that shows progress to the user.
pub(crate) type Report<'a> = &'a dyn Fn(String) -> Result<(), Error>;

/// The observed state of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct CloudState {
    /// The groups that exist in the cloud.
    pub(crate) groups: Vec<GroupState>,
    /// The names of the instance groups that the cloud does not have.
    pub(crate) missing: Vec<String>,
    /// All Nodes; empty without the API.
    pub(crate) nodes: Vec<Value>,
}

impl CloudState {
    /// Returns a group by its name.
    pub(crate) fn group(&self, name: &str) -> Option<&GroupState> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// Returns the groups by the names of their machines and Nodes.
    pub(crate) fn groups_by_node(&self) -> BTreeMap<&str, &GroupState> {
        let mut groups = BTreeMap::new();
        for group in &self.groups {
            for machine in &group.machines {
                for name in once(machine.name.as_str()).chain(machine.node_name()) {
                    groups.entry(name).or_insert(group);
                }
            }
        }
        groups
    }
}

/// A group of machines.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupState {
    pub(crate) name: String,
    /// The role, as in specs.
    pub(crate) role: String,
    /// The machine types; empty on cloud local.
    pub(crate) machine_type: String,
    /// The subnets, separated by commas; empty on cloud local.
    pub(crate) subnets: String,
    /// The smallest size.
    pub(crate) min: usize,
    /// The number of members that the cloud keeps.
    pub(crate) target: usize,
    /// The largest size.
    pub(crate) max: usize,
    pub(crate) machines: Vec<MachineState>,
}

impl GroupState {
    /// Reports whether the machines are control planes.
    pub(crate) fn is_control_plane(&self) -> bool {
        self.role == CONTROL_PLANE
    }

    /// Reports whether the machines are bastions, which have no Nodes.
    pub(crate) fn is_bastion(&self) -> bool {
        self.role == BASTION
    }
}

/// A machine of a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct MachineState {
    /// The cloud's ID; empty while the cloud has not made the machine.
    pub(crate) id: String,
    /// The name, unique in the cluster.
    pub(crate) name: String,
    /// `true` if it differs from the configuration of its group.
    pub(crate) outdated: bool,
    /// `true` if it was detached from its group.
    pub(crate) detached: bool,
    /// `true` if it runs as a member of its group, or detached.
    pub(crate) runs: bool,
    /// The Node that this very machine has registered.
    pub(crate) node: Option<Value>,
    /// The names of the Nodes that claim to be this machine's, if there are several. Then it has no `node`, because a
    /// kubelet chooses the provider's ID that it registers.
    pub(crate) claimants: Vec<String>,
    /// The reason why it has no Node, as far as the cloud knows it.
    pub(crate) cause: String,
    /// `true` if it cannot run a kubelet yet.
    pub(crate) is_starting: bool,
}

impl MachineState {
    /// Returns the name of its Node.
    pub(crate) fn node_name(&self) -> Option<&str> {
        self.node.as_ref().map(|node| node.text("metadata.name"))
    }

    /// Rejects a machine that several Nodes claim, as any of them may be another machine's.
    pub(crate) fn check_claimants(&self) -> Result<(), Error> {
        if self.claimants.is_empty() {
            return Ok(());
        }
        let nodes = self.claimants.join(", ");
        Err(Error::SeveralNodes { instance: self.id.clone(), nodes })
    }

    /// Reports whether its Node is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.node.as_ref().is_some_and(|node| life::readiness(node).0)
    }
}

/// The part of validations that differs between clouds.
pub(crate) trait Observe {
    /// `true` if every cluster has Pods of cluster DNS.
    const HAS_DNS: bool;

    /// Observes the groups with their machines and, with the API, their Nodes.
    async fn observe(&self, client: Option<&Client>) -> Result<CloudState, Error>;

    /// Returns the problems that machines have recorded outside of the API.
    fn problems(&self) -> Result<Vec<MachineProblem>, Error>;
}

/// The part of rolling updates that differs between clouds whose machines can be replaced.
pub(crate) trait Cloud: Observe {
    /// The pause between two observations of a cluster that is not valid, or not often enough.
    const PAUSE: Duration;

    /// Detaches machines from their group, which replaces them.
    async fn detach(&self, group: &GroupState, names: &[String]) -> Result<(), Error>;

    /// Ends a member of a group, and waits until the cloud has replaced it.
    async fn replace(
        &self,
        group: &GroupState,
        machine: &MachineState,
        report: Report<'_>,
    ) -> Result<(), Error>;

    /// Ends detached machines.
    async fn release(&self, group: &GroupState, names: &[String]) -> Result<(), Error>;
}

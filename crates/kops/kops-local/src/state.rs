//! The observed state of a cluster's machines: each machine as created, with its Node and Lease.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use api_meta::{Timestamp, Tree as _};
use client::{Client, ListOptions, Resource};
use instances::{Fleet, FleetSpec, Group, Machine};
use kops_core::life;
use kops_node::{CERTIFICATE_PERIOD, controller::LEASES};
use serde_json::Value;
use tokio::time::timeout;

use crate::error::Error;

/// The time limit for one query of the API server.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The Nodes, Leases and machines at one time.
#[derive(Debug, Default)]
pub struct ClusterState {
    /// The Nodes.
    pub nodes: Vec<Value>,
    /// The Leases of Nodes.
    pub leases: Vec<Value>,
    /// The existing machines by name.
    pub machines: BTreeMap<String, Machine>,
}

impl ClusterState {
    /// Queries the Nodes and Leases, and then reads the wanted machines.
    pub async fn observe(client: &Client, fleet: &Fleet, spec: &FleetSpec) -> Result<Self, Error> {
        let nodes = list_objects(client, &Resource::NODES, "").await?;
        let leases = list_objects(client, &Resource::LEASES, LEASES).await?;
        Ok(Self { nodes, leases, ..Self::of_machines(fleet, spec)? })
    }

    /// Reads the wanted machines, without the API.
    pub fn of_machines(fleet: &Fleet, spec: &FleetSpec) -> Result<Self, Error> {
        let mut machines = BTreeMap::new();
        for name in spec.names() {
            if let Some(machine) = fleet.machine(&name)? {
                machines.insert(name, machine);
            }
        }
        Ok(Self { machines, ..Self::default() })
    }

    /// Returns a machine's Node, which may still belong to its predecessor of the same name.
    pub fn node(&self, machine: &str) -> Option<&Value> {
        named(&self.nodes, machine)
    }

    /// Returns the last sign of life of a Node's machine.
    pub fn last_sign(&self, machine: &str) -> Option<Timestamp> {
        life::last_sign(self.node(machine)?, named(&self.leases, machine))
    }

    /// Returns the Node, if this very machine has registered it.
    pub fn joined_node(&self, machine: &str) -> Option<&Value> {
        let created = created_at(self.machines.get(machine)?);
        self.node(machine).filter(|_| self.last_sign(machine).is_some_and(|sign| sign >= created))
    }

    /// Reports whether the Node of this very machine is ready.
    pub fn is_ready(&self, machine: &str) -> bool {
        self.joined_node(machine).is_some_and(|node| life::readiness(node).0)
    }
}

/// A problem that keeps a machine from starting, as recorded by the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineProblem {
    /// The machine's name.
    pub machine: String,
    /// The cause and the next step.
    pub message: String,
}

/// Returns the problems of a fleet's machines.
pub fn machine_problems(fleet: &Fleet, spec: &FleetSpec) -> Vec<MachineProblem> {
    spec.names()
        .filter_map(|machine| {
            let message = kops_node::machine_problem(&fleet.disk(&machine))?;
            Some(MachineProblem { machine, message })
        })
        .collect()
}

/// Reports whether a rolling update replaces a machine. It does if the machine was created from another configuration
/// than its group's, or if at most a third of the validity of the machine's certificates is left.
pub fn is_outdated(machine: &Machine, group: &Group) -> bool {
    is_outdated_at(machine, group, rt::now())
}

fn is_outdated_at(machine: &Machine, group: &Group, now: SystemTime) -> bool {
    let due = created_at(machine).plus(CERTIFICATE_PERIOD / 3 * 2);
    machine.version() != group.version() || Timestamp::from(now) >= due
}

pub(crate) fn created_at(machine: &Machine) -> Timestamp {
    Timestamp::from_unix(machine.made, 0)
}

fn named<'a>(all: &'a [Value], name: &str) -> Option<&'a Value> {
    all.iter().find(|object| object.text("metadata.name") == name)
}

/// Returns all objects of a resource, with a time limit.
pub async fn list_objects(
    client: &Client,
    resource: &Resource,
    namespace: &str,
) -> Result<Vec<Value>, Error> {
    let options = ListOptions::default();
    let request = client.list::<Value>(resource, namespace, &options);
    match timeout(QUERY_TIMEOUT, request).await {
        Ok(Ok(list)) => Ok(list.items),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Error::Timeout { seconds: QUERY_TIMEOUT.as_secs() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_outdated_before_their_certificates_expire() {
        let document = r#"{"cluster": "c", "group": "nodes", "name": "nodes-1", "id": "x", "made": 1000,
            "address": "10.0.0.2", "gateway": "10.0.0.1", "cgroup": "/c", "trusted": false, "userData": "a"}"#;
        let machine: Machine = serde_json::from_str(document).unwrap();
        let group = |user_data: &str| Group { user_data: user_data.to_owned(), ..Group::default() };
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + seconds);
        let two_thirds = CERTIFICATE_PERIOD.as_secs() / 3 * 2;
        assert!(!is_outdated_at(&machine, &group("a"), at(two_thirds - 1)));
        assert!(is_outdated_at(&machine, &group("a"), at(two_thirds)));
        assert!(is_outdated_at(&machine, &group("b"), at(0)));
    }
}

//! The observed state of a cluster's machines: each machine as created, with its Node and Lease.

use std::{collections::BTreeMap, time::Duration};

use api_meta::Timestamp;
use client::{Client, ListOptions, Resource};
use instances::{Fleet, FleetSpec, Machine};
use kops_api::Spec as _;
use kops_core::life;
use serde_json::Value;
use tokio::time::timeout;

use crate::local;

/// The time limit for one query of the API server.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The Nodes, Leases and machines at one time.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    pub(crate) nodes: Vec<Value>,
    pub(crate) leases: Vec<Value>,
    pub(crate) machines: BTreeMap<String, Machine>,
}

impl ClusterState {
    /// Queries the wanted machines. An error of the API is returned as text.
    pub(crate) async fn observe(
        client: &Client,
        fleet: &Fleet,
        wanted: &FleetSpec,
    ) -> Result<Self, String> {
        let nodes = list(client, &Resource::NODES, "").await?;
        let leases = list(client, &Resource::LEASES, local::LEASES).await?;
        let mut machines = BTreeMap::new();
        for name in wanted.groups.iter().flat_map(instances::Group::names) {
            if let Some(machine) = fleet.machine(&name).map_err(|e| e.to_string())? {
                machines.insert(name, machine);
            }
        }
        Ok(Self { nodes, leases, machines })
    }

    /// Returns a machine's Node, which may still belong to its predecessor of the same name.
    pub(crate) fn node(&self, machine: &str) -> Option<&Value> {
        named(&self.nodes, machine)
    }

    /// Returns the last sign of life of a Node's machine.
    pub(crate) fn sign(&self, machine: &str) -> Option<Timestamp> {
        life::last_sign(self.node(machine)?, named(&self.leases, machine))
    }

    /// Returns the Node, if this very machine has registered it.
    pub(crate) fn joined(&self, machine: &str) -> Option<&Value> {
        let made = created_at(self.machines.get(machine)?);
        self.node(machine).filter(|_| self.sign(machine).is_some_and(|sign| sign >= made))
    }

    pub(crate) fn is_ready(&self, machine: &str) -> bool {
        self.joined(machine).is_some_and(|node| life::readiness(node).0)
    }
}

pub(crate) fn created_at(machine: &Machine) -> Timestamp {
    Timestamp::from_unix(machine.made, 0)
}

fn named<'a>(all: &'a [Value], name: &str) -> Option<&'a Value> {
    all.iter().find(|object| object.text("metadata.name") == name)
}

/// Returns all objects of a resource, with a time limit.
pub(crate) async fn list(
    client: &Client,
    resource: &Resource,
    namespace: &str,
) -> Result<Vec<Value>, String> {
    let options = ListOptions::default();
    let request = client.list::<Value>(resource, namespace, &options);
    match timeout(QUERY_TIMEOUT, request).await {
        Ok(Ok(list)) => Ok(list.items),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", QUERY_TIMEOUT.as_secs())),
    }
}

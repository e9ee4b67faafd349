//! What is seen of a cluster's machines: each machine as it was made, and what the cluster says of it.

use std::{collections::BTreeMap, time::Duration};

use api_meta::Timestamp;
use client::{Client, ListOptions, Resource};
use instances::{Fleet, Machine, Wanted};
use kops_api::Spec as _;
use kops_core::life;
use serde_json::Value;
use tokio::time::timeout;

use crate::local;

/// How long the API server has to answer one question.
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) nodes: Vec<Value>,
    pub(crate) leases: Vec<Value>,
    pub(crate) machines: BTreeMap<String, Machine>,
}

impl Seen {
    /// Looks at the machines that are wanted. What keeps the API from answering comes back as text.
    pub(crate) async fn look(
        client: &Client,
        fleet: &Fleet,
        wanted: &Wanted,
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

    /// The Node of a machine, be it still that of one that had its name before.
    pub(crate) fn node(&self, machine: &str) -> Option<&Value> {
        named(&self.nodes, machine)
    }

    /// When a Node's machine was last heard of.
    pub(crate) fn sign(&self, machine: &str) -> Option<Timestamp> {
        life::last_sign(self.node(machine)?, named(&self.leases, machine))
    }

    /// The Node that this very machine has registered.
    pub(crate) fn joined(&self, machine: &str) -> Option<&Value> {
        let made = made(self.machines.get(machine)?);
        self.node(machine).filter(|_| self.sign(machine).is_some_and(|sign| sign >= made))
    }

    pub(crate) fn is_ready(&self, machine: &str) -> bool {
        self.joined(machine).is_some_and(|node| life::readiness(node).0)
    }
}

pub(crate) fn made(machine: &Machine) -> Timestamp {
    Timestamp::from_unix(machine.made, 0)
}

fn named<'a>(all: &'a [Value], name: &str) -> Option<&'a Value> {
    all.iter().find(|object| object.text("metadata.name") == name)
}

/// All objects of a kind; a server that is silent is not waited for.
pub(crate) async fn list(
    client: &Client,
    resource: &Resource,
    namespace: &str,
) -> Result<Vec<Value>, String> {
    let options = ListOptions::default();
    let asked = client.list::<Value>(resource, namespace, &options);
    match timeout(ANSWER, asked).await {
        Ok(Ok(list)) => Ok(list.items),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", ANSWER.as_secs())),
    }
}

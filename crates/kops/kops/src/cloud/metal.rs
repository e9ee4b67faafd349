//! The machines of a cluster on metal, which kOps does not make: the API's Nodes, and the Hosts that were enrolled.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use client::{Client, Resource};
use kops_api::Object;
use kops_core::{CloudName, Cluster as _};
use kops_local::{MachineProblem, list_objects};
use kops_node::controller::{HOSTS, HOSTS_NAMESPACE};
use kops_store::Registry;
use serde_json::Value;

use super::{BASTION, CONTROL_PLANE, CloudState, GroupState, MachineState, Observe};
use crate::error::Error;

/// The label that names the instance group of a Node.
const GROUP_LABEL: &str = "kops.k8s.io/instancegroup";

/// The machines of a cluster on metal.
pub(crate) struct MetalCloud {
    /// The cluster's instance groups.
    groups: Vec<Object>,
}

impl MetalCloud {
    /// Opens the cloud of a cluster, or returns `None` if the cluster is not on metal.
    pub(crate) fn open(registry: &Registry, cluster: &Object) -> Result<Option<Self>, Error> {
        if cluster.cloud() != CloudName::Metal {
            return Ok(None);
        }
        Ok(Some(Self { groups: registry.groups(cluster.name())? }))
    }

    /// Returns the groups with the machines that have a Node or a Host. A Host decides the group of its Node.
    fn group_states(&self, nodes: &[Value], hosts: &[Value]) -> Vec<GroupState> {
        let mut machines: BTreeMap<&str, Machine<'_>> = BTreeMap::new();
        for host in hosts {
            let group = Some(host.text("spec.instanceGroup"));
            machines.insert(name(host), Machine { group, node: None });
        }
        for node in nodes {
            let machine = machines.entry(name(node)).or_default();
            machine.group = machine.group.or_else(|| self.group_of(node));
            machine.node = Some(node);
        }
        let mut groups: Vec<_> = self.groups.iter().map(group_state).collect();
        for group in &mut groups {
            let own = machines.iter().filter(|(_, one)| one.group == Some(group.name.as_str()));
            group.machines = own.map(|(name, one)| machine_state(name, one.node)).collect();
        }
        groups
    }

    /// Returns the instance group of a Node: the one that its label names, or the only group of its role.
    fn group_of<'a>(&'a self, node: &'a Value) -> Option<&'a str> {
        let labels = node.at("metadata.labels");
        if let Some(label) = labels.get(GROUP_LABEL) {
            return label.as_str();
        }
        let has_role = |role: &str| labels.get(format!("node-role.kubernetes.io/{role}")).is_some();
        let is_member = |group: &&Object| match group.spec.text("role") {
            CONTROL_PLANE => has_role("control-plane"),
            BASTION => false,
            "APIServer" => has_role("api-server"),
            _ => !has_role("control-plane") && !has_role("api-server"),
        };
        let mut own = self.groups.iter().filter(is_member);
        own.next().filter(|_| own.next().is_none()).map(Object::name)
    }
}

/// A machine's instance group and Node, as far as they are known.
#[derive(Default)]
struct Machine<'a> {
    group: Option<&'a str>,
    node: Option<&'a Value>,
}

fn name(object: &Value) -> &str {
    object.text("metadata.name")
}

fn group_state(group: &Object) -> GroupState {
    let size = |field: &str| {
        group.spec.at(field).as_u64().and_then(|size| usize::try_from(size).ok()).unwrap_or(0)
    };
    GroupState {
        name: group.name().to_owned(),
        role: group.spec.text("role").to_owned(),
        min: size("minSize"),
        target: size("minSize"),
        max: size("maxSize"),
        ..GroupState::default()
    }
}

fn machine_state(name: &str, node: Option<&Value>) -> MachineState {
    let cause = match node {
        Some(_) => String::new(),
        None => format!("Host {HOSTS_NAMESPACE}/{name} exists, and no Node of this name"),
    };
    MachineState {
        id: name.to_owned(),
        name: name.to_owned(),
        runs: node.is_some(),
        node: node.cloned(),
        cause,
        ..MachineState::default()
    }
}

impl Observe for MetalCloud {
    const HAS_DNS: bool = false;

    /// Without the API nothing is known, so that the state has no groups.
    async fn observe(&self, client: Option<&Client>) -> Result<CloudState, Error> {
        let Some(client) = client else { return Ok(CloudState::default()) };
        let nodes = list_objects(client, &Resource::NODES, "").await.map_err(Error::Unreachable)?;
        let hosts = match list_objects(client, &HOSTS, HOSTS_NAMESPACE).await {
            // Clusters without enrolled machines need not have the kind.
            Err(kops_local::Error::Api(error)) if error.is_not_found() => Vec::new(),
            listed => listed.map_err(Error::Unreachable)?,
        };
        let groups = self.group_states(&nodes, &hosts);
        Ok(CloudState { groups, missing: Vec::new(), nodes })
    }

    fn problems(&self) -> Result<Vec<MachineProblem>, Error> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use kops_api::Kind;
    use serde_json::json;
    use testkit::FakeApi;

    use super::*;

    fn cloud(groups: &[(&str, &str)]) -> MetalCloud {
        let group = |(name, role): &(&str, &str)| {
            let mut group = Object::new(Kind::InstanceGroup, name);
            group.spec = json!({"role": role, "minSize": 2, "maxSize": 3});
            group
        };
        MetalCloud { groups: groups.iter().map(group).collect() }
    }

    fn node(name: &str, label: &str) -> Value {
        let (key, value) = label.split_once('=').unwrap_or((label, ""));
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {key: value}}})
    }

    /// Returns the groups with their machines; those without a Node are marked.
    fn members(groups: &[GroupState]) -> Vec<(&str, Vec<String>)> {
        let shown = |one: &MachineState| match one.node_name() {
            Some(name) => name.to_owned(),
            None => format!("{}?", one.name),
        };
        groups
            .iter()
            .map(|group| (group.name.as_str(), group.machines.iter().map(shown).collect()))
            .collect()
    }

    #[test]
    fn nodes_belong_to_group_of_host_label_or_role() {
        let nodes = [
            node("a", "node-role.kubernetes.io/control-plane"),
            node("b", "kops.k8s.io/instancegroup=blue"),
            node("c", "kops.k8s.io/instancegroup=blue"),
            node("d", "kops.k8s.io/instancegroup=foreign"),
            node("e", "x"),
        ];
        let host =
            |name: &str| json!({"metadata": {"name": name}, "spec": {"instanceGroup": "red"}});
        let hosts = [host("c"), host("f")];
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let two = cloud(&[("cp", CONTROL_PLANE), ("blue", "Node"), ("red", "Node")]);
        let states = two.group_states(&nodes, &hosts);
        // The role of `e` does not decide between two groups.
        let wanted = [("cp", names(&["a"])), ("blue", names(&["b"])), ("red", names(&["c", "f?"]))];
        assert_eq!(members(&states), wanted);
        assert_eq!((states[1].target, states[1].max), (2, 3));
        let one = cloud(&[("cp", CONTROL_PLANE), ("blue", "Node"), ("jump", BASTION)]);
        let states = one.group_states(&nodes, &[]);
        assert_eq!(
            members(&states)[1..],
            [("blue", names(&["b", "c", "e"])), ("jump", names(&[]))]
        );
    }

    #[tokio::test]
    async fn observes_cluster_without_hosts() {
        let api = FakeApi::default();
        let node = node("a", "node-role.kubernetes.io/control-plane");
        api.create(&Resource::NODES, node).await;
        let client = api.client("test");
        let state = cloud(&[("cp", CONTROL_PLANE)]).observe(Some(&client)).await.unwrap();
        assert_eq!(members(&state.groups), [("cp", vec!["a".to_owned()])]);
        assert!(cloud(&[("cp", CONTROL_PLANE)]).observe(None).await.unwrap().groups.is_empty());
    }
}

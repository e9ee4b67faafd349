//! The machines of a cluster on AWS, in its scaling groups.

use std::{collections::BTreeMap, time::Duration};

use api_meta::Tree as _;
use client::{Client, Resource};
use kops_api::Object;
use kops_aws::{make_call, open_client, query_groups};
use kops_core::{
    CloudName, Cluster as _,
    direct::{self, Machine},
};
use kops_local::{MachineProblem, list_objects};
use kops_store::Registry;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Cloud, CloudState, GroupState, MachineState, Observe, Report};
use crate::{environment::CommandEnvironment, error::Error};

/// The pause between two observations of a scaling group that replaces a machine.
const POLL: Duration = Duration::from_secs(10);
/// The time for a scaling group to replace a machine.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(900);

/// The state of a machine that runs as a member of its group.
const IN_SERVICE: &str = "InService";

/// The machines of a cluster on AWS.
pub(crate) struct AwsCloud {
    client: kops_aws::Client,
    cluster: String,
    /// The cluster's instance groups.
    groups: Vec<Object>,
}

impl AwsCloud {
    /// Opens the cloud of a cluster, or returns `None` if the cluster is not on AWS.
    pub(crate) fn open(
        registry: &Registry,
        cluster: &Object,
        context: &CommandEnvironment<'_>,
    ) -> Result<Option<Self>, Error> {
        if cluster.cloud() != CloudName::Aws {
            return Ok(None);
        }
        let client = open_client(cluster, context.environment)?;
        let name = cluster.name();
        let groups = registry.groups(name)?;
        Ok(Some(Self { client, cluster: name.to_owned(), groups }))
    }

    /// Returns the cluster's instance groups.
    pub(crate) fn groups(&self) -> &[Object] {
        &self.groups
    }

    /// Returns the scaling group of an instance group.
    async fn scaling_group(&self, name: &str) -> Result<direct::Group, Error> {
        let found = query_groups(&self.client, &self.cluster).await?;
        let group = only_group(&found, name)?.cloned();
        group.ok_or_else(|| Error::NotFound { kind: "scaling group", name: name.to_owned() })
    }

    async fn call_all(&self, calls: Vec<direct::Call>) -> Result<(), Error> {
        for one in calls {
            make_call(&self.client, &one).await?;
        }
        Ok(())
    }
}

/// Returns the scaling group of an instance group, if it exists.
///
/// # Errors
///
/// Several scaling groups have the name of the instance group in their tags.
fn only_group<'a>(
    found: &'a BTreeMap<String, direct::Group>,
    name: &str,
) -> Result<Option<&'a direct::Group>, Error> {
    let own: Vec<_> = found.values().filter(|one| one.instance_group == name).collect();
    match own[..] {
        [] => Ok(None),
        [group] => Ok(Some(group)),
        _ => {
            let names: Vec<_> = own.iter().map(|one| one.name.as_str()).collect();
            let (group, found) = (name.to_owned(), names.join(", "));
            Err(Error::SeveralScalingGroups { group, found })
        }
    }
}

/// The Nodes that claim to be those of instances, by the instance.
type Claims<'a> = BTreeMap<&'a str, Vec<&'a Value>>;

/// Returns the instances that Nodes claim: their provider's ID is `aws:///ZONE/INSTANCE`.
fn claims(nodes: &[Value]) -> Claims<'_> {
    let mut claims = Claims::new();
    for node in nodes {
        let id = node.text("spec.providerID").strip_prefix("aws://");
        if let Some(instance) = id.and_then(|id| id.rsplit('/').next()) {
            claims.entry(instance).or_default().push(node);
        }
    }
    claims
}

/// Returns the state of a group. Machines that end are left out, as their group replaces them.
fn group_state(group: &direct::Group, object: &Object, claims: &Claims<'_>) -> GroupState {
    let machine = |machine: &Machine| {
        let claims = claims.get(machine.id.as_str()).map(Vec::as_slice).unwrap_or_default();
        let (node, claimants) = match claims {
            [] => (None, Vec::new()),
            [node] => (Some((*node).clone()), Vec::new()),
            _ => (None, claims.iter().map(|one| one.text("metadata.name").to_owned()).collect()),
        };
        MachineState {
            id: machine.id.clone(),
            name: machine.id.clone(),
            outdated: machine.is_outdated(group),
            detached: machine.detached,
            runs: machine.detached || machine.state == IN_SERVICE,
            cause: match node {
                Some(_) => String::new(),
                None if claimants.is_empty() => format!("its state is {}", machine.state),
                None => format!("several Nodes claim it: {}", claimants.join(", ")),
            },
            is_starting: machine.state.starts_with("Pending"),
            node,
            claimants,
        }
    };
    let machines = group.machines.iter().filter(|machine| !machine.is_ending());
    GroupState {
        name: group.instance_group.clone(),
        role: object.spec.text("role").to_owned(),
        machine_type: object.spec.text("machineType").to_owned(),
        subnets: object.spec.texts("subnets").collect::<Vec<_>>().join(","),
        min: number(&group.min),
        target: number(&group.desired),
        max: number(&group.max),
        machines: machines.map(machine).collect(),
    }
}

/// Reports whether a scaling group has ended a machine and has all its members, `target` before the end. An
/// autoscaler may have shrunk it since.
fn is_replaced(now: &direct::Group, machine: &str, target: usize) -> bool {
    let is_there = now.machines.iter().any(|one| one.id == machine && !one.is_ending());
    let in_service = now.machines.iter().filter(|one| one.state == IN_SERVICE).count();
    !is_there && in_service >= target.min(number(&now.desired))
}

/// Parses a size of a scaling group.
fn number(text: &str) -> usize {
    text.parse().unwrap_or(0)
}

impl Observe for AwsCloud {
    const HAS_DNS: bool = false;

    async fn observe(&self, client: Option<&Client>) -> Result<CloudState, Error> {
        let nodes = match client {
            None => Vec::new(),
            Some(client) => {
                list_objects(client, &Resource::NODES, "").await.map_err(Error::Unreachable)?
            }
        };
        let claims = claims(&nodes);
        let found = query_groups(&self.client, &self.cluster).await?;
        let mut state = CloudState::default();
        for object in &self.groups {
            match only_group(&found, object.name())? {
                Some(group) => state.groups.push(group_state(group, object, &claims)),
                None => state.missing.push(object.name().to_owned()),
            }
        }
        Ok(CloudState { nodes, ..state })
    }

    fn problems(&self) -> Result<Vec<MachineProblem>, Error> {
        Ok(Vec::new())
    }
}

impl Cloud for AwsCloud {
    const PAUSE: Duration = Duration::from_secs(10);

    async fn detach(&self, group: &GroupState, names: &[String]) -> Result<(), Error> {
        let own = self.scaling_group(&group.name).await?;
        for name in names {
            self.call_all(own.detach_calls(name)).await?;
        }
        Ok(())
    }

    async fn replace(
        &self,
        group: &GroupState,
        machine: &MachineState,
        _: Report<'_>,
    ) -> Result<(), Error> {
        let own = self.scaling_group(&group.name).await?;
        self.call_all(own.end_calls(&machine.id)).await?;
        let until = Instant::now() + REPLACEMENT_TIMEOUT;
        loop {
            let now = self.scaling_group(&group.name).await?;
            if is_replaced(&now, &machine.id, group.target) {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Error::Replacement {
                    machine: machine.id.clone(),
                    seconds: REPLACEMENT_TIMEOUT.as_secs(),
                    advice: format!("see the activities of scaling group {}", now.name),
                });
            }
            sleep(POLL).await;
        }
    }

    async fn release(&self, group: &GroupState, names: &[String]) -> Result<(), Error> {
        let own = self.scaling_group(&group.name).await?;
        for name in names {
            self.call_all(own.end_calls(name)).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_have_their_nodes_and_ending_ones_are_left_out() {
        let machine = |id: &str, state: &str, version| Machine {
            id: id.to_owned(),
            state: state.to_owned(),
            version,
            ..Machine::default()
        };
        let group = direct::Group {
            instance_group: "nodes".to_owned(),
            desired: "2".to_owned(),
            latest: 2,
            machines: vec![
                machine("i-1", "InService", 1),
                machine("i-2", "Pending:Wait", 2),
                machine("i-3", "Terminating", 1),
                Machine { detached: true, ..machine("i-4", "Detached", 0) },
            ],
            ..direct::Group::default()
        };
        let node =
            |name: &str, id: &str| json!({"metadata": {"name": name}, "spec": {"providerID": id}});
        let nodes = [
            node("i-1", "aws:///eu-west-1a/i-1"),
            node("x", "aws:///eu-west-1a/xi-2"),
            node("y", "gce:///a/i-2"),
        ];
        let mut object = Object::new(kops_api::Kind::InstanceGroup, "nodes");
        object.spec = json!({"role": "Node", "machineType": "m5.large", "subnets": ["a", "b"]});
        let state = group_state(&group, &object, &claims(&nodes));
        assert_eq!((state.role.as_str(), state.subnets.as_str()), ("Node", "a,b"));
        let seen: Vec<_> = state
            .machines
            .iter()
            .map(|one| (one.name.as_str(), one.outdated, one.detached, one.runs, one.node_name()))
            .collect();
        assert_eq!(
            seen,
            [
                ("i-1", true, false, true, Some("i-1")),
                ("i-2", false, false, false, None),
                ("i-4", true, true, true, None),
            ]
        );
        assert!(state.machines[1].cause.contains("Pending:Wait") && state.target == 2);
        // A second Node that claims a machine, even in another zone, leaves it without a Node.
        let twice = [&nodes[..], &[node("evil", "aws:///eu-west-1b/i-1")]].concat();
        let state = group_state(&group, &object, &claims(&twice));
        let claimed = &state.machines[0];
        assert_eq!(claimed.node, None);
        assert_eq!(claimed.cause, "several Nodes claim it: i-1, evil");
        let error = claimed.check_claimants().unwrap_err().to_string();
        assert!(error.contains("instance i-1: i-1, evil"), "{error}");
    }

    #[test]
    fn machine_is_replaced_once_all_members_run() {
        let group = |desired: &str, machines: &[(&str, &str)]| direct::Group {
            desired: desired.to_owned(),
            machines: machines
                .iter()
                .map(|&(id, state)| Machine {
                    id: id.to_owned(),
                    state: state.to_owned(),
                    ..Machine::default()
                })
                .collect(),
            ..direct::Group::default()
        };
        let (kept, ending) = (("i-2", "InService"), ("i-1", "Terminating:Wait"));
        for (desired, machines, done) in [
            ("2", &[("i-1", "InService"), kept][..], false),
            ("2", &[ending, kept], false),
            ("2", &[ending, kept, ("i-3", "Pending")], false),
            ("2", &[ending, kept, ("i-3", "InService")], true),
            // An autoscaler has shrunk the group, or has begun to grow it.
            ("1", &[kept], true),
            ("3", &[kept, ("i-3", "InService")], true),
        ] {
            let found = is_replaced(&group(desired, machines), "i-1", 2);
            assert_eq!(found, done, "{desired} {machines:?}");
        }
    }

    #[test]
    fn rejects_several_scaling_groups_of_one_instance_group() {
        let group = |name: &str| {
            let instance_group = name.split('.').next().unwrap().to_owned();
            let group =
                direct::Group { name: name.to_owned(), instance_group, ..direct::Group::default() };
            (name.to_owned(), group)
        };
        let found = BTreeMap::from([group("a.x"), group("b.x"), group("b.y")]);
        assert_eq!(only_group(&found, "a").unwrap().map(|one| one.name.as_str()), Some("a.x"));
        assert!(only_group(&found, "c").unwrap().is_none());
        let error = only_group(&found, "b").unwrap_err().to_string();
        assert!(error.contains("b.x, b.y"), "{error}");
    }
}

//! Runs `kops validate cluster`: compares machines, Nodes and critical Pods with the specification.

use std::time::Duration;

use client::{Client, Resource};
use instances::{Fleet, FleetSpec};
use kops_api::Spec as _;
use kops_core::life;
use kops_local::{
    ClusterState, MachineProblem, check_cloud, fleet, list_objects, machine_problems, open_client,
};
use kops_store::Registry;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{environment::CommandEnvironment, error::Error, flags::ValidateCluster, get, table};

const PAUSE: Duration = Duration::from_secs(2);
const CRITICAL: [&str; 2] = ["system-cluster-critical", "system-node-critical"];
/// The static Pods of every control plane.
const COMPONENTS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// A failed check.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// The kind of the object.
    pub(crate) kind: &'static str,
    /// The name of the object.
    pub(crate) name: String,
    /// The problem.
    pub(crate) message: String,
    /// The group of the affected machines; `None` if all are affected.
    pub(crate) group: Option<String>,
}

impl ValidateCluster {
    /// Returns the flags with which an update waits for the cluster.
    pub(crate) fn for_update() -> Self {
        Self {
            cluster: None,
            wait: Some(api_config::GoDuration::from_secs(600)),
            count: 1,
            output: "table".to_owned(),
        }
    }
}

pub(crate) async fn run(
    registry: &Registry,
    command: &ValidateCluster,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    check_cloud(&cluster)?;
    let fleet = fleet(registry, name);
    let spec = fleet.spec()?.unwrap_or_default();
    if spec.cluster != name {
        return Err(kops_store::Error::object(
            "cluster",
            name,
            "has no machines yet; run kops update cluster --yes",
        )
        .into());
    }
    let client = open_client(registry, &cluster, context.now)?;
    let until =
        Instant::now() + command.wait.map(api_config::GoDuration::to_std).unwrap_or_default();
    let mut times = 0;
    writeln!(context.out, "Validating cluster {name}\n")?;
    loop {
        let (nodes, failures) = validate_once(&client, &fleet, &spec).await;
        times = if failures.is_empty() { times + 1 } else { 0 };
        if times >= command.count.max(1) || (Instant::now() >= until && !failures.is_empty()) {
            let (nodes, failures) = (&nodes.nodes[..], &failures[..]);
            let report = Report { cluster: name, fleet: &spec, nodes, failures };
            return report.print(&command.output, context);
        }
        sleep(PAUSE).await;
    }
}

/// Returns the observed state and the failures.
pub(crate) async fn validate_once(
    client: &Client,
    fleet: &Fleet,
    spec: &FleetSpec,
) -> (ClusterState, Vec<Failure>) {
    let unreachable = |message| {
        let name = spec.cluster.clone();
        let mut failures = vec![Failure { kind: "API", name, message, group: None }];
        failures.extend(machine_failures(fleet, spec));
        failures
    };
    let state = match ClusterState::observe(client, fleet, spec).await {
        Ok(state) => state,
        Err(error) => return (ClusterState::default(), unreachable(error.to_string())),
    };
    match list_objects(client, &Resource::PODS, "kube-system").await {
        Ok(pods) => {
            let mut failures = find_failures(spec, &state, &pods);
            failures.extend(machine_failures(fleet, spec));
            (state, failures)
        }
        Err(error) => (state, unreachable(error.to_string())),
    }
}

/// Returns the problems that machines have recorded on their disks.
fn machine_failures(fleet: &Fleet, spec: &FleetSpec) -> Vec<Failure> {
    let failure = |problem: MachineProblem| Failure {
        kind: "Machine",
        group: spec.group_of(&problem.machine).map(|group| group.name.clone()),
        name: problem.machine,
        message: problem.message,
    };
    machine_problems(fleet, spec).into_iter().map(failure).collect()
}

/// Compares the observed state with the wanted one.
fn find_failures(spec: &FleetSpec, state: &ClusterState, pods: &[Value]) -> Vec<Failure> {
    let mut failures = Vec::new();
    let mut fail = |kind, name: &str, message: String, group: Option<&instances::Group>| {
        let group = group.map(|group| group.name.clone());
        failures.push(Failure { kind, name: name.to_owned(), message, group });
    };
    for group in &spec.groups {
        for name in group.names() {
            // A Node stays Ready for a while after its machine's end, when another machine may already have its name.
            match state.joined_node(&name) {
                None => {
                    let message = format!("machine {name:?} has not yet joined cluster");
                    fail("Machine", &name, message, Some(group));
                    continue;
                }
                Some(node) if !life::readiness(node).0 => {
                    let message =
                        format!("node {name:?} of role {:?} is not ready", role_name(group));
                    fail("Node", &name, message, Some(group));
                }
                Some(_) => {}
            }
            for component in COMPONENTS.iter().filter(|_| group.trusted) {
                let runs = pods.iter().any(|pod| {
                    pod.text("spec.nodeName") == name
                        && pod.at("metadata.labels").is_some_and(|l| {
                            l.get("component").and_then(Value::as_str) == Some(component)
                        })
                });
                if !runs {
                    let message = format!("control-plane node {name:?} is missing {component} pod");
                    fail("Node", &name, message, Some(group));
                }
            }
        }
    }
    let group_of = |pod: &Value| spec.group_of(pod.text("spec.nodeName"));
    for pod in pods.iter().filter(|pod| CRITICAL.contains(&pod.text("spec.priorityClassName"))) {
        let (name, phase) =
            (format!("kube-system/{}", pod.text("metadata.name")), pod.text("status.phase"));
        let critical = pod.text("spec.priorityClassName");
        match phase {
            "Succeeded" => {}
            "Pending" | "Unknown" => {
                let phase = phase.to_ascii_lowercase();
                let message = format!("{critical} pod {:?} is {phase}", pod.text("metadata.name"));
                fail("Pod", &name, message, group_of(pod));
            }
            _ => {
                // Check the containers: the Pod's condition also depends on the Node.
                let of = pod.list("status.containerStatuses").iter();
                let waiting: Vec<_> =
                    of.filter(|c| !c.is("ready")).map(|container| container.text("name")).collect();
                if !waiting.is_empty() {
                    let (own, names) = (pod.text("metadata.name"), waiting.join(","));
                    let message = format!("{critical} pod {own:?} is not ready ({names})");
                    fail("Pod", &name, message, group_of(pod));
                }
            }
        }
    }
    if !pods.iter().any(|pod| {
        pod.at("metadata.labels")
            .is_some_and(|l| l.get("k8s-app").and_then(Value::as_str) == Some("kube-dns"))
    }) {
        let message = "no Pod of cluster DNS exists yet".to_owned();
        fail("Pod", "kube-system/coredns", message, None);
    }
    failures
}

fn role_name(group: &instances::Group) -> &'static str {
    if group.trusted { "control-plane" } else { "node" }
}

/// The result of a validation.
struct Report<'a> {
    cluster: &'a str,
    fleet: &'a FleetSpec,
    nodes: &'a [Value],
    failures: &'a [Failure],
}

impl Report<'_> {
    /// Prints the report, and returns an error if the cluster is not valid.
    fn print(&self, output: &str, context: &mut CommandEnvironment<'_>) -> Result<(), Error> {
        match output {
            "table" => self.print_tables(context)?,
            "json" => writeln!(context.out, "{}", self.to_tree())?,
            _ => write!(context.out, "{}", kops_api::yaml::to_string(&self.to_tree()))?,
        }
        match self.failures.len() {
            0 => Ok(()),
            count => Err(Error::Validation { cluster: self.cluster.to_owned(), count }),
        }
    }

    fn to_tree(&self) -> Value {
        let failure = |f: &Failure| json!({"type": f.kind, "name": f.name, "message": f.message});
        let failures: Vec<_> = self.failures.iter().map(failure).collect();
        let node = |node: &Value| json!({"name": node.text("metadata.name"), "status": ready_status(node)});
        let nodes: Vec<_> = self.nodes.iter().map(node).collect();
        json!({"failures": failures, "nodes": nodes})
    }

    fn print_tables(&self, context: &mut CommandEnvironment<'_>) -> Result<(), Error> {
        writeln!(context.out, "INSTANCE GROUPS")?;
        let row = |group: &instances::Group| {
            let size = group.size().to_string();
            let role = if group.trusted { "ControlPlane" } else { "Node" };
            [group.name.clone(), role.to_owned(), size.clone(), size]
        };
        let rows = self.fleet.groups.iter().map(row).collect();
        table::print(context.out, ["NAME", "ROLE", "MIN", "MAX"], rows)?;
        writeln!(context.out, "\nNODE STATUS")?;
        let row = |node: &Value| {
            let name = node.text("metadata.name");
            let role = self.fleet.group_of(name).map_or("", role_name);
            [name.to_owned(), role.to_owned(), ready_status(node).to_owned()]
        };
        let rows = self.nodes.iter().map(row).collect();
        table::print(context.out, ["NAME", "ROLE", "READY"], rows)?;
        if self.failures.is_empty() {
            writeln!(context.out, "\nYour cluster {} is ready", self.cluster)?;
            return Ok(());
        }
        writeln!(context.out, "\nVALIDATION ERRORS")?;
        let row = |f: &Failure| [f.kind.to_owned(), f.name.clone(), f.message.clone()];
        let rows = self.failures.iter().map(row).collect();
        table::print(context.out, ["KIND", "NAME", "MESSAGE"], rows)?;
        writeln!(context.out, "\nValidation Failed")?;
        Ok(())
    }
}

/// Returns the status of a Node's condition Ready.
fn ready_status(node: &Value) -> &'static str {
    if life::readiness(node).0 { "True" } else { "False" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> FleetSpec {
        let group = |name: &str, trusted| instances::Group {
            name: name.to_owned(),
            numbers: [1].into(),
            trusted,
            ..instances::Group::default()
        };
        FleetSpec { groups: vec![group("cp", true), group("nodes", false)], ..FleetSpec::default() }
    }

    /// Returns the machines' Nodes. The worker's machine was created at `made`.
    fn seen(nodes: &[Value], made: i64) -> ClusterState {
        let machine = |name: &str, made| {
            let address = "172.29.0.2".parse().unwrap();
            let machine = instances::Machine {
                cluster: String::new(),
                group: String::new(),
                name: name.to_owned(),
                id: String::new(),
                made,
                address,
                gateway: address,
                cgroup: String::new(),
                trusted: false,
                user_data: String::new(),
            };
            (name.to_owned(), machine)
        };
        let machines = [machine("cp-1", 0), machine("nodes-1", made)].into();
        ClusterState { nodes: nodes.to_vec(), leases: Vec::new(), machines }
    }

    fn node(name: &str, ready: &str) -> Value {
        json!({"metadata": {"name": name, "creationTimestamp": "2026-11-23T06:00:00Z"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn pod(name: &str, label: (&str, &str), node: &str, ready: bool) -> Value {
        json!({
            "metadata": {"name": name, "labels": {label.0: label.1}},
            "spec": {"nodeName": node, "priorityClassName": CRITICAL[0]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "ready": ready}]},
        })
    }

    #[test]
    fn names_each_failure() {
        let nodes = [node("cp-1", "True"), node("nodes-1", "True")];
        let mut pods: Vec<_> =
            COMPONENTS.iter().map(|c| pod(c, ("component", c), "cp-1", true)).collect();
        pods.push(pod("coredns", ("k8s-app", "kube-dns"), "nodes-1", true));
        assert_eq!(find_failures(&spec(), &seen(&nodes, 0), &pods), []);
        // Another machine has the name, and has shown no sign of life yet.
        let waiting = find_failures(&spec(), &seen(&nodes, 2_000_000_000), &pods);
        assert_eq!(waiting.iter().map(|f| f.group.as_deref()).collect::<Vec<_>>(), [Some("nodes")]);
        let messages = |nodes: &[Value], pods: &[Value]| {
            let all = find_failures(&spec(), &seen(nodes, 0), pods).into_iter().map(|f| f.message);
            all.collect::<Vec<_>>().join("\n")
        };
        assert!(messages(&nodes[..1], &pods).contains("machine \"nodes-1\" has not yet joined"));
        assert!(
            messages(&[nodes[0].clone(), node("nodes-1", "Unknown")], &pods)
                .contains("is not ready")
        );
        assert!(messages(&nodes, &pods[1..]).contains("is missing kube-apiserver pod"));
        assert!(messages(&nodes, &pods[..3]).contains("cluster DNS"));
        pods[3] = pod("coredns", ("k8s-app", "kube-dns"), "nodes-1", false);
        assert!(messages(&nodes, &pods).contains("pod \"coredns\" is not ready (c)"));
    }
}

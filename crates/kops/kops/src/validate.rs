//! Runs `kops validate cluster`: compares machines, Nodes and critical Pods with the specification.

use client::{Client, Resource};
use instances::{Fleet, FleetSpec};
use kops_api::Spec as _;
use kops_core::life;
use kops_local::{
    COMMAND_PERIOD, ClusterState, MachineProblem, Stage, check_cloud, fleet, list_objects,
    machine_problems,
};
use kops_store::Registry;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    document,
    environment::CommandEnvironment,
    error::Error,
    flags::{Connection, ValidateCluster},
    get, table,
};

/// The pause between two validations after an update.
const UPDATE_INTERVAL_SECONDS: i64 = 2;
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
    /// The problem, in upstream's words.
    pub(crate) message: String,
    /// The stage of the machine or the reason; empty if the message says all.
    pub(crate) cause: String,
    /// The group of the affected machines; `None` if all are affected.
    pub(crate) group: Option<String>,
}

impl Failure {
    /// Returns the problem with its cause.
    pub(crate) fn text(&self) -> String {
        match self.cause.as_str() {
            "" => self.message.clone(),
            cause => format!("{}: {cause}", self.message),
        }
    }
}

impl ValidateCluster {
    /// Returns the flags with which an update waits for the cluster.
    pub(crate) fn for_update() -> Self {
        Self {
            cluster: None,
            wait: Some(api_config::GoDuration::from_secs(600)),
            count: 1,
            interval: api_config::GoDuration::from_secs(UPDATE_INTERVAL_SECONDS),
            kubeconfig: None,
            api: Connection::default(),
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
    let file = command.kubeconfig.as_deref();
    let client = command.api.open(registry, &cluster, file, COMMAND_PERIOD, context)?;
    let until =
        Instant::now() + command.wait.map(api_config::GoDuration::to_std).unwrap_or_default();
    let mut times = 0;
    if command.output == "table" {
        writeln!(context.out, "Validating cluster {name}\n")?;
    }
    loop {
        let (nodes, failures) = validate_once(&client, &fleet, &spec).await;
        times = if failures.is_empty() { times + 1 } else { 0 };
        if times >= command.count.max(1) || (Instant::now() >= until && !failures.is_empty()) {
            let (nodes, failures) = (&nodes.nodes[..], &failures[..]);
            let report = Report { cluster: name, fleet: &spec, nodes, failures };
            return report.print(&command.output, context);
        }
        sleep(command.interval.to_std()).await;
    }
}

/// Returns the observed state and the failures.
pub(crate) async fn validate_once(
    client: &Client,
    fleet: &Fleet,
    spec: &FleetSpec,
) -> (ClusterState, Vec<Failure>) {
    let state = match ClusterState::observe(client, fleet, spec).await {
        Ok(state) => state,
        Err(error) => {
            return (ClusterState::default(), unreachable(fleet, spec, &error.to_string()));
        }
    };
    match list_objects(client, &Resource::PODS, "kube-system").await {
        Ok(pods) => {
            let mut failures = find_failures(spec, &state, &pods, &|name| Stage::of(fleet, name));
            add_problems(&mut failures, machine_problems(fleet, spec), spec);
            (state, failures)
        }
        Err(error) => (state, unreachable(fleet, spec, &error.to_string())),
    }
}

/// Returns the failure of a silent API, and those of control planes that cannot serve it yet.
fn unreachable(fleet: &Fleet, spec: &FleetSpec, cause: &str) -> Vec<Failure> {
    let api = Failure {
        kind: "API",
        name: spec.cluster.clone(),
        message: "the API server does not answer".to_owned(),
        cause: cause.to_owned(),
        group: None,
    };
    let mut failures = vec![api];
    for group in spec.groups.iter().filter(|group| group.trusted) {
        for name in group.names() {
            let stage = Stage::of(fleet, &name);
            if stage.is_before_kubelet() {
                failures.push(not_joined(name, group, stage.to_string()));
            }
        }
    }
    add_problems(&mut failures, machine_problems(fleet, spec), spec);
    failures
}

/// Adds the problems that machines have recorded on their disks. The problem of a machine that has not joined replaces
/// the last line of its log, which says the same.
fn add_problems(failures: &mut Vec<Failure>, problems: Vec<MachineProblem>, spec: &FleetSpec) {
    for MachineProblem { machine, message } in problems {
        let known = failures.iter_mut().find(|one| one.kind == "Machine" && one.name == machine);
        if let Some(known) = known {
            known.cause = message;
            continue;
        }
        failures.push(Failure {
            kind: "Machine",
            group: spec.group_of(&machine).map(|group| group.name.clone()),
            name: machine,
            message,
            cause: String::new(),
        });
    }
}

fn not_joined(name: String, group: &instances::Group, cause: String) -> Failure {
    let message = format!("machine {name:?} has not yet joined cluster");
    Failure { kind: "Machine", name, message, cause, group: Some(group.name.clone()) }
}

/// Compares the observed state with the wanted one. `stage` returns the stage of a machine that has not joined.
fn find_failures(
    spec: &FleetSpec,
    state: &ClusterState,
    pods: &[Value],
    stage: &dyn Fn(&str) -> Stage,
) -> Vec<Failure> {
    let mut failures = Vec::new();
    for group in &spec.groups {
        for name in group.names() {
            failures.extend(machine_failures(&name, group, state, pods, stage));
        }
    }
    let critical = pods.iter().filter(|pod| CRITICAL.contains(&pod.text("spec.priorityClassName")));
    failures.extend(critical.filter_map(|pod| pod_failure(pod, spec)));
    if !pods.iter().any(|pod| has_label(pod, "k8s-app", "kube-dns")) {
        failures.push(Failure {
            kind: "Pod",
            name: "kube-system/coredns".to_owned(),
            message: "no Pod of cluster DNS exists yet".to_owned(),
            cause: String::new(),
            group: None,
        });
    }
    failures
}

/// Returns the failures of a machine, of its Node and of its static Pods.
fn machine_failures(
    name: &str,
    group: &instances::Group,
    state: &ClusterState,
    pods: &[Value],
    stage: &dyn Fn(&str) -> Stage,
) -> Vec<Failure> {
    // A Node stays Ready for a while after its machine's end, when another machine may already have its name.
    let Some(node) = state.joined_node(name) else {
        return vec![not_joined(name.to_owned(), group, stage(name).to_string())];
    };
    let fail = |message: String, cause: String| Failure {
        kind: "Node",
        name: name.to_owned(),
        message,
        cause,
        group: Some(group.name.clone()),
    };
    let mut failures = Vec::new();
    if !life::readiness(node).0 {
        let message = format!("node {name:?} of role {:?} is not ready", role_name(group));
        failures.push(fail(message, condition_cause(node, "Ready")));
    }
    for component in COMPONENTS.iter().filter(|_| group.trusted) {
        let runs = pods
            .iter()
            .any(|pod| pod.text("spec.nodeName") == name && has_label(pod, "component", component));
        if !runs {
            let message = format!("control-plane node {name:?} is missing {component} pod");
            failures.push(fail(message, String::new()));
        }
    }
    failures
}

fn has_label(pod: &Value, key: &str, value: &str) -> bool {
    let labels = pod.at("metadata.labels");
    labels.and_then(|labels| labels.get(key)).and_then(Value::as_str) == Some(value)
}

/// Returns the reason and the message of a condition.
fn condition_cause(object: &Value, kind: &str) -> String {
    let mut conditions = object.list("status.conditions").iter();
    match conditions.find(|condition| condition.text("type") == kind) {
        Some(condition) => join(condition.text("reason"), condition.text("message")),
        None => format!("it has no condition {kind}"),
    }
}

fn join(reason: &str, message: &str) -> String {
    let parts: Vec<_> = [reason, message].into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(": ")
}

/// Returns the failure of a critical Pod that is not ready.
fn pod_failure(pod: &Value, spec: &FleetSpec) -> Option<Failure> {
    let (own, critical) = (pod.text("metadata.name"), pod.text("spec.priorityClassName"));
    let (message, cause) = match pod.text("status.phase") {
        "Succeeded" => return None,
        phase @ ("Pending" | "Unknown") => {
            let phase = phase.to_ascii_lowercase();
            (format!("{critical} pod {own:?} is {phase}"), pending_cause(pod))
        }
        _ => {
            // Check the containers: the Pod's condition also depends on the Node.
            let of = pod.list("status.containerStatuses").iter();
            let waiting: Vec<_> = of.filter(|container| !container.is("ready")).collect();
            if waiting.is_empty() {
                return None;
            }
            let names: Vec<_> = waiting.iter().map(|container| container.text("name")).collect();
            let causes: Vec<_> = waiting.into_iter().filter_map(container_cause).collect();
            let names = names.join(",");
            (format!("{critical} pod {own:?} is not ready ({names})"), causes.join("; "))
        }
    };
    Some(Failure {
        kind: "Pod",
        name: format!("kube-system/{own}"),
        message,
        cause,
        group: spec.group_of(pod.text("spec.nodeName")).map(|group| group.name.clone()),
    })
}

/// Returns the reason for which a Pod does not run: its placement, or a container.
fn pending_cause(pod: &Value) -> String {
    if pod.text("spec.nodeName").is_empty() {
        return condition_cause(pod, "PodScheduled");
    }
    let of = |list| pod.list(list).iter().filter(|container| !container.is("ready"));
    let all = of("status.initContainerStatuses").chain(of("status.containerStatuses"));
    all.filter_map(container_cause).collect::<Vec<_>>().join("; ")
}

/// Returns the reason for which a container waits or has ended.
fn container_cause(container: &Value) -> Option<String> {
    let reason = |state: &str| {
        let state = container.at(state).filter(|state| !state.is_null())?;
        let text = join(state.text("reason"), state.text("message"));
        let code = state.int("exitCode").map(|code| format!("exit code {code}"));
        let all: Vec<_> =
            [Some(text), code].into_iter().flatten().filter(|t| !t.is_empty()).collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    let now = reason("state.waiting").or_else(|| reason("state.terminated"));
    let before = reason("lastState.terminated").map(|last| format!("it ended before: {last}"));
    let all: Vec<_> = now.into_iter().chain(before).collect();
    (!all.is_empty()).then(|| format!("{}: {}", container.text("name"), all.join("; ")))
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
            _ => document::print(context.out, output, &self.to_tree())?,
        }
        match self.failures.len() {
            0 => Ok(()),
            count => Err(Error::Validation { cluster: self.cluster.to_owned(), count }),
        }
    }

    /// Returns the report with upstream's fields. Empty fields are omitted.
    fn to_tree(&self) -> Value {
        let object = |fields: &[(&str, &str)]| {
            let set = fields.iter().filter(|(_, value)| !value.is_empty());
            set.map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>()
        };
        let failure =
            |f: &Failure| object(&[("type", f.kind), ("name", &f.name), ("message", &f.text())]);
        let node = |node: &Value| {
            let label = |key: &str| {
                let labels = node.at("metadata.labels").and_then(|labels| labels.get(key));
                labels.and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let name = node.text("metadata.name");
            object(&[
                ("name", name),
                ("zone", &label("topology.kubernetes.io/zone")),
                ("role", self.fleet.group_of(name).map_or("", role_name)),
                ("hostname", &label("kubernetes.io/hostname")),
                ("status", ready_status(node)),
            ])
        };
        let mut tree = Map::new();
        if !self.failures.is_empty() {
            tree.insert("failures".to_owned(), self.failures.iter().map(failure).collect());
        }
        if !self.nodes.is_empty() {
            tree.insert("nodes".to_owned(), self.nodes.iter().map(node).collect());
        }
        tree.into()
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
        let row = |f: &Failure| [f.kind.to_owned(), f.name.clone(), f.text()];
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
                volumes: Vec::new(),
            };
            (name.to_owned(), machine)
        };
        let machines = [machine("cp-1", 0), machine("nodes-1", made)].into();
        ClusterState { nodes: nodes.to_vec(), leases: Vec::new(), machines }
    }

    fn node(name: &str, ready: &str) -> Value {
        json!({"metadata": {"name": name, "creationTimestamp": "2026-11-23T06:00:00Z"}, "status": {"conditions": [{"type": "Ready", "status": ready,
            "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}]}})
    }

    fn pod(name: &str, label: (&str, &str), node: &str, ready: bool) -> Value {
        json!({
            "metadata": {"name": name, "labels": {label.0: label.1}},
            "spec": {"nodeName": node, "priorityClassName": CRITICAL[0]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "ready": ready}]},
        })
    }

    fn stage(name: &str) -> Stage {
        let last = format!("windlass: no answer to {name}");
        Stage::Program(kops_local::LogLine { path: "/log".to_owned(), last })
    }

    #[test]
    fn prints_upstreams_documents_without_prose() {
        let mut ready = node("cp-1", "True");
        ready.set("metadata.labels", json!({"kubernetes.io/hostname": "cp-1"}));
        let failures = [not_joined("nodes-1".to_owned(), &spec().groups[1], "why".to_owned())];
        let spec = spec();
        let nodes = [ready];
        let mut report =
            Report { cluster: "a.local", fleet: &spec, nodes: &nodes, failures: &failures };
        let text = |report: &Report<'_>, output: &str| {
            let mut out = Vec::new();
            let environment = |_: &str| None;
            let now = std::time::SystemTime::UNIX_EPOCH;
            let mut context = CommandEnvironment { now, out: &mut out, environment: &environment };
            let result = report.print(output, &mut context);
            (String::from_utf8(out).unwrap(), result.is_ok())
        };
        let (json, valid) = text(&report, "json");
        let tree: Value = serde_json::from_str(&json).unwrap();
        let expected = json!({
            "failures": [{"type": "Machine", "name": "nodes-1",
                "message": "machine \"nodes-1\" has not yet joined cluster: why"}],
            "nodes": [{"name": "cp-1", "role": "control-plane", "hostname": "cp-1", "status": "True"}],
        });
        assert!(!valid && tree == expected, "{json}");
        report.failures = &[];
        let (yaml, valid) = text(&report, "yaml");
        assert!(valid && yaml.starts_with("nodes:\n- hostname: cp-1\n"), "{yaml}");
    }

    #[test]
    fn shows_the_recorded_problem_of_a_machine_once() {
        let problem = |machine: &str| MachineProblem {
            machine: machine.to_owned(),
            message: "nodeup failed: no etcd".to_owned(),
        };
        let mut failures =
            vec![not_joined("nodes-1".to_owned(), &spec().groups[1], "its log".to_owned())];
        add_problems(&mut failures, vec![problem("nodes-1"), problem("cp-1")], &spec());
        let texts: Vec<_> = failures.iter().map(Failure::text).collect();
        assert_eq!(
            texts,
            [
                "machine \"nodes-1\" has not yet joined cluster: nodeup failed: no etcd",
                "nodeup failed: no etcd",
            ]
        );
        assert_eq!(failures[1].group.as_deref(), Some("cp"));
    }

    #[test]
    fn names_the_cause_of_pods_that_do_not_run() {
        let cause = |status: Value, node: &str| {
            let mut pod = pod("a", ("b", "c"), node, true);
            pod.set("status", status);
            pod_failure(&pod, &spec()).map(|failure| failure.cause).unwrap_or_default()
        };
        let unplaced = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/1 nodes are available"}]});
        assert_eq!(cause(unplaced, ""), "Unschedulable: 0/1 nodes are available");
        let waiting = json!({"phase": "Pending", "containerStatuses": [
            {"name": "x", "state": {"waiting": {"reason": "ErrImagePull", "message": "no route"}}}]});
        assert_eq!(cause(waiting, "cp-1"), "x: ErrImagePull: no route");
        let crashed = json!({"phase": "Running", "containerStatuses": [
            {"name": "x", "ready": false, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
             "lastState": {"terminated": {"reason": "Error", "exitCode": 1}}}]});
        assert_eq!(
            cause(crashed, "cp-1"),
            "x: CrashLoopBackOff; it ended before: Error, exit code 1"
        );
        assert_eq!(cause(json!({"phase": "Running"}), "cp-1"), "");
    }

    #[test]
    fn names_each_failure() {
        let nodes = [node("cp-1", "True"), node("nodes-1", "True")];
        let mut pods: Vec<_> =
            COMPONENTS.iter().map(|c| pod(c, ("component", c), "cp-1", true)).collect();
        pods.push(pod("coredns", ("k8s-app", "kube-dns"), "nodes-1", true));
        assert_eq!(find_failures(&spec(), &seen(&nodes, 0), &pods, &stage), []);
        // Another machine has the name, and has shown no sign of life yet.
        let waiting = find_failures(&spec(), &seen(&nodes, 2_000_000_000), &pods, &stage);
        assert_eq!(waiting.iter().map(|f| f.group.as_deref()).collect::<Vec<_>>(), [Some("nodes")]);
        let messages = |nodes: &[Value], pods: &[Value]| {
            let all = find_failures(&spec(), &seen(nodes, 0), pods, &stage);
            all.iter().map(Failure::text).collect::<Vec<_>>().join("\n")
        };
        let text = messages(&nodes[..1], &pods);
        let expected = "machine \"nodes-1\" has not yet joined cluster: its program nodeup has not succeeded; /log ends \
                        with: windlass: no answer to nodes-1";
        assert!(text.contains(expected), "{text}");
        assert!(
            messages(&[nodes[0].clone(), node("nodes-1", "Unknown")], &pods)
                .contains("is not ready: NodeStatusUnknown: Kubelet stopped posting node status.")
        );
        assert!(messages(&nodes, &pods[1..]).contains("is missing kube-apiserver pod"));
        assert!(messages(&nodes, &pods[..3]).contains("cluster DNS"));
        pods[3] = pod("coredns", ("k8s-app", "kube-dns"), "nodes-1", false);
        assert!(messages(&nodes, &pods).contains("pod \"coredns\" is not ready (c)"));
    }
}

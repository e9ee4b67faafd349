//! Runs `kops validate cluster`: compares machines, Nodes and critical Pods with the specification, in any cloud.

use client::{Client, Resource};
use kops_api::{Object, Spec as _};
use kops_core::{CloudName, Cluster as _, life};
use kops_local::{COMMAND_PERIOD, MachineProblem, check_cloud, list_objects};
use kops_store::Registry;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    cloud::{Cloud, CloudState, GroupState, MachineState, aws::AwsCloud, local::LocalCloud},
    document,
    environment::CommandEnvironment,
    error::Error,
    flags::{Connection, ValidateCluster},
    get,
    kubeconfig::open_api,
    table,
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
    if cluster.cloud() == CloudName::Aws {
        let cloud = AwsCloud::new(&cluster, registry.groups(name)?, context)?;
        return validate(registry, command, &cluster, &cloud, context).await;
    }
    check_cloud(&cluster)?;
    let cloud = LocalCloud::new(registry, name, true);
    cloud.check_exists(name)?;
    validate(registry, command, &cluster, &cloud, context).await
}

async fn validate<C: Cloud>(
    registry: &Registry,
    command: &ValidateCluster,
    cluster: &Object,
    cloud: &C,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let (name, file) = (cluster.name(), command.kubeconfig.as_deref());
    let client = open_api(registry, cluster, &command.api, file, COMMAND_PERIOD, context)?;
    let until =
        Instant::now() + command.wait.map(api_config::GoDuration::to_std).unwrap_or_default();
    let mut times = 0;
    if command.output == "table" {
        writeln!(context.out, "Validating cluster {name}\n")?;
    }
    loop {
        let Validation { state, failures } = validate_once(&client, cloud).await?;
        times = if failures.is_empty() { times + 1 } else { 0 };
        if times >= command.count.max(1) || (Instant::now() >= until && !failures.is_empty()) {
            let report = Report { cluster: name, state: &state, failures: &failures };
            return report.print(&command.output, context);
        }
        sleep(command.interval.to_std()).await;
    }
}

/// The observed state of a cluster, with the failed checks.
pub(crate) struct Validation {
    pub(crate) state: CloudState,
    pub(crate) failures: Vec<Failure>,
}

/// Observes a cluster and checks it. A silent API is a failure; a cloud that does not answer is an error.
pub(crate) async fn validate_once<C: Cloud>(
    client: &Client,
    cloud: &C,
) -> Result<Validation, Error> {
    let observed = match cloud.observe(Some(client)).await {
        Ok(state) => match list_objects(client, &Resource::PODS, "kube-system").await {
            Ok(pods) => Ok((state, pods)),
            Err(error) => Err(error),
        },
        Err(Error::Unreachable(error)) => Err(error),
        Err(error) => return Err(error),
    };
    let (state, mut failures) = match observed {
        Ok((state, pods)) => {
            let failures = find_failures(&state, &pods, C::HAS_DNS);
            (state, failures)
        }
        Err(error) => {
            let state = cloud.observe(None).await?;
            let failures = unreachable(&state, &error.to_string());
            (state, failures)
        }
    };
    add_problems(&mut failures, cloud.problems()?, &state);
    Ok(Validation { state, failures })
}

/// Returns the failure of a silent API, and those of control planes that cannot serve it yet.
fn unreachable(state: &CloudState, cause: &str) -> Vec<Failure> {
    let api = Failure {
        kind: "API",
        name: "kube-apiserver".to_owned(),
        message: "the API server does not answer".to_owned(),
        cause: cause.to_owned(),
        group: None,
    };
    let mut failures = vec![api];
    failures.extend(group_failures(state));
    for group in state.groups.iter().filter(|group| group.is_control_plane()) {
        let starting = group.machines.iter().filter(|machine| machine.is_starting);
        failures.extend(starting.map(|machine| not_joined(machine, group)));
    }
    failures
}

/// Adds the problems that machines have recorded on their disks. The problem of a machine that has not joined replaces
/// the last line of its log, which says the same.
fn add_problems(failures: &mut Vec<Failure>, problems: Vec<MachineProblem>, state: &CloudState) {
    for MachineProblem { machine, message } in problems {
        let known = failures.iter_mut().find(|one| one.kind == "Machine" && one.name == machine);
        if let Some(known) = known {
            known.cause = message;
            continue;
        }
        failures.push(Failure {
            kind: "Machine",
            group: state.group_of_node(&machine).map(|group| group.name.clone()),
            name: machine,
            message,
            cause: String::new(),
        });
    }
}

fn not_joined(machine: &MachineState, group: &GroupState) -> Failure {
    Failure {
        kind: "Machine",
        name: machine.name.clone(),
        message: format!("machine {:?} has not yet joined cluster", machine.name),
        cause: machine.cause.clone(),
        group: Some(group.name.clone()),
    }
}

/// Compares the observed state with the wanted one. `has_dns` is [`Cloud::HAS_DNS`].
fn find_failures(state: &CloudState, pods: &[Value], has_dns: bool) -> Vec<Failure> {
    let mut failures = group_failures(state);
    for group in state.groups.iter().filter(|group| !group.is_bastion()) {
        for machine in &group.machines {
            failures.extend(machine_failures(machine, group, pods));
        }
    }
    let critical = pods.iter().filter(|pod| CRITICAL.contains(&pod.text("spec.priorityClassName")));
    failures.extend(critical.filter_map(|pod| pod_failure(pod, state)));
    if has_dns && !pods.iter().any(|pod| has_label(pod, "k8s-app", "kube-dns")) {
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

/// Returns the failures of groups that the cloud does not have, or with too few machines.
fn group_failures(state: &CloudState) -> Vec<Failure> {
    let fail = |name: &String, message: String| Failure {
        kind: "InstanceGroup",
        name: name.clone(),
        message,
        cause: String::new(),
        group: Some(name.clone()),
    };
    let missing = state.missing.iter().map(|name| {
        fail(name, format!("InstanceGroup {name:?} is missing from the cloud provider"))
    });
    let small = state.groups.iter().filter_map(|group| {
        let (name, target) = (&group.name, group.target);
        let members = group.machines.iter().filter(|machine| !machine.detached).count();
        let message =
            format!("InstanceGroup {name:?} did not have enough nodes {members} vs {target}");
        (members < target).then(|| fail(name, message))
    });
    missing.chain(small).collect()
}

/// Returns the failures of a machine, of its Node and of its static Pods.
fn machine_failures(machine: &MachineState, group: &GroupState, pods: &[Value]) -> Vec<Failure> {
    let Some(node) = &machine.node else {
        return vec![not_joined(machine, group)];
    };
    let name = node.text("metadata.name");
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
    for component in COMPONENTS.iter().filter(|_| group.is_control_plane()) {
        // Upstream's manifests have the label k8s-app.
        let runs = pods.iter().any(|pod| {
            pod.text("spec.nodeName") == name
                && ["component", "k8s-app"].iter().any(|label| has_label(pod, label, component))
        });
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
fn pod_failure(pod: &Value, state: &CloudState) -> Option<Failure> {
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
        group: state.group_of_node(pod.text("spec.nodeName")).map(|group| group.name.clone()),
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

/// Returns upstream's word for the role of Nodes.
fn role_name(group: &GroupState) -> &'static str {
    match group.role.as_str() {
        "ControlPlane" => "control-plane",
        "APIServer" => "apiserver",
        _ => "node",
    }
}

/// The result of a validation.
struct Report<'a> {
    cluster: &'a str,
    state: &'a CloudState,
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
                ("role", self.state.group_of_node(name).map_or("", role_name)),
                ("hostname", &label("kubernetes.io/hostname")),
                ("status", ready_status(node)),
            ])
        };
        let mut tree = Map::new();
        if !self.failures.is_empty() {
            tree.insert("failures".to_owned(), self.failures.iter().map(failure).collect());
        }
        if !self.state.nodes.is_empty() {
            tree.insert("nodes".to_owned(), self.state.nodes.iter().map(node).collect());
        }
        tree.into()
    }

    fn print_tables(&self, context: &mut CommandEnvironment<'_>) -> Result<(), Error> {
        writeln!(context.out, "INSTANCE GROUPS")?;
        let groups = &self.state.groups;
        let size = |group: &GroupState| [group.min.to_string(), group.max.to_string()];
        if groups.iter().any(|group| !group.machine_type.is_empty()) {
            let row = |group: &GroupState| {
                let ([min, max], kind) = (size(group), group.machine_type.clone());
                [group.name.clone(), group.role.clone(), kind, min, max, group.subnets.clone()]
            };
            let header = ["NAME", "ROLE", "MACHINETYPE", "MIN", "MAX", "SUBNETS"];
            table::print(context.out, header, groups.iter().map(row).collect())?;
        } else {
            let row = |group: &GroupState| {
                let [min, max] = size(group);
                [group.name.clone(), group.role.clone(), min, max]
            };
            let header = ["NAME", "ROLE", "MIN", "MAX"];
            table::print(context.out, header, groups.iter().map(row).collect())?;
        }
        writeln!(context.out, "\nNODE STATUS")?;
        let row = |node: &Value| {
            let name = node.text("metadata.name");
            let role = self.state.group_of_node(name).map_or("", role_name);
            [name.to_owned(), role.to_owned(), ready_status(node).to_owned()]
        };
        let rows = self.state.nodes.iter().map(row).collect();
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

    /// Returns a cluster of a control plane and a worker, with their Nodes.
    fn seen(nodes: &[Value]) -> CloudState {
        let group = |name: &str, role: &str| {
            let machine = format!("{name}-1");
            let node = nodes.iter().find(|node| node.text("metadata.name") == machine).cloned();
            let machine = MachineState {
                cause: "why".to_owned(),
                id: machine.clone(),
                name: machine,
                node,
                ..MachineState::default()
            };
            GroupState {
                name: name.to_owned(),
                role: role.to_owned(),
                target: 1,
                machines: vec![machine],
                ..GroupState::default()
            }
        };
        let groups = vec![group("cp", "ControlPlane"), group("nodes", "Node")];
        CloudState { groups, missing: Vec::new(), nodes: nodes.to_vec() }
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

    #[test]
    fn prints_upstreams_documents_without_prose() {
        let mut ready = node("cp-1", "True");
        ready.set("metadata.labels", json!({"kubernetes.io/hostname": "cp-1"}));
        let state = seen(&[ready]);
        let failures = [not_joined(&state.groups[1].machines[0], &state.groups[1])];
        let mut report = Report { cluster: "a.local", state: &state, failures: &failures };
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
        let state = seen(&[]);
        let mut failures = vec![not_joined(&state.groups[1].machines[0], &state.groups[1])];
        add_problems(&mut failures, vec![problem("nodes-1"), problem("cp-1")], &state);
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
            pod_failure(&pod, &seen(&[])).map(|failure| failure.cause).unwrap_or_default()
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
        assert_eq!(find_failures(&seen(&nodes), &pods, true), []);
        let waiting = find_failures(&seen(&nodes[..1]), &pods, true);
        assert_eq!(waiting.iter().map(|f| f.group.as_deref()).collect::<Vec<_>>(), [Some("nodes")]);
        let messages = |nodes: &[Value], pods: &[Value]| {
            let all = find_failures(&seen(nodes), pods, true);
            all.iter().map(Failure::text).collect::<Vec<_>>().join("\n")
        };
        let text = messages(&nodes[..1], &pods);
        assert!(text.contains("machine \"nodes-1\" has not yet joined cluster: why"), "{text}");
        assert!(
            messages(&[nodes[0].clone(), node("nodes-1", "Unknown")], &pods)
                .contains("is not ready: NodeStatusUnknown: Kubelet stopped posting node status.")
        );
        assert!(messages(&nodes, &pods[1..]).contains("is missing kube-apiserver pod"));
        assert!(messages(&nodes, &pods[..3]).contains("cluster DNS"));
        pods[3] = pod("coredns", ("k8s-app", "kube-dns"), "nodes-1", false);
        assert!(messages(&nodes, &pods).contains("pod \"coredns\" is not ready (c)"));
    }
    #[test]
    fn names_groups_that_are_missing_or_too_small() {
        let mut state = seen(&[]);
        state.missing = vec!["x".to_owned()];
        state.groups[1].target = 2;
        state.groups[1].machines[0].detached = true;
        state.groups[0].role = "Bastion".to_owned();
        let failures = group_failures(&state);
        let texts: Vec<_> = failures.iter().map(Failure::text).collect();
        assert_eq!(
            texts,
            [
                "InstanceGroup \"x\" is missing from the cloud provider",
                "InstanceGroup \"nodes\" did not have enough nodes 0 vs 2",
            ]
        );
        // A bastion is no Node.
        assert!(!find_failures(&state, &[], true).iter().any(|one| one.name == "cp-1"));
        let silent = unreachable(&state, "refused");
        assert_eq!((silent[0].kind, silent.len()), ("API", 3));
    }
}

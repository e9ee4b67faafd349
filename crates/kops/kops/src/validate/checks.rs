//! The checks of a validation: which groups, machines, Nodes and critical Pods are not as specified, and why.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use kops_core::life;
use kops_local::MachineProblem;
use serde_json::Value;

use crate::{
    cloud::{CloudState, GroupState, MachineState},
    role::role_word,
};

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

/// Returns the failure of a silent API, and those of control planes that cannot serve it yet.
pub(super) fn unreachable(state: &CloudState, cause: &str) -> Vec<Failure> {
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
pub(super) fn add_problems(
    failures: &mut Vec<Failure>,
    problems: Vec<MachineProblem>,
    state: &CloudState,
) {
    let groups = state.groups_by_node();
    for MachineProblem { machine, message } in problems {
        let known = failures.iter_mut().find(|one| one.kind == "Machine" && one.name == machine);
        if let Some(known) = known {
            known.cause = message;
            continue;
        }
        failures.push(Failure {
            kind: "Machine",
            group: groups.get(machine.as_str()).map(|group| group.name.clone()),
            name: machine,
            message,
            cause: String::new(),
        });
    }
}

pub(super) fn not_joined(machine: &MachineState, group: &GroupState) -> Failure {
    Failure {
        kind: "Machine",
        name: machine.name.clone(),
        message: format!("machine {:?} has not yet joined cluster", machine.name),
        cause: machine.cause.clone(),
        group: Some(group.name.clone()),
    }
}

/// Compares the observed state with the wanted one. `has_dns` is [`Observe::HAS_DNS`](crate::cloud::Observe::HAS_DNS).
pub(super) fn find_failures(state: &CloudState, pods: &[Value], has_dns: bool) -> Vec<Failure> {
    let mut failures = group_failures(state);
    for group in state.groups.iter().filter(|group| !group.is_bastion()) {
        for machine in &group.machines {
            failures.extend(machine_failures(machine, group, pods));
        }
    }
    let critical = pods.iter().filter(|pod| CRITICAL.contains(&pod.text("spec.priorityClassName")));
    let groups = state.groups_by_node();
    failures.extend(critical.filter_map(|pod| pod_failure(pod, &groups)));
    if has_dns && !pods.iter().any(|pod| label(pod, "k8s-app") == "kube-dns") {
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
        let message = format!("node {name:?} of role {:?} is not ready", role_word(&group.role));
        failures.push(fail(message, condition_cause(node, "Ready")));
    }
    for component in COMPONENTS.iter().filter(|_| group.is_control_plane()) {
        // Upstream's manifests have the label k8s-app.
        let runs = pods.iter().any(|pod| {
            pod.text("spec.nodeName") == name
                && ["component", "k8s-app"].iter().any(|key| label(pod, key) == *component)
        });
        if !runs {
            let message = format!("control-plane node {name:?} is missing {component} pod");
            failures.push(fail(message, String::new()));
        }
    }
    failures
}

/// Returns the value of a label; empty if the object does not have it.
pub(super) fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object.text(&["metadata", "labels", key])
}

/// Returns the reason and the message of a condition.
fn condition_cause(object: &Value, kind: &str) -> String {
    let mut conditions = object.items("status.conditions").iter();
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
fn pod_failure(pod: &Value, groups: &BTreeMap<&str, &GroupState>) -> Option<Failure> {
    let (own, critical) = (pod.text("metadata.name"), pod.text("spec.priorityClassName"));
    let (message, cause) = match pod.text("status.phase") {
        "Succeeded" => return None,
        phase @ ("Pending" | "Unknown") => {
            let phase = phase.to_ascii_lowercase();
            (format!("{critical} pod {own:?} is {phase}"), pending_cause(pod))
        }
        _ => {
            // Check the containers: the Pod's condition also depends on the Node.
            let of = pod.items("status.containerStatuses").iter();
            let waiting: Vec<_> = of.filter(|container| !container.flag("ready")).collect();
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
        group: groups.get(pod.text("spec.nodeName")).map(|group| group.name.clone()),
    })
}

/// Returns the reason for which a Pod does not run: its placement, or a container.
fn pending_cause(pod: &Value) -> String {
    if pod.text("spec.nodeName").is_empty() {
        return condition_cause(pod, "PodScheduled");
    }
    let of = |list| pod.items(list).iter().filter(|container| !container.flag("ready"));
    let all = of("status.initContainerStatuses").chain(of("status.containerStatuses"));
    all.filter_map(container_cause).collect::<Vec<_>>().join("; ")
}

/// Returns the reason for which a container waits or has ended.
fn container_cause(container: &Value) -> Option<String> {
    let reason = |state: &str| {
        let state = container.opt_at(state)?;
        let text = join(state.text("reason"), state.text("message"));
        let code = state.opt_int("exitCode").map(|code| format!("exit code {code}"));
        let all: Vec<_> =
            [Some(text), code].into_iter().flatten().filter(|t| !t.is_empty()).collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    let now = reason("state.waiting").or_else(|| reason("state.terminated"));
    let before = reason("lastState.terminated").map(|last| format!("it ended before: {last}"));
    let all: Vec<_> = now.into_iter().chain(before).collect();
    (!all.is_empty()).then(|| format!("{}: {}", container.text("name"), all.join("; ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::fixtures::{node, seen},
        *,
    };

    fn pod(name: &str, label: (&str, &str), node: &str, ready: bool) -> Value {
        json!({
            "metadata": {"name": name, "labels": {label.0: label.1}},
            "spec": {"nodeName": node, "priorityClassName": CRITICAL[0]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "ready": ready}]},
        })
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
            pod.put("status", status);
            pod_failure(&pod, &seen(&[]).groups_by_node())
                .map(|failure| failure.cause)
                .unwrap_or_default()
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

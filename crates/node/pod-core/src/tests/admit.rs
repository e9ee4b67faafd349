//! Tests of kubelet admission.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::api::resource::Quantity};
use serde_json::{Value, json};

use super::steps::pod;
use crate::admit::{NodeView, admit};

fn spec(more: Value) -> Value {
    let mut spec = json!({ "containers": [{ "name": "c", "image": "i" }] });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

fn asking(cpu: &str, memory: &str) -> Value {
    let requests = json!({ "cpu": cpu, "memory": memory });
    json!({ "containers": [{ "name": "c", "resources": { "requests": requests } }] })
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn refuses_pods_as_upstream() {
    let amounts = [("cpu", "2"), ("memory", "1Gi"), ("pods", "3"), ("hugepages-2Mi", "4Mi")];
    let allocatable: BTreeMap<_, _> =
        amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into();
    let labels = BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]);
    let taints =
        [Taint { key: "out".to_owned(), effect: "NoExecute".to_owned(), ..Taint::default() }];
    let allowed = ["kernel.msg*".to_owned()];
    let node = NodeView {
        name: "n1",
        labels: Some(&labels),
        allocatable,
        unsafe_sysctls: &allowed,
        ..NodeView::default()
    };
    let tainted = NodeView { taints: &taints, ..node.clone() };
    let short = NodeView { pressures: &["MemoryPressure"], ..node.clone() };
    let full = NodeView { pressures: &["DiskPressure"], ..node.clone() };
    let affinity = |operator: &str, values: Value| {
        let term = json!({ "matchExpressions": [{ "key": "disk", "operator": operator, "values": values }] });
        let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
        spec(json!({ "affinity": { "nodeAffinity": required } }))
    };
    let sysctl = |name: &str| json!({ "sysctls": [{ "name": name, "value": "1" }] });
    let huge = |size: &str, bytes: &str| {
        let limits = json!({ format!("hugepages-{size}"): bytes });
        json!({ "containers": [{ "name": "c", "resources": { "limits": limits } }] })
    };
    let port = |ip: &str| json!({ "containers": [{ "name": "c", "ports": [{ "containerPort": 1, "hostPort": 80, "hostIP": ip }] }] });
    let other = pod(json!({ "containers": [{ "name": "c",
        "resources": { "requests": { "cpu": "1500m", "memory": "1Mi" } },
        "ports": [{ "containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.1" }] }] }));
    for (node, spec, refusal) in [
        (&node, asking("500m", "1Mi"), ""),
        (&node, huge("2Mi", "4Mi"), ""),
        (
            &node,
            huge("2Mi", "6Mi"),
            "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 0, capacity: 4194304",
        ),
        (
            &node,
            huge("1Gi", "1Gi"),
            "OutOfhugepages-1Gi: Node didn't have enough resource: hugepages-1Gi, requested: 1073741824, used: 0, capacity: 0",
        ),
        (
            &node,
            asking("501m", "1Mi"),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000",
        ),
        (
            &node,
            asking("1m", "1Gi"),
            "OutOfmemory: Node didn't have enough resource: memory, requested: 1073741824, used: 1048576, capacity: 1073741824",
        ),
        (
            &node,
            {
                let mut spec = asking("3", "1Mi");
                spec["priority"] = json!(2_000_000_000);
                spec
            },
            "",
        ),
        (&node, spec(json!({ "nodeSelector": { "disk": "ssd" } })), ""),
        (
            &node,
            spec(json!({ "nodeSelector": { "disk": "hdd" } })),
            "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (&node, affinity("In", json!(["hdd", "ssd"])), ""),
        (
            &node,
            affinity("NotIn", json!(["ssd"])),
            "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            &node,
            affinity("Gt", json!(["1"])),
            "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (&node, spec(json!({ "securityContext": sysctl("kernel.msgmax") })), ""),
        (
            &node,
            spec(json!({ "securityContext": sysctl("vm/swappiness") })),
            "SysctlForbidden: forbidden sysctl: \"vm.swappiness\" not allowlisted",
        ),
        (
            &node,
            spec(json!({ "hostNetwork": true, "securityContext": sysctl("net.ipv4.tcp_rmem") })),
            "SysctlForbidden: forbidden sysctl: \"net.ipv4.tcp_rmem\" not allowed with host net enabled",
        ),
        (
            &node,
            port(""),
            "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ),
        (&node, port("10.0.0.2"), ""),
        (
            &tainted,
            spec(json!({})),
            "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        ),
        (&tainted, spec(json!({ "tolerations": [{ "operator": "Exists" }] })), ""),
        (&short, spec(json!({})), "Evicted: The node had condition: [MemoryPressure]. "),
        (
            &short,
            spec(
                json!({ "tolerations": [{ "key": "node.kubernetes.io/memory-pressure", "operator": "Exists" }] }),
            ),
            "",
        ),
        (&short, asking("1m", "1Mi"), ""),
        (&full, asking("1m", "1Mi"), "Evicted: The node had condition: [DiskPressure]. "),
    ] {
        let said = admit(&pod(spec.clone()), node, [&other].into_iter());
        let said = said.map_or_else(|r| format!("{}: {}", r.reason, r.message), |()| String::new());
        assert_eq!(said, refusal, "{spec}");
    }
    let many = vec![pod(spec(json!({}))); 3];
    let said = admit(&pod(spec(json!({}))), &node, many.iter()).unwrap_err();
    assert_eq!(said.reason, "OutOfpods");
}

#[test]
fn admits_pod_if_labels_and_amounts_are_unknown() {
    let allocatable = BTreeMap::new();
    let node = NodeView { allocatable, ..NodeView::default() };
    let picky = pod(spec(json!({ "nodeSelector": { "disk": "ssd" } })));
    assert_eq!(admit(&picky, &node, std::iter::empty()), Ok(()));
}

#[test]
fn rejects_pod_for_another_operating_system() {
    let node = NodeView::default();
    let windows = "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS";
    let label = "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
    for (os, labelled, refusal) in [
        (None, None, ""),
        (Some("linux"), Some("linux"), ""),
        (Some("windows"), None, windows),
        (Some(""), None, windows),
        (None, Some("windows"), label),
    ] {
        let mut one = pod(spec(json!({ "os": os.map(|name| json!({ "name": name })) })));
        one.metadata.labels = labelled
            .map(|name: &str| BTreeMap::from([("kubernetes.io/os".to_owned(), name.to_owned())]));
        // Static and critical Pods are rejected, too.
        one.spec.as_mut().unwrap().priority = Some(2_000_000_000);
        let said = admit(&one, &node, std::iter::empty());
        let said = said.map_or_else(|r| format!("{}: {}", r.reason, r.message), |()| String::new());
        assert_eq!(said, refusal, "{os:?} {labelled:?}");
    }
}

#[test]
fn rejects_app_armor_profile_on_kernel_without_it() {
    let without = NodeView::default();
    let with = NodeView { app_armor: true, ..NodeView::default() };
    let of_pod =
        |kind: &str| spec(json!({ "securityContext": { "appArmorProfile": { "type": kind } } }));
    let of_container = json!({ "initContainers": [{ "name": "i", "securityContext": {
        "appArmorProfile": { "type": "Localhost", "localhostProfile": "p" } } }] });
    for (spec, refused) in [
        (spec(json!({})), false),
        (of_pod("Unconfined"), false),
        (of_pod("RuntimeDefault"), true),
        (spec(of_container), true),
    ] {
        let said = admit(&pod(spec.clone()), &without, std::iter::empty());
        let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        let said = said.map_err(|refusal| (refusal.reason, refusal.message));
        let expected = Err(("AppArmor".to_owned(), message.to_owned()));
        assert_eq!(said, if refused { expected } else { Ok(()) }, "{spec}");
        assert_eq!(admit(&pod(spec), &with, std::iter::empty()), Ok(()));
    }
}

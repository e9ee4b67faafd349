//! The suggested and mandatory configuration that a server ensures at the start.

use std::{borrow::Cow, sync::LazyLock};

use api_meta::{GroupResource, Objects, Tree as _};
use serde_json::{Value, json};

/// The resource of FlowSchemas, which classify requests.
pub const FLOW_SCHEMAS: GroupResource =
    GroupResource { group: Cow::Borrowed(GROUP), resource: Cow::Borrowed("flowschemas") };
/// The resource of PriorityLevelConfigurations, which limit concurrent and queued requests.
pub const PRIORITY_LEVELS: GroupResource = GroupResource {
    group: Cow::Borrowed(GROUP),
    resource: Cow::Borrowed("prioritylevelconfigurations"),
};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// The objects that a server cannot work without. Changes by an administrator are reverted.
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

/// A write that brings an object of the configuration up to date.
#[derive(Clone, Debug, PartialEq)]
pub enum Ensure {
    Create(Value),
    Update(Value),
}

/// Returns the bootstrap objects: priority levels, then the schemas that refer to them.
pub fn bootstrap_objects() -> &'static [(GroupResource, Value)] {
    static OBJECTS: LazyLock<Vec<(GroupResource, Value)>> = LazyLock::new(|| {
        let levels = levels().into_iter().map(|object| (PRIORITY_LEVELS, object));
        levels.chain(schemas().into_iter().map(|object| (FLOW_SCHEMAS, object))).collect()
    });
    &OBJECTS
}

/// Compares the cluster with the bootstrap configuration and returns the necessary writes. Objects whose annotation
/// `apf.kubernetes.io/autoupdate-spec` is not `true` are left to the administrator, except mandatory ones.
pub fn ensure_bootstrap(existing: &dyn Objects) -> Vec<(GroupResource, Ensure)> {
    let needed = |(resource, wanted): &(GroupResource, Value)| {
        let name = wanted.name();
        let Some(found) = existing.get(resource, "", name) else {
            return Some(Ensure::Create(wanted.clone()));
        };
        let ours = found.text(&["metadata", "annotations", AUTOUPDATE]) == "true"
            || MANDATORY.contains(&name);
        if !ours || found["spec"] == wanted["spec"] {
            return None;
        }
        let mut updated = (*found).clone();
        updated.put(&["spec"], wanted["spec"].clone());
        Some(Ensure::Update(updated))
    };
    bootstrap_objects().iter().filter_map(|entry| Some((entry.0.clone(), needed(entry)?))).collect()
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": kind,
        "metadata": {"name": name, "annotations": {AUTOUPDATE: "true"}},
        "spec": spec
    })
}

fn levels() -> Vec<Value> {
    let level = |name, spec| object("PriorityLevelConfiguration", name, spec);
    let limited = |name, shares: u32, lendable: u32, response: Value| {
        let limited = json!({
            "nominalConcurrencyShares": shares,
            "lendablePercent": lendable,
            "limitResponse": response,
        });
        level(name, json!({"type": "Limited", "limited": limited}))
    };
    let queue = |queues: u32, hand: u32| {
        json!({
            "type": "Queue",
            "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50},
        })
    };
    vec![
        level(
            "exempt",
            json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}),
        ),
        limited("catch-all", 5, 0, json!({"type": "Reject"})),
        limited("system", 30, 33, queue(64, 6)),
        limited("node-high", 40, 25, queue(64, 6)),
        limited("leader-election", 10, 0, queue(16, 4)),
        limited("workload-high", 40, 50, queue(128, 6)),
        limited("workload-low", 100, 90, queue(128, 6)),
        limited("global-default", 20, 50, queue(128, 6)),
    ]
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "group": {"name": name}})
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

/// Returns rules for all requests of subjects.
fn everything(subjects: Value) -> Value {
    json!([{
        "subjects": subjects,
        "resourceRules": [{
            "verbs": ["*"],
            "apiGroups": ["*"],
            "resources": ["*"],
            "namespaces": ["*"],
            "clusterScope": true,
        }],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }])
}

fn leases(verbs: Value) -> Value {
    json!({
        "verbs": verbs,
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "namespaces": ["*"],
    })
}

/// Builds a FlowSchema. `distinguisher` is empty for none.
fn schema(name: &str, level: &str, precedence: u32, distinguisher: &str, rules: Value) -> Value {
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level},
        "matchingPrecedence": precedence,
        "rules": rules,
    });
    if !distinguisher.is_empty() {
        spec.put(&["distinguisherMethod"], json!({"type": distinguisher}));
    }
    object("FlowSchema", name, spec)
}

fn schemas() -> Vec<Value> {
    let everybody = json!([group("system:unauthenticated"), group("system:authenticated")]);
    let kube_system = json!({
        "kind": "ServiceAccount",
        "serviceAccount": {"name": "*", "namespace": "kube-system"},
    });
    let nodes = json!({
        "verbs": ["*"],
        "apiGroups": [""],
        "resources": ["nodes", "nodes/status"],
        "namespaces": ["*"],
        "clusterScope": true,
    });
    let leaders =
        json!([user("system:kube-controller-manager"), user("system:kube-scheduler"), kube_system]);
    let probes = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]});
    vec![
        schema("exempt", "exempt", 1, "", everything(json!([group("system:masters")]))),
        schema(
            "probes",
            "exempt",
            2,
            "",
            json!([{"subjects": everybody, "nonResourceRules": [probes]}]),
        ),
        schema(
            "system-leader-election",
            "leader-election",
            100,
            "ByUser",
            json!([{"subjects": leaders, "resourceRules": [leases(json!(["get", "create", "update"]))]}]),
        ),
        schema(
            "system-node-high",
            "node-high",
            400,
            "ByUser",
            json!([{"subjects": [group("system:nodes")], "resourceRules": [nodes, leases(json!(["*"]))]}]),
        ),
        schema("system-nodes", "system", 500, "ByUser", everything(json!([group("system:nodes")]))),
        schema(
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            everything(json!([user("system:kube-controller-manager")])),
        ),
        schema(
            "kube-scheduler",
            "workload-high",
            800,
            "ByNamespace",
            everything(json!([user("system:kube-scheduler")])),
        ),
        schema(
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            everything(json!([kube_system])),
        ),
        schema(
            "service-accounts",
            "workload-low",
            9000,
            "ByUser",
            everything(json!([group("system:serviceaccounts")])),
        ),
        schema("global-default", "global-default", 9900, "ByUser", everything(everybody.clone())),
        schema("catch-all", "catch-all", 10000, "ByUser", everything(everybody.clone())),
    ]
}

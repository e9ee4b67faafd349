//! Tests the core with examples from upstream's documentation, and against a naive evaluation without indexes.

mod devices;
mod extenders;
mod gangs;
mod naive;
mod profiles;
mod scenes;
mod volumes;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{Core, Decision, Node, Pod, SpreaderKey};

fn node(name: &str, cpu: &str, extra: Value) -> Node {
    let mut out = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}},
    });
    merge(&mut out, extra);
    serde_json::from_value(out).unwrap()
}

fn pod(name: &str, cpu: &str, extra: Value) -> Arc<Pod> {
    let mut out = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"image": "app", "resources": {"requests": {"cpu": cpu}}}]},
    });
    merge(&mut out, extra);
    Arc::new(serde_json::from_value(out).unwrap())
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn core(nodes: impl IntoIterator<Item = Node>) -> Core {
    let mut core = Core::new(crate::Config::default());
    nodes.into_iter().for_each(|node| core.set_node(node, 0));
    core
}

#[test]
fn pod_that_causes_panic_does_not_block_others() {
    let machine = || node("n", "3", json!({}));
    let mut before = core([machine()]);
    before.set_pod(pod("first", "1", json!({})), 0);
    let bound = |decision| match decision {
        Some(Decision::Bind { pod, .. }) => Some(pod.id.name.to_string()),
        _ => None,
    };
    assert_eq!(bound(before.next(0)).as_deref(), Some("first"));
    let (hostile, other) = (pod("hostile", "1", json!({})), pod("other", "2", json!({})));
    let mut now = 0;
    for wait in [1000, 2000, 4000, 8000, 10_000, 10_000] {
        before.current = Some(hostile.clone());
        let mut after = before.restart(now);
        after.set_node(machine(), now);
        // The binding of the first Pod is not visible yet, but its resources count as used.
        after.set_pod(pod("first", "1", json!({})), now);
        after.set_pod(hostile.clone(), now);
        after.set_pod(other.clone(), now);
        assert_eq!(bound(after.next(now)).as_deref(), Some("other"));
        assert!(after.next(now + wait - 1).is_none(), "the hostile Pod waits for {wait} ms");
        now += wait;
        // No node has room for it.
        assert!(matches!(after.next(now), Some(Decision::Unschedulable(_))));
        before = before.restart(now);
    }
}

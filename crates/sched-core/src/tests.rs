//! The core against scenes from upstream's documentation, and against a naive evaluation that keeps no index.

mod naive;
mod scenes;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{Core, Node, Pod};

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

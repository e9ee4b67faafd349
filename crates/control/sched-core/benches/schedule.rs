//! Measures the number of Pods per second that the core places on 5,000 nodes: `cargo bench -p sched-core`.

use std::{sync::Arc, time::Instant};

use sched_core::{Config, Core, Decision, Node, Pod, SpreaderKey};
use serde_json::{Value, json};

const NODES: usize = 5000;
const PODS: usize = 5000;

fn node(number: usize) -> Node {
    let name = format!("node-{number}");
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("zone-{}", number % 5)}},
        "status": {"allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"},
            "images": [{"names": ["app:1"], "sizeBytes": 100_000_000}]},
    }))
    .expect("a node")
}

fn pod(number: usize, extra: &Value) -> Arc<Pod> {
    let mut spec = json!({"containers": [{"image": "app:1", "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}}]});
    for (key, value) in extra.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let view = json!({
        "metadata": {"name": format!("pod-{number}"), "namespace": "default", "uid": format!("uid-{number}"),
            "labels": {"app": "web"}},
        "spec": spec,
    });
    Arc::new(serde_json::from_value(view).expect("a pod"))
}

fn run(name: &str, service: bool, extra: Value) {
    let mut core = Core::new(Config::default());
    (0..NODES).for_each(|number| core.set_node(node(number), 0));
    if service {
        let view = serde_json::from_value(json!({"spec": {"selector": {"app": "web"}}}))
            .expect("a service");
        let key = SpreaderKey { kind: "Service", namespace: "default", name: "web" };
        core.set_spreader(key, Some(&view));
    }
    (0..PODS).for_each(|number| core.set_pod(pod(number, &extra), 0));
    let start = Instant::now();
    let mut placed = 0;
    while let Some(decision) = core.next(0) {
        placed += usize::from(matches!(decision, Decision::Bind { .. }));
    }
    let took = start.elapsed();
    println!("{name:<28} {placed:>5} placed {:>9.0} a second", placed as f64 / took.as_secs_f64());
}

fn main() {
    let selector = json!({"matchLabels": {"app": "web"}});
    run("plain", false, json!({}));
    run("with a service", true, json!({}));
    run(
        "hard spread over zones",
        false,
        json!({"topologySpreadConstraints": [{"maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector}]}),
    );
    run(
        "anti-affinity by host",
        false,
        json!({"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}]}}}),
    );
    run(
        "preferred affinity by zone",
        false,
        json!({"affinity": {"podAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "podAffinityTerm":
            {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": selector}}]}}}),
    );
}

//! Robustness tests with malformed Pods, and with large Pods that once took minutes to validate.

use api_schema::{Fill, Schema};
use serde_json::{Value, json};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const NOW: &str = "2026-01-02T03:04:05Z";

/// Creates a Pod and updates it without a change.
fn write_pod(input: &[u8]) {
    let (schema, strategy) = (Schema::builtin(), crate::strategy("", "pods"));
    let Some(node) = schema.kind("", "v1", "Pod") else { return };
    let Ok(decoded) = api_schema::decode(schema, node, input, Fill::Defaults) else { return };
    let mut pod = decoded.value;
    strategy.defaults(&mut pod);
    strategy.prepare_create(&mut pod, NOW);
    let errors = strategy.create_errors(&pod, true);
    let kind = api_meta::GroupKind::new("", "Pod");
    let status = api_meta::Status::invalid(&kind, "p", &errors);
    assert!(
        status.message.len() < 1 << 20 || input.len() > 1 << 20,
        "{} bytes",
        status.message.len()
    );
    (strategy.warnings)(&pod, None);
    let mut new = pod.clone();
    strategy.prepare_update(&mut new, &pod, NOW);
    strategy.update_errors(&new, &pod, true);
}

fn pod(metadata: Value, spec: Value) -> Value {
    let mut pod =
        json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (name, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][name] = value.clone();
    }
    pod
}

fn with_ports(count: usize) -> Value {
    let ports = vec![json!({"containerPort": 1}); count];
    pod(json!({"name": "p"}), json!({"containers": [{"name": "c", "image": "i", "ports": ports}]}))
}

#[test]
fn pods() {
    let seeds = [
        with_ports(3).to_string(),
        pod(
            json!({"name": "p", "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "u"}]}),
            json!({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}],
                "volumes": [{"name": "v", "configMap": {"name": "m", "items": [{"key": "a", "path": "p"}, {"key": "b", "path": "p/q"}]}}]}),
        )
        .to_string(),
    ];
    fuzz::fuzz(HERE, "pods", &seeds.each_ref().map(|seed| seed.as_bytes()), write_pod);
}

#[test]
fn pods_with_long_lists() {
    let named = json!({"name": "p"});
    let many = |count: usize, item: &dyn Fn(usize) -> Value| -> Vec<Value> {
        (0..count).map(item).collect()
    };
    let owner = |i| json!({"apiVersion": "v1", "kind": "A", "name": format!("a{i}"), "uid": format!("u{i}"), "controller": true});
    let spread = |i| json!({"maxSkew": 1, "topologyKey": format!("k{i}"), "whenUnsatisfiable": "DoNotSchedule"});
    let sysctl = |i| json!({"name": format!("net.a{i}"), "value": "1"});
    let item = |_| json!({"key": "k", "path": "a/b"});
    let gate = |i| json!({"name": format!("example.com/g{i}")});
    let inputs = [
        with_ports(600),
        with_ports(1000),
        pod(json!({"name": "p", "ownerReferences": many(20_000, &owner)}), json!({})),
        pod(named.clone(), json!({"topologySpreadConstraints": many(4000, &spread)})),
        pod(named.clone(), json!({"securityContext": {"sysctls": many(20_000, &sysctl)}})),
        pod(named.clone(), json!({"schedulingGates": many(20_000, &gate)})),
        pod(
            named,
            json!({"volumes": [{"name": "v", "configMap": {"name": "m", "items": many(10_000, &item)}}]}),
        ),
    ];
    let inputs = inputs.map(|input| input.to_string().into_bytes());
    fuzz::try_large("pods", &inputs, write_pod);
}

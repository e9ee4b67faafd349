//! Bounds the allocations of the rules for one write, because they take a good part of its processor time.

use api_schema::{Fill, Schema};
use fuzz::heap::{CountingAllocator, allocations};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn validates_pod_with_few_allocations() {
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 5});
    let pod = json!({
        "metadata": {"name": "web-7d4b9c-x2x5z", "namespace": "bench", "labels": {"app": "web", "tier": "front"}},
        "spec": {
            "containers": [{
                "name": "web", "image": "registry.example.com/web:1.2.3",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "ports": [{"containerPort": 8080, "name": "http"}, {"containerPort": 9090, "name": "metrics"}],
                "livenessProbe": probe, "readinessProbe": probe,
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/web"}],
            }],
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": "web"}}}],
            "volumes": [{"name": "config", "configMap": {"name": "web"}}],
        },
    });
    let (schema, strategy) = (Schema::builtin(), api_rules::strategy("", "pods"));
    let node = schema.kind("", "v1", "Pod").unwrap();
    let decoded =
        api_schema::decode(schema, node, pod.to_string().as_bytes(), Fill::Defaults).unwrap();
    let mut pod = decoded.value;
    strategy.defaults(&mut pod);
    strategy.prepare_create(&mut pod, "2026-01-02T03:04:05Z");
    // The first call loads tables that all share.
    strategy.create_errors(&pod, true);
    (strategy.warnings)(&pod, None);
    let (errors, validation) = allocations(|| strategy.create_errors(&pod, true));
    assert!(errors.is_empty(), "{errors:?}");
    let (_, warnings) = allocations(|| (strategy.warnings)(&pod, None));
    assert!(
        (1..50).contains(&validation) && (1..60).contains(&warnings),
        "{validation} and {warnings} allocations"
    );
}

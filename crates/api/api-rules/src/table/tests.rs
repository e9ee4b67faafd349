use api_meta::Timestamp;
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T01:00:00Z";

/// Returns the cells of an object that was created half an hour ago.
fn row(group: &str, resource: &str, mut object: Value) -> Vec<Value> {
    object["metadata"]["name"] = json!("x");
    object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:30:00Z");
    cells(group, resource, &object, NOW.parse::<Timestamp>().unwrap())
}

fn pod(status: Value, deleted: bool) -> (String, String, String) {
    let mut object = json!({
        "spec": {
            "containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]},
        "status": status});
    if deleted {
        object["metadata"]["deletionTimestamp"] = json!(NOW);
    }
    let row = row("", "pods", object);
    let text = |i: usize| row[i].as_str().unwrap().to_owned();
    (text(1), text(2), text(3))
}

fn triple(ready: &str, status: &str, restarts: &str) -> (String, String, String) {
    (ready.to_owned(), status.to_owned(), restarts.to_owned())
}

#[test]
fn summarizes_states_of_pods() {
    let done =
        json!({"name": "i", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}});
    let sidecar = json!({"name": "s", "started": true, "ready": true, "restartCount": 1, "state": {"running": {}}});
    let runs = json!({"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}});
    let crashes = json!({"name": "b", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"finishedAt": "2026-01-01T00:55:00Z"}}});
    let inits = json!([done, sidecar]);
    let with = |containers: Value| json!({"phase": "Running", "initContainerStatuses": inits, "containerStatuses": containers});
    let cases = [
        (json!({"phase": "Pending"}), triple("0/3", "Pending", "0")),
        (with(json!([runs, crashes])), triple("2/3", "CrashLoopBackOff", "4 (5m ago)")),
        (with(json!([runs, runs])), triple("3/3", "Running", "1")),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}),
            triple("0/3", "Init:0/2", "0"),
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 2, "state": {"terminated": {"exitCode": 3}}}]}),
            triple("0/3", "Init:ExitCode:3", "2"),
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}),
            triple("0/3", "Init:ImagePullBackOff", "0"),
        ),
        (
            json!({"phase": "Failed", "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 1, "signal": 9}}}]}),
            triple("0/3", "Signal:9", "0"),
        ),
        (
            json!({"phase": "Succeeded", "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}),
            triple("0/3", "Completed", "0"),
        ),
        (json!({"phase": "Failed", "reason": "Evicted"}), triple("0/3", "Evicted", "0")),
    ];
    for (status, want) in cases {
        assert_eq!(pod(status, false), want);
    }
    assert_eq!(pod(with(json!([runs, runs])), true).1, "Terminating");
    assert_eq!(pod(json!({"phase": "Succeeded"}), true).1, "Succeeded");
}

#[test]
fn formats_rows_like_upstream() {
    let cases = [
        (
            ("", "nodes"),
            json!({
                "metadata": {"labels": {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "a"}},
                "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.36.2"},
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}),
            json!([
                "x",
                "Ready,SchedulingDisabled",
                "a,control-plane",
                "30m",
                "v1.36.2",
                "10.0.0.1",
                "<none>",
                "<unknown>",
                "<unknown>",
                "<unknown>"
            ]),
        ),
        (
            ("", "services"),
            json!({"spec": {"type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "selector": {"a": "b"},
                "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}}),
            json!(["x", "NodePort", "10.96.0.9", "<none>", "80:30080/TCP,53/UDP", "30m", "a=b"]),
        ),
        (
            ("apps", "deployments"),
            json!({
                "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}},
                    "template": {"spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]}}},
                "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1}}),
            json!(["x", "1/2", 2, 1, "30m", "c,d", "i,j", "a=b"]),
        ),
        (
            ("batch", "jobs"),
            json!({"spec": {"completions": 2}, "status": {"succeeded": 2, "startTime": "2026-01-01T00:30:00Z",
                "completionTime": "2026-01-01T00:30:05Z", "conditions": [{"type": "Complete", "status": "True"}]}}),
            json!(["x", "Complete", "2/2", "5s", "30m", "", "", "<none>"]),
        ),
        (
            ("", "events"),
            json!({"type": "Normal", "reason": "Pulled", "message": "m ", "involvedObject": {"kind": "Pod", "name": "p"},
                "source": {"component": "kubelet", "host": "n"}, "count": 2,
                "firstTimestamp": "2026-01-01T00:58:00Z", "lastTimestamp": "2026-01-01T00:59:30Z"}),
            json!(["30s", "Normal", "Pulled", "pod/p", "", "kubelet, n", "m", "2m", "2", "x"]),
        ),
        (
            ("", "endpoints"),
            json!({"subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.2"}], "ports": [{"port": 80}, {"port": 81}]}]}),
            json!(["x", "1.1.1.1:80,1.1.1.2:80,1.1.1.1:81 + 1 more...", "30m"]),
        ),
        (
            ("autoscaling", "horizontalpodautoscalers"),
            json!({
                "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "minReplicas": 1, "maxReplicas": 3,
                    "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}}]},
                "status": {"currentReplicas": 1}}),
            json!(["x", "Deployment/d", "cpu: <unknown>/80%", "1", 3, 1, "30m"]),
        ),
        (
            ("", "persistentvolumeclaims"),
            json!({"spec": {"volumeName": "v", "storageClassName": "s", "volumeMode": "Filesystem"},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"]}}),
            json!(["x", "Bound", "v", "1Gi", "RWO,RWX", "s", "<unset>", "30m", "Filesystem"]),
        ),
        (("rbac.authorization.k8s.io", "roles"), json!({}), json!(["x", "2026-01-01T00:30:00Z"])),
    ];
    for ((group, resource), object, want) in cases {
        assert_eq!(json!(row(group, resource, object)), want, "{resource}");
    }
}

#[test]
fn every_row_has_a_cell_per_column() {
    for resource in api_schema::resources() {
        let columns = columns(resource.group, resource.name);
        assert_eq!(
            row(resource.group, resource.name, json!({})).len(),
            columns.len(),
            "{}",
            resource.name
        );
        assert!(columns.iter().any(|c| c.name == "Name" && c.format == "name"));
    }
}

#[test]
fn describes_columns_of_every_resource() {
    let described = |group: &str, resource: &str, name: &str| {
        let columns = columns(group, resource);
        columns.iter().find(|column| column.name == name).map_or("", |column| column.description)
    };
    for resource in api_schema::resources() {
        for column in columns(resource.group, resource.name) {
            let place = format!("{} {} {}", resource.group, resource.name, column.name);
            // These columns have no description in upstream either.
            let bare = ["Handler", "BinaryVersion", "EmulationVersion"].contains(&column.name);
            assert!(bare || !column.description.is_empty(), "{place}");
        }
    }
    // Columns with one name have different descriptions per resource.
    assert_eq!(
        described("", "pods", "Status"),
        "The aggregate status of the containers in this pod."
    );
    assert_eq!(described("", "namespaces", "Status"), "The status of the namespace");
}

//! Tests of the subresource `resize`.

use super::*;

/// Returns the errors of a resize from one Pod to another.
fn resize_errors(from: Value, to: Value) -> String {
    let mut old = made(from);
    old["status"]["qosClass"] = json!("Burstable");
    let mut new = old.clone();
    for (name, value) in to.as_object().unwrap() {
        new["spec"][name] = value.clone();
    }
    POD.prepare_subresource("resize", &mut new, &old, "").unwrap();
    let errors = POD.subresource_errors("resize", &new, &old, true);
    if errors.is_empty() { new["spec"]["resources"].to_string() } else { words(errors) }
}

#[test]
fn resizes_pod_level_resources() {
    let shared = |resources: Value| json!({ "resources": resources });
    let from = || shared(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}));
    for (to, outcome) in [
        (
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "1Gi"}}),
            "{\"limits\":{\"cpu\":\"4\",\"memory\":\"1Gi\"},\"requests\":{\"cpu\":\"2\"}}",
        ),
        (json!(null), "spec.resources: Forbidden: pod-level resources cannot be removed"),
        (
            json!({"limits": {"cpu": "2"}}),
            "spec.resources.requests: Forbidden: pod-level resource requests cannot be removed",
        ),
        (
            json!({"requests": {"cpu": "1"}}),
            "spec.resources.limits: Forbidden: pod-level resource limits cannot be removed",
        ),
        (
            json!({"requests": {"cpu": "1", "hugepages-2Mi": "2Mi"}, "limits": {"cpu": "2", "hugepages-2Mi": "2Mi"}}),
            "spec: Forbidden: only cpu and memory resources are mutable at pod-level",
        ),
        (
            json!({"requests": {"cpu": "3"}, "limits": {"cpu": "2"}}),
            "spec.resources.requests: Invalid value: \"3\": must be less than or equal to cpu limit of 2",
        ),
    ] {
        let found = resize_errors(from(), shared(to));
        assert!(found.contains(outcome), "{found} lacks {outcome}");
    }
}

#[test]
fn rejects_container_resize_of_other_fields() {
    let one = |fields: Value| {
        let mut container = json!({"name": "c", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"});
        for (name, value) in fields.as_object().unwrap() {
            container[name] = value.clone();
        }
        container
    };
    let sized = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    let from = json!({
        "containers": [one(json!({"resources": sized("1")}))],
        "initContainers": [one(json!({"name": "i", "resources": sized("1"), "resizePolicy": policy}))]});
    let with = |at: (&str, Value)| {
        let mut to =
            json!({ "containers": from["containers"], "initContainers": from["initContainers"] });
        to[at.0] = json!([at.1]);
        resize_errors(from.clone(), to)
    };
    assert_eq!(with(("containers", one(json!({"resources": sized("2")})))), "null");
    assert_eq!(
        with(("containers", one(json!({"name": "d"})))),
        "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"
    );
    let added =
        json!({"containers": [one(json!({"resources": sized("1")})), one(json!({"name": "d"}))]});
    assert_eq!(
        resize_errors(from.clone(), added),
        "spec.containers: Forbidden: containers may not be added or removed on resize"
    );
    assert_eq!(
        with(("containers", one(json!({"resources": {}})))),
        "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"
    );
    assert_eq!(
        with((
            "containers",
            one(json!({"resources": {"requests": {"cpu": "1", "ephemeral-storage": "1"}}}))
        )),
        "spec: Forbidden: only cpu and memory resources are mutable"
    );
    assert_eq!(
        with(("containers", one(json!({"resources": sized("1"), "resizePolicy": policy})))),
        "spec: Forbidden: only cpu and memory resources are mutable"
    );
    assert_eq!(
        with((
            "initContainers",
            one(json!({"name": "i", "resources": sized("2"), "resizePolicy": policy}))
        )),
        "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
    );
}

#[test]
fn rejects_resize_of_static_and_windows_pods() {
    let errors = |change: fn(&mut Value)| {
        let mut old = made(json!({}));
        change(&mut old);
        words(POD.subresource_errors("resize", &old.clone(), &old, true))
    };
    assert_eq!(
        errors(|pod| pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"})),
        "[]: Forbidden: static pods cannot be resized"
    );
    assert_eq!(
        errors(|pod| pod["spec"]["os"] = json!({"name": "windows"})),
        "[]: Forbidden: windows pods cannot be resized"
    );
    assert_eq!(
        errors(|pod| pod["status"]["containerStatuses"] =
            json!([{"name": "c", "state": {"running": {}}}])),
        "spec: Forbidden: Pod running on node without support for resize"
    );
}

use api_meta::{ErrorList, Tree as _, field::aggregate};
use serde_json::{Value, json};

use super::POD;

mod errors;
mod resize;
mod update;
mod warnings;

/// Builds a Pod with the schema's constant defaults.
fn pod(spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "d", "uid": "u"},
        "spec": {
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "c", "image": "nginx", "terminationMessagePolicy": "File", "resources": {}}]},
        "status": {}});
    for (name, value) in spec.as_object().unwrap() {
        pod["spec"][name] = value.clone();
    }
    pod
}

fn container(fields: Value) -> Value {
    let mut container =
        json!({"name": "c", "image": "i", "terminationMessagePolicy": "File", "resources": {}});
    for (name, value) in fields.as_object().unwrap() {
        container[name] = value.clone();
    }
    json!({ "containers": [container] })
}

fn made(spec: Value) -> Value {
    let mut pod = pod(spec);
    POD.defaults(&mut pod);
    POD.prepare_create(&mut pod, "2026-01-01T00:00:00Z");
    pod
}

fn words(errors: ErrorList) -> String {
    aggregate(&errors)
}

#[test]
fn sets_conditional_defaults() {
    let policy = |image: &str| {
        made(container(json!({ "image": image })))["spec"]["containers"][0]["imagePullPolicy"]
            .clone()
    };
    assert_eq!(policy("nginx"), "Always");
    assert_eq!(policy("r:5000/nginx"), "Always");
    assert_eq!(policy("r:5000/nginx:latest"), "Always");
    assert_eq!(policy("nginx:1"), "IfNotPresent");
    assert_eq!(policy("nginx@sha256:00"), "IfNotPresent");

    let asks = made(container(
        json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}}),
    ));
    assert_eq!(
        asks["spec"]["containers"][0]["resources"]["requests"],
        json!({"cpu": "500m", "memory": "1Gi"})
    );
    let mut host = container(json!({"ports": [{"containerPort": 80, "protocol": "TCP"}]}));
    host["hostNetwork"] = json!(true);
    assert_eq!(made(host)["spec"]["containers"][0]["ports"][0]["hostPort"], 80);
    let account = made(json!({"serviceAccountName": "a", "volumes": [{"name": "v"}]}));
    assert_eq!(account["spec"]["serviceAccount"], "a");
    assert_eq!(account["spec"]["volumes"][0]["emptyDir"], json!({}));
    assert_eq!(account["spec"]["enableServiceLinks"], true);
}

#[test]
fn sets_phase_and_qos_class_of_new_pod() {
    let class =
        |resources: Value| made(container(json!({ "resources": resources })))["status"].clone();
    let cases = [
        (json!({}), "BestEffort"),
        (json!({"limits": {"nvidia.com/gpu": "1"}}), "BestEffort"),
        (json!({"requests": {"cpu": "1"}}), "Burstable"),
        (json!({"limits": {"cpu": "1"}}), "Burstable"),
        (json!({"limits": {"cpu": "1", "memory": "1Gi"}}), "Guaranteed"),
        (
            json!({"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": "1"}}),
            "Guaranteed",
        ),
    ];
    for (resources, want) in cases {
        assert_eq!(class(resources), json!({"phase": "Pending", "qosClass": want}));
    }
    let mut sent = pod(json!({}));
    sent["status"] = json!({"phase": "Running"});
    sent["metadata"]["generation"] = json!(7);
    POD.prepare_create(&mut sent, "");
    assert_eq!(
        (&sent["status"]["phase"], &sent["metadata"]["generation"]),
        (&json!("Pending"), &json!(1))
    );
    let gated = made(json!({"schedulingGates": [{"name": "a/b"}]}));
    assert_eq!(gated["status"]["conditions"][0]["reason"], "SchedulingGated");
}

#[test]
fn merges_match_label_keys() {
    let mut pod = pod(json!({
        "topologySpreadConstraints": [{"matchLabelKeys": ["hash", "none"], "labelSelector": {"matchLabels": {"a": "b"}}}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"mismatchLabelKeys": ["hash"], "labelSelector": {}}, {"matchLabelKeys": ["hash"]}]}}}));
    pod["metadata"]["labels"] = json!({"hash": "1"});
    POD.prepare_create(&mut pod, "");
    let term = |operator: &str| json!([{"key": "hash", "operator": operator, "values": ["1"]}]);
    let spread = &pod["spec"]["topologySpreadConstraints"][0]["labelSelector"];
    assert_eq!(*spread, json!({"matchLabels": {"a": "b"}, "matchExpressions": term("In")}));
    let anti =
        pod.items("spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution");
    assert_eq!(anti[0]["labelSelector"]["matchExpressions"], term("NotIn"));
    assert_eq!(anti[1].get("labelSelector"), None);
}

#[test]
fn address_of_pod_wins_over_list() {
    for (status, want) in [
        (json!({"podIP": "10.0.0.1"}), json!([{"ip": "10.0.0.1"}])),
        (json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.2"}]}), json!([{"ip": "10.0.0.1"}])),
        (
            json!({"podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::1"}]}),
            json!([{"ip": "10.0.0.2"}, {"ip": "fd00::1"}]),
        ),
    ] {
        let old = made(json!({}));
        let mut new = old.clone();
        new["status"] = status;
        POD.prepare_status(&mut new, &old, "2026-01-01T00:00:00Z");
        assert_eq!(new["status"]["podIPs"], want);
        assert_eq!(new["status"]["podIP"], want[0]["ip"]);
    }
}

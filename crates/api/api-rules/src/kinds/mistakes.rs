//! Tests of objects with one mistake each that upstream's v1.36.2 rejects, with the field that it names.

use serde_json::{Value, json};

use super::{strategy, tests::made};

/// Returns the fields that the errors of a new object name.
fn wrong_fields(group: &str, resource: &str, object: Value) -> Vec<String> {
    let object = made(group, resource, object);
    let errors = strategy(group, resource).create_errors(&object, false);
    errors.iter().map(|error| error.field.as_str().to_owned()).collect()
}

fn assert_wrong(group: &str, resource: &str, object: Value, field: &str) {
    let found = wrong_fields(group, resource, object);
    assert!(found.iter().any(|name| name == field), "{resource}: {field} is not in {found:?}");
}

#[test]
fn rejects_mistakes_in_claims_and_slices() {
    let dra = "resource.k8s.io";
    let claim = |devices: Value| json!({"spec": {"devices": devices}});
    let request = |tolerations: Value| {
        let exactly = json!({"deviceClassName": "c", "tolerations": tolerations});
        claim(json!({"requests": [{"name": "r", "exactly": exactly}]}))
    };
    let requests = "spec.devices.requests[0]";
    for (toleration, field) in [
        (json!({"key": "-a", "operator": "Exists"}), "key"),
        (json!({"key": "a", "operator": "Similar"}), "operator"),
        (json!({"key": "a", "operator": "Equal", "value": "-a"}), "value"),
        (json!({"key": "a", "operator": "Exists", "effect": "Evict"}), "effect"),
    ] {
        let field = format!("{requests}.exactly.tolerations[0].{field}");
        assert_wrong(dra, "resourceclaims", request(json!([toleration])), &field);
    }
    let alternatives = |list: Value| {
        claim(json!({"requests": [{"name": "r", "firstAvailable": list}],
            "config": [{"requests": ["other"], "opaque": {"driver": "-a"}}],
            "constraints": [{"requests": ["r"], "matchAttribute": "a"}]}))
    };
    for (list, field) in [
        (json!([{"name": "", "deviceClassName": "c"}]), "firstAvailable[0].name"),
        (json!([{"name": "a"}]), "firstAvailable[0].deviceClassName"),
        (json!([{"name": "a", "deviceClassName": "c", "count": -1}]), "firstAvailable[0].count"),
        (
            json!([{"name": "a", "deviceClassName": "c"}, {"name": "a", "deviceClassName": "c"}]),
            "firstAvailable[1]",
        ),
    ] {
        assert_wrong(dra, "resourceclaims", alternatives(list), &format!("{requests}.{field}"));
    }
    for field in ["config[0].requests[0]", "config[0].opaque.driver", "config[0].opaque.parameters"]
    {
        assert_wrong(
            dra,
            "resourceclaims",
            alternatives(json!([])),
            &format!("spec.devices.{field}"),
        );
    }
    assert_wrong(
        dra,
        "resourceclaims",
        alternatives(json!([])),
        "spec.devices.constraints[0].matchAttribute",
    );
    let device = |device: Value| {
        json!({"spec": {"driver": "D.example.com", "nodeName": "n", "devices": [device],
            "pool": {"name": "p", "resourceSliceCount": 1}}})
    };
    assert_eq!(
        wrong_fields(dra, "resourceslices", device(json!({"name": "d"}))),
        Vec::<String>::new()
    );
    let slice = device(json!({"name": "d", "attributes": {"v": {"version": "1.2"}}}));
    assert_wrong(dra, "resourceslices", slice, "spec.devices[0].attributes[v].version");
    let slice = device(json!({"name": "d", "taints": [{"key": "a", "effect": "Evict"}]}));
    assert_wrong(dra, "resourceslices", slice, "spec.devices[0].taints[0].effect");
}

#[test]
fn rejects_mistakes_that_upstream_rejects() {
    let flows = "flowcontrol.apiserver.k8s.io";
    let queuing = json!({"queues": 65536, "handSize": 6, "queueLengthLimit": 1});
    let level = json!({"spec": {"type": "Limited", "limited": {
        "limitResponse": {"type": "Queue", "queuing": queuing}}}});
    let hand = "spec.limited.limitResponse.queuing.handSize";
    assert_wrong(flows, "prioritylevelconfigurations", level, hand);
    let rule = json!({"subjects": [{"kind": "User", "user": {"name": "u"}}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["healthz"]}]});
    let flow = json!({"spec": {"priorityLevelConfiguration": {"name": "p"}, "rules": [rule]}});
    assert_wrong(
        flows,
        "flowschemas",
        flow,
        "spec.rules[0].nonResourceRules[0].nonResourceURLs[0]",
    );
    let toleration = json!({"key": "k", "operator": "Exists"});
    let class = json!({"handler": "h", "scheduling": {"tolerations": [toleration, toleration]}});
    assert_wrong("node.k8s.io", "runtimeclasses", class, "scheduling.tolerations[1]");
    let node = json!({"spec": {"podCIDR": "wide", "podCIDRs": ["10.0.0.0/24"]}});
    assert_wrong("", "nodes", node, "spec.podCIDRs[0]");
    let subset = json!({"addresses": [{"ip": "1.2.3.4"}],
        "ports": [{"port": 80, "protocol": "TCP", "appProtocol": "-a"}]});
    assert_wrong("", "endpoints", json!({"subsets": [subset]}), "subsets[0].ports[0].appProtocol");
    let spec = json!({"accessModes": ["ReadWriteOnce"], "volumeAttributesClassName": "-a",
        "resources": {"requests": {"storage": "1Gi"}}});
    assert_wrong(
        "",
        "persistentvolumeclaims",
        json!({"spec": spec}),
        "spec.volumeAttributesClassName",
    );
    let csi =
        json!({"driver": "d", "volumeHandle": "h", "controllerExpandSecretRef": {"name": "n"}});
    let spec =
        json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": csi});
    let field = "spec.csi.controllerExpandSecretRef.namespace";
    assert_wrong("", "persistentvolumes", json!({"spec": spec}), field);
    let secret = json!({"type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": "0"}});
    assert_wrong("", "secrets", secret, "data[.dockerconfigjson]");
    let parent = json!({"group": "-a", "resource": "r", "name": "n"});
    assert_wrong(
        "networking.k8s.io",
        "ipaddresses",
        json!({"spec": {"parentRef": parent}}),
        "spec.parentRef.group",
    );
    let quota = json!({"spec": {"hard": {"pods": "1", "count/jobs.batch": "1"}, "scopes": ["Terminating"]}});
    let found = wrong_fields("", "resourcequotas", quota);
    assert!(found.iter().all(|field| !field.starts_with("spec")), "{found:?}");
}

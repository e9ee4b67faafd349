//! Tests of objects with one mistake each that upstream's v1.36.2 rejects, with the field that it names.

use serde_json::{Value, json};

use super::{made, strategy};

/// Returns the fields that the errors of a new object name.
fn wrong_fields(group: &str, resource: &str, object: Value) -> Vec<String> {
    let object = made(group, resource, object);
    let namespaced = object["metadata"].get("namespace").is_some();
    let errors = strategy(group, resource).create_errors(&object, namespaced);
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

/// Asserts that each change of a valid object is rejected with the field that upstream names.
fn assert_changes_wrong(group: &str, resource: &str, base: Value, changes: &[(&str, Value, &str)]) {
    let valid = wrong_fields(group, resource, base.clone());
    assert!(valid.is_empty(), "{resource}: {valid:?}");
    for (pointer, value, field) in changes {
        let mut object = base.clone();
        *object.pointer_mut(pointer).unwrap() = value.clone();
        assert_wrong(group, resource, object, field);
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn rejects_mistakes_in_pods() {
    let base = json!({"spec": {
        "serviceAccountName": "s",
        "hostnameOverride": "h",
        "resourceClaims": [{"name": "a", "resourceClaimName": "x"}, {"name": "b", "resourceClaimTemplateName": "x"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
            "minDomains": 1, "matchLabelKeys": ["a"], "labelSelector": {}}],
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "z", "matchLabelKeys": ["a"], "labelSelector": {}}]}},
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "d", "awsElasticBlockStore": {"volumeID": "v", "partition": 1}},
            {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}],
        "containers": [{"name": "c", "image": "i",
            "resources": {"claims": [{"name": "a", "request": "r"}, {"name": "b"}]},
            "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}}}],
            "lifecycle": {"preStop": {"sleep": {"seconds": 30}}}}]}});
    let container = "spec.containers[0]";
    assert_changes_wrong(
        "",
        "pods",
        base,
        &[
            (
                "/spec/serviceAccountName",
                json!(""),
                "spec.volumes[2].projected.sources[0].serviceAccountToken",
            ),
            ("/spec/hostnameOverride", json!("h".repeat(65)), "spec.hostnameOverride"),
            ("/spec/resourceClaims/1/name", json!("a"), "spec.resourceClaims[1].name"),
            (
                "/spec/resourceClaims/0/resourceClaimName",
                json!("-"),
                "spec.resourceClaims[0].resourceClaimName",
            ),
            ("/spec/resourceClaims/0/resourceClaimName", Value::Null, "spec.resourceClaims[0]"),
            (
                "/spec/topologySpreadConstraints/0/labelSelector",
                Value::Null,
                "spec.topologySpreadConstraints[0].matchLabelKeys",
            ),
            (
                "/spec/topologySpreadConstraints/0/matchLabelKeys/0",
                json!("-"),
                "spec.topologySpreadConstraints[0].matchLabelKeys[0]",
            ),
            (
                "/spec/topologySpreadConstraints/0/minDomains",
                json!(0),
                "spec.topologySpreadConstraints[0].minDomains",
            ),
            (
                "/spec/topologySpreadConstraints/0/whenUnsatisfiable",
                json!("ScheduleAnyway"),
                "spec.topologySpreadConstraints[0].minDomains",
            ),
            (
                "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/matchLabelKeys/0",
                json!("-"),
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys[0]",
            ),
            (
                "/spec/volumes/1/awsElasticBlockStore/partition",
                json!(256),
                "spec.volumes[1].awsElasticBlockStore.partition",
            ),
            (
                "/spec/containers/0/resources/claims/1",
                json!({"name": "a", "request": "r"}),
                &format!("{container}.resources.claims[1]"),
            ),
            (
                "/spec/containers/0/resources/claims/0/request",
                json!("-"),
                &format!("{container}.resources.claims[0].request"),
            ),
            (
                "/spec/containers/0/env/0/valueFrom/fileKeyRef/volumeName",
                json!("other"),
                &format!("{container}.env[0].valueFrom.fileKeyRef.volumeName"),
            ),
            (
                "/spec/containers/0/env/1/valueFrom/fieldRef/apiVersion",
                json!("v2"),
                &format!("{container}.env[1].valueFrom.fieldRef.fieldPath"),
            ),
            (
                "/spec/containers/0/lifecycle/preStop/sleep/seconds",
                json!(31),
                &format!("{container}.lifecycle.preStop.sleep"),
            ),
        ],
    );
}

#[test]
fn rejects_mistakes_in_windows_pods() {
    let options = json!({"gmsaCredentialSpecName": "g", "gmsaCredentialSpec": "s", "runAsUserName": "d\\u", "hostProcess": true});
    let base = json!({"spec": {"hostNetwork": true, "os": {"name": "windows"},
        "securityContext": {"windowsOptions": options}, "containers": [{"name": "c", "image": "i"}]}});
    let path = "spec.securityContext.windowsOptions";
    let user = format!("{path}.runAsUserName");
    let pointer = "/spec/securityContext/windowsOptions";
    let mut changes = vec![
        (
            format!("{pointer}/gmsaCredentialSpecName"),
            json!("-"),
            format!("{path}.gmsaCredentialSpecName"),
        ),
        (format!("{pointer}/gmsaCredentialSpec"), json!(""), format!("{path}.gmsaCredentialSpec")),
        ("/spec/hostNetwork".to_owned(), json!(false), "spec.hostNetwork".to_owned()),
    ];
    for name in ["", "a\\b\\c", "a\n", ". .", "a*", &"u".repeat(105)] {
        changes.push((format!("{pointer}/runAsUserName"), json!(name), user.clone()));
    }
    let changes: Vec<(&str, Value, &str)> = changes
        .iter()
        .map(|(at, value, field)| (at.as_str(), value.clone(), field.as_str()))
        .collect();
    assert_changes_wrong("", "pods", base, &changes);
}

#[test]
fn rejects_mistakes_in_services_secrets_and_jobs() {
    let ranges = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let service = json!({"metadata": {"annotations": {ranges: "10.0.0.0/8, 1.2.3.0/24"}},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "ipFamilies": ["IPv4"],
            "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]}});
    let annotation = "metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]";
    let changes = [
        (
            "/metadata/annotations/service.beta.kubernetes.io~1load-balancer-source-ranges",
            json!("10.0.0.0/8,x"),
            annotation,
        ),
        ("/spec/type", json!("NodePort"), annotation),
        ("/spec/ipFamilies/0", json!("IPv5"), "spec.ipFamilies[0]"),
        ("/spec/clusterIPs", json!(["10.0.0.1", "10.0.0.2"]), "spec.clusterIPs"),
        ("/spec/clusterIPs", json!(["10.0.0.1", "None"]), "spec.clusterIPs"),
    ];
    assert_changes_wrong("", "services", service, &changes);
    let external = json!({"spec": {"type": "ExternalName", "externalName": "a.b", "ipFamilies": ["IPv4"],
        "externalTrafficPolicy": "Local"}});
    assert_wrong("", "services", external.clone(), "spec.ipFamilies");
    assert_wrong("", "services", external, "spec.externalTrafficPolicy");

    let secret = |kind: &str, key: &str, text: &str| {
        let mut strings = json!({});
        strings[key] = json!(text);
        json!({"type": format!("kubernetes.io/{kind}"), "stringData": strings})
    };
    assert_wrong("", "secrets", secret("ssh-auth", "ssh-privatekey", ""), "data[ssh-privatekey]");
    assert_wrong("", "secrets", secret("dockercfg", ".dockercfg", "0"), "data[.dockercfg]");

    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"spec": {"template": template, "selector": {"matchLabels": {"a": "b"}}}});
    assert_wrong("batch", "jobs", job, "spec.selector");
    let job = json!({"spec": {"template": template, "successPolicy": {"rules": [{"succeededCount": 1}]}}});
    assert_wrong("batch", "jobs", job, "spec.successPolicy");
    let slice = json!({"addressType": "FQDN", "endpoints": [{"addresses": ["plain"]}]});
    assert_wrong("discovery.k8s.io", "endpointslices", slice, "endpoints[0].addresses[0]");
}

use api_meta::{Tree as _, field::aggregate};
use api_schema::{Fill, NodeId, Schema, Shape, decode_value, resources};
use serde_json::{Value, json};

use super::strategy;
use crate::Strategy;

mod mistakes;

pub(super) const NOW: &str = "2026-01-01T00:00:00Z";

/// Builds an object as the server does: decoded by the schema, defaulted and prepared.
pub(super) fn made(group: &str, resource: &str, mut object: Value) -> Value {
    let known = resources().iter().find(|r| r.group == group && r.name == resource).unwrap();
    let schema = Schema::builtin();
    let node = schema.kind(group, known.version, known.kind).unwrap();
    object["metadata"]["name"] = json!("x");
    let mut object = decode_value(schema, node, object, Fill::Defaults).unwrap().value;
    object["metadata"]["uid"] = json!("u");
    if known.namespaced {
        object["metadata"]["namespace"] = json!("d");
    }
    let strategy = strategy(group, resource);
    strategy.defaults(&mut object);
    strategy.prepare_create(&mut object, NOW);
    object
}

pub(super) fn errors(group: &str, resource: &str, object: Value) -> String {
    let object = made(group, resource, object);
    let namespaced = object["metadata"].get("namespace").is_some();
    aggregate(&strategy(group, resource).create_errors(&object, namespaced))
}

/// Returns the result of an update through the main endpoint and its errors.
pub(super) fn updated(strategy: &Strategy, old: &Value, change: fn(&mut Value)) -> (Value, String) {
    let mut new = old.clone();
    change(&mut new);
    strategy.prepare_update(&mut new, old, NOW);
    let namespaced = old["metadata"].get("namespace").is_some();
    let errors = aggregate(&strategy.update_errors(&new, old, namespaced));
    (new, errors)
}

fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}})
}

fn deployment(spec: Value) -> Value {
    let mut object =
        json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template()}});
    for (name, value) in spec.as_object().unwrap() {
        object["spec"][name] = value.clone();
    }
    object
}

#[test]
#[allow(clippy::too_many_lines, reason = "one scenario")]
fn sets_conditional_defaults() {
    let service = |spec: Value| made("", "services", json!({ "spec": spec }))["spec"].clone();
    let balancer = service(json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
    assert_eq!(balancer["ports"][0]["targetPort"], 80);
    assert_eq!(balancer["allocateLoadBalancerNodePorts"], true);
    assert_eq!(balancer["externalTrafficPolicy"], "Cluster");
    let sticky = service(
        json!({"sessionAffinity": "ClientIP", "ports": [{"port": 80, "targetPort": "web"}]}),
    );
    assert_eq!(sticky["ports"][0]["targetPort"], "web");
    assert_eq!(sticky["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10800);
    assert_eq!(sticky.get("externalTrafficPolicy"), None);
    assert_eq!(
        service(json!({"type": "ExternalName", "externalName": "a.b"}))
            .get("internalTrafficPolicy"),
        None
    );

    let rolling = made("apps", "deployments", deployment(json!({})));
    assert_eq!(
        rolling["spec"]["strategy"]["rollingUpdate"],
        json!({"maxSurge": "25%", "maxUnavailable": "25%"})
    );
    let recreate =
        made("apps", "deployments", deployment(json!({"strategy": {"type": "Recreate"}})));
    assert_eq!(recreate["spec"]["strategy"], json!({"type": "Recreate"}));

    // A strategy with a type gets no other defaults.
    for (strategy, want) in [
        (json!({}), json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})),
        (json!({"type": "RollingUpdate"}), json!({"type": "RollingUpdate"})),
        (json!({"type": "OnDelete"}), json!({"type": "OnDelete"})),
        (
            json!({"rollingUpdate": {"maxUnavailable": 2}}),
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}),
        ),
    ] {
        let set = stateful_set(json!({}), json!({ "updateStrategy": strategy }));
        assert_eq!(made("apps", "statefulsets", set)["spec"]["updateStrategy"], want);
    }

    let devices = json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c"}},
        {"name": "b", "exactly": {"deviceClassName": "c", "allocationMode": "All"}},
        {"name": "c", "firstAvailable": [{"name": "s", "deviceClassName": "c", "count": 0}]}]}});
    for (resource, spec, at) in [
        ("resourceclaims", devices.clone(), "spec.devices"),
        ("resourceclaimtemplates", json!({ "spec": devices }), "spec.spec.devices"),
    ] {
        let claim = made("resource.k8s.io", resource, json!({ "spec": spec }));
        let requests = claim.at(at).items("requests");
        assert_eq!(requests[0].int("exactly.count"), 1);
        assert_eq!(requests[1].at("exactly.count"), &Value::Null);
        assert_eq!(requests[2].items("firstAvailable")[0].int("count"), 1);
    }

    let secret =
        made("", "secrets", json!({"data": {"a": "WA==", "c": "WA=="}, "stringData": {"a": "b"}}));
    assert_eq!(secret["data"], json!({"a": "Yg==", "c": "WA=="}));
    assert_eq!(secret.get("stringData"), None);

    let job = |spec: Value| {
        let mut object = json!({ "spec": spec });
        object["spec"]["template"] = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        made("batch", "jobs", object)
    };
    let plain = job(json!({}));
    assert_eq!((plain.int("spec.completions"), plain.int("spec.backoffLimit")), (1, 6));
    assert_eq!(
        plain["spec"]["selector"]["matchLabels"],
        json!({"batch.kubernetes.io/controller-uid": "u"})
    );
    assert_eq!(plain["spec"]["template"]["metadata"]["labels"]["job-name"], "x");
    assert_eq!(job(json!({"parallelism": 2}))["spec"].get("completions"), None);

    let namespace = made("", "namespaces", json!({}));
    assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], "x");
    assert_eq!(
        (&namespace["spec"]["finalizers"], namespace.text("status.phase")),
        (&json!(["kubernetes"]), "Active")
    );

    let policy = made(
        "networking.k8s.io",
        "networkpolicies",
        json!({"spec": {"podSelector": {}, "egress": [{}]}}),
    );
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    let limits = made(
        "",
        "limitranges",
        json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1", "memory": "1Mi"}}]}}),
    );
    assert_eq!(limits["spec"]["limits"][0]["default"], json!({"cpu": "2"}));
    assert_eq!(limits["spec"]["limits"][0]["defaultRequest"], json!({"cpu": "2", "memory": "1Mi"}));
}

#[test]
#[allow(clippy::too_many_lines, reason = "one scenario")]
fn reports_errors_in_upstream_words() {
    let cases = [
        (
            ("", "configmaps"),
            json!({"data": {"a b": "c"}}),
            "data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        ),
        (("", "services"), json!({"spec": {}}), "spec.ports: Required value"),
        (("", "services"), json!({"spec": {"clusterIP": "None"}}), "[]"),
        (
            ("", "services"),
            json!({"spec": {"type": "NodePort", "clusterIP": "None", "ports": [{"port": 80}]}}),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        (
            ("", "services"),
            json!({"spec": {"ports": [{"port": 80, "nodePort": 30000}]}}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            ("", "services"),
            json!({"spec": {"ports": [{"port": 80}, {"port": 81}]}}),
            "[spec.ports[0].name: Required value, spec.ports[1].name: Required value]",
        ),
        (
            ("apps", "deployments"),
            deployment(json!({"selector": {"matchLabels": {"a": "c"}}})),
            "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
        ),
        (
            ("apps", "deployments"),
            deployment(json!({"selector": null})),
            "[spec.selector: Required value, spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`]",
        ),
        (
            ("apps", "daemonsets"),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
            "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
        ),
        (
            ("apps", "deployments"),
            deployment(json!({"replicas": -1})),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            ("apps", "deployments"),
            deployment(json!({"strategy": {"type": "Recreate", "rollingUpdate": {}}})),
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
        ),
        (
            ("apps", "deployments"),
            deployment(
                json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}),
            ),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
        ),
        (
            ("batch", "cronjobs"),
            json!({"spec": {"schedule": "* * *", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}}}),
            "spec.schedule: Invalid value: \"* * *\": expected exactly 5 fields, found 3: [* * *]",
        ),
        (
            ("rbac.authorization.k8s.io", "clusterrolebindings"),
            json!({"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "ServiceAccount", "name": "s"}]}),
            "subjects[0].namespace: Required value",
        ),
        (
            ("", "nodes"),
            json!({"spec": {"taints": [{"key": "a", "effect": "No"}]}}),
            "spec.taints[0].effect: Unsupported value: \"No\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
        ),
        (
            ("", "secrets"),
            json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}),
            "data[tls.key]: Required value",
        ),
        (
            ("scheduling.k8s.io", "priorityclasses"),
            json!({"value": 2_000_000_000}),
            "value: Forbidden: maximum allowed value of a user defined priority is 1000000000",
        ),
        (
            ("", "persistentvolumeclaims"),
            json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}),
            "spec.accessModes: Required value: at least 1 access mode is required",
        ),
        (
            ("networking.k8s.io", "ingresses"),
            json!({"spec": {"rules": [{"http": {"paths": [{"path": "x", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}}),
            "spec.rules[0].http.paths[0].path: Invalid value: \"x\": must be an absolute path",
        ),
        (
            ("networking.k8s.io", "servicecidrs"),
            json!({"spec": {"cidrs": ["10.0.0.5/24", "FD00::/112"]}}),
            "[spec.cidrs[0]: Invalid value: \"10.0.0.5/24\": must not have bits set beyond the prefix length, spec.cidrs[1]: Invalid value: \"FD00::/112\": must be in canonical form (\"fd00::/112\")]",
        ),
        (
            ("networking.k8s.io", "servicecidrs"),
            json!({"spec": {"cidrs": ["10.0.0.0/024", "::ffff:1.2.3.0/120"]}}),
            "[spec.cidrs[0]: Invalid value: \"10.0.0.0/024\": must not have leading 0s in IP or prefix length, spec.cidrs[1]: Invalid value: \"::ffff:1.2.3.0/120\": must not have an IPv4-mapped IPv6 address]",
        ),
        (
            ("storage.k8s.io", "volumeattributesclasses"),
            json!({"driverName": "x", "parameters": {"": "y"}}),
            "parameters: Invalid value: \"\": field can not be empty.",
        ),
        (
            ("", "resourcequotas"),
            json!({"spec": {"hard": {"cpu": "1.5", "pods": "1.5"}}}),
            "spec.hard[pods]: Invalid value: \"1500m\": must be an integer",
        ),
    ];
    for ((group, resource), object, want) in cases {
        assert_eq!(errors(group, resource, object), want, "{resource}");
    }
}

/// Builds a StatefulSet with a claim `data`, and with further fields for its container and its spec.
fn stateful_set(container: Value, spec: Value) -> Value {
    let mut object = deployment(
        json!({"serviceName": "s", "volumeClaimTemplates": [{"metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}),
    );
    for (name, value) in spec.as_object().unwrap() {
        object["spec"][name] = value.clone();
    }
    for (name, value) in container.as_object().unwrap() {
        object["spec"]["template"]["spec"]["containers"][0][name] = value.clone();
    }
    object
}

#[test]
fn claim_templates_act_as_volumes() {
    let mount = |name: &str| json!({"volumeMounts": [{"name": name, "mountPath": "/d"}]});
    let device = |name: &str| json!({"volumeDevices": [{"name": name, "devicePath": "/dev/d"}]});
    let missing = |list: &str| {
        format!("spec.template.spec.containers[0].{list}[0].name: Not found: \"other\"")
    };
    let none = json!({});
    // The controller replaces the template's volume, host name and subdomain.
    let mut own = template();
    own["spec"]["volumes"] = json!([{"name": "data", "hostPath": {"path": "/.."}}, {"name": "e"}]);
    own["spec"]["hostname"] = json!("A.B");
    own["spec"]["subdomain"] = json!("A.B");
    for (container, spec, want) in [
        (mount("data"), none.clone(), "[]".to_owned()),
        (device("data"), none.clone(), "[]".to_owned()),
        (mount("other"), none.clone(), missing("volumeMounts")),
        (device("other"), none.clone(), missing("volumeDevices")),
        (mount("data"), json!({ "template": own }), "[]".to_owned()),
        (mount("e"), json!({ "template": own }), "[]".to_owned()),
        (
            device("e"),
            json!({ "template": own }),
            "spec.template.spec.containers[0].volumeDevices[0].name: Invalid value: \"e\": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode".to_owned(),
        ),
        (
            none.clone(),
            json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Keep"}}),
            "spec.persistentVolumeClaimRetentionPolicy.whenDeleted: Unsupported value: \"Keep\": supported values: \"Retain\", \"Delete\"".to_owned(),
        ),
        (
            none.clone(),
            json!({"podManagementPolicy": "Any"}),
            "spec.podManagementPolicy: Invalid value: \"Any\": must be 'OrderedReady' or 'Parallel'".to_owned(),
        ),
    ] {
        assert_eq!(errors("apps", "statefulsets", stateful_set(container, spec)), want);
    }
}

#[test]
fn validates_names() {
    let named = |group: &str, resource: &str, name: &str| {
        let mut object = made(group, resource, json!({}));
        object["metadata"]["name"] = json!(name);
        let namespaced = object["metadata"].get("namespace").is_some();
        let errors = strategy(group, resource).create_errors(&object, namespaced);
        errors.iter().any(|e| e.field.as_str() == "metadata.name")
    };
    assert!(named("", "configmaps", "A"));
    assert!(!named("", "configmaps", "a.b"));
    assert!(named("", "namespaces", "a.b"));
    assert!(!named("", "services", "1a") && named("", "services", "a.b"));
    assert!(named("apps", "statefulsets", "a.b") && !named("apps", "deployments", "a.b"));
    assert!(!named("rbac.authorization.k8s.io", "clusterroles", "system:A"));
    assert!(named("rbac.authorization.k8s.io", "clusterroles", "a/b"));
}

#[test]
fn updates_service_cidr_of_older_form() {
    let group = "networking.k8s.io";
    let old = made(group, "servicecidrs", json!({"spec": {"cidrs": ["10.0.0.5/24"]}}));
    let cidrs = strategy(group, "servicecidrs");
    let (_, errors) = updated(cidrs, &old, |o| o["metadata"]["labels"] = json!({"a": "b"}));
    assert_eq!(errors, "[]");
}

#[test]
fn updates_restore_fields_of_other_endpoints() {
    let deployments = strategy("apps", "deployments");
    let mut old = made("apps", "deployments", deployment(json!({})));
    old["status"] = json!({"replicas": 1});
    let (new, errors) = updated(deployments, &old, |o| o["status"]["replicas"] = json!(9));
    assert_eq!((new, errors.as_str()), (old.clone(), "[]"));
    let (new, _) = updated(deployments, &old, |o| o["spec"]["replicas"] = json!(3));
    assert_eq!(new.int("metadata.generation"), 2);
    let (_, errors) = updated(deployments, &old, |o| {
        o["spec"]["selector"]["matchLabels"] = json!({"z": "b"});
        o["spec"]["template"]["metadata"]["labels"] = json!({"z": "b"});
    });
    assert_eq!(
        errors,
        "spec.selector: Invalid value: {\"matchLabels\":{\"z\":\"b\"}}: field is immutable"
    );

    let mut status = old.clone();
    status["spec"]["replicas"] = json!(7);
    status["status"]["replicas"] = json!(2);
    status["metadata"]["labels"] = json!({"l": "v"});
    deployments.prepare_status(&mut status, &old, NOW);
    assert_eq!((status.int("spec.replicas"), status.int("status.replicas")), (1, 2));
    assert_eq!(status.at("metadata.labels"), old.at("metadata.labels"));
    let (new, _) = updated(deployments, &old, |o| o["metadata"]["annotations"] = json!({"a": "b"}));
    assert_eq!(new.int("metadata.generation"), 2);
    let (_, errors) =
        updated(deployments, &old, |o| o["metadata"]["deletionTimestamp"] = json!(NOW));
    assert!(errors.contains("metadata.deletionTimestamp: Invalid value"), "{errors}");

    let maps = strategy("", "configmaps");
    let old = made("", "configmaps", json!({"data": {"a": "b"}, "immutable": true}));
    let (_, errors) = updated(maps, &old, |o| o["data"]["a"] = json!("c"));
    assert_eq!(errors, "data: Forbidden: field is immutable when `immutable` is set");

    let mut dying = made("", "configmaps", json!({"metadata": {"finalizers": ["a/b"]}}));
    dying["metadata"]["deletionTimestamp"] = json!(NOW);
    let (_, errors) =
        updated(maps, &dying, |o| o["metadata"]["finalizers"] = json!(["a/b", "c/d"]));
    assert_eq!(
        errors,
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"c/d\"}"
    );
}

#[test]
fn keeps_status_of_new_node() {
    let nodes = strategy("", "nodes");
    let node = made("", "nodes", json!({"status": {"capacity": {"cpu": "1"}}}));
    assert_eq!(node["status"]["allocatable"], json!({"cpu": "1"}));
    let (new, _) = updated(nodes, &node, |o| o["status"] = json!({}));
    assert_eq!(new["status"], node["status"]);
    assert_eq!(nodes.reset_fields(""), ["status"]);
    for (capacity, refused) in [(0, true), (-1, true), (1, false)] {
        let swap = json!({"status": {"nodeInfo": {"swap": {"capacity": capacity}}}});
        let words = format!("capacity: Invalid value: {capacity}: must be greater than zero");
        assert_eq!(errors("", "nodes", swap).contains(&words), refused);
    }
}

#[test]
fn strategies_accept_empty_objects() {
    for resource in resources() {
        let strategy = strategy(resource.group, resource.name);
        let mut object = json!({});
        strategy.defaults(&mut object);
        strategy.prepare_create(&mut object, NOW);
        let errors = strategy.create_errors(&object, resource.namespaced);
        assert!(errors.iter().any(|e| e.field.as_str() == "metadata.name"), "{}", resource.name);
        for (_, read) in strategy.selectable {
            read(&object);
        }
        let _ = strategy.update_errors(&json!({}), &json!({"spec": {}}), resource.namespaced);
    }
}

/// Generates an object of a schema type from a seed. Fields and values are often invalid, sometimes of a wrong type.
fn sample(schema: &Schema, node: NodeId, depth: usize, seed: &mut u64) -> Value {
    let mut draw = |n: u64| {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 33) % n
    };
    if draw(40) == 0 {
        return [json!(null), json!(-1), json!("x"), json!([]), json!({}), json!([1, {}])]
            [draw(6) as usize]
            .clone();
    }
    let text = ["", "a", "A b", "10.0.0.1", "1Gi", "-5", "30%", "a/b", "Always"][draw(9) as usize];
    match &schema.node(node).shape {
        Shape::Struct(body) if depth > 0 => {
            let fields = body.fields.iter().filter_map(|field| {
                let value = sample(schema, field.node, depth - 1, seed);
                (!value.is_null()).then(|| (field.name.to_string(), value))
            });
            Value::Object(fields.collect())
        }
        Shape::List { item, .. } if depth > 0 => {
            let length = draw(3);
            Value::Array((0..length).map(|_| sample(schema, *item, depth - 1, seed)).collect())
        }
        Shape::Map { value, .. } if depth > 0 => {
            json!({"a": sample(schema, *value, depth - 1, seed)})
        }
        Shape::Struct(_) | Shape::Map { .. } => json!({}),
        Shape::List { .. } => json!([]),
        Shape::Integer { .. } | Shape::Number => json!(draw(100_000) as i64 - 10),
        Shape::Boolean => json!(draw(2) == 0),
        Shape::IntOrString if draw(2) == 0 => json!(draw(100)),
        _ => json!(text),
    }
}

#[test]
fn strategies_accept_random_objects() {
    let schema = Schema::builtin();
    let now: api_meta::Timestamp = NOW.parse().unwrap();
    let mut seed = 1;
    for resource in resources() {
        let strategy = strategy(resource.group, resource.name);
        let Some(node) = schema.kind(resource.group, resource.version, resource.kind) else {
            continue;
        };
        for _ in 0..20 {
            let old = sample(schema, node, 7, &mut seed);
            let mut object = sample(schema, node, 7, &mut seed);
            strategy.defaults(&mut object);
            strategy.prepare_create(&mut object, NOW);
            strategy.create_errors(&object, resource.namespaced);
            (strategy.warnings)(&object, Some(&object));
            (strategy.warnings)(&object, None);
            crate::table::cells(resource.group, resource.name, &object, now);
            strategy.selectable.iter().for_each(|(_, read)| drop(read(&object)));
            for subresource in strategy.subresources {
                let mut new = object.clone();
                strategy.prepare_subresource(subresource.name, &mut new, &old, NOW);
                strategy.subresource_errors(subresource.name, &new, &old, resource.namespaced);
            }
            let mut status = object.clone();
            strategy.prepare_status(&mut status, &old, NOW);
            strategy.status_errors(&status, &old, resource.namespaced, NOW);
            strategy.prepare_update(&mut object, &old, NOW);
            strategy.update_errors(&object, &old, resource.namespaced);
            strategy.defaults(&mut object);
            let once = object.clone();
            strategy.defaults(&mut object);
            assert_eq!(object, once, "defaults of {}", resource.name);
        }
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one scenario")]
fn warns_in_upstream_words() {
    let warnings = |group: &str, resource: &str, object: Value| {
        (strategy(group, resource).warnings)(&made(group, resource, object), None)
    };
    let service = |spec: Value| warnings("", "services", json!({ "spec": spec }));
    assert_eq!(
        service(
            json!({"clusterIP": "None", "sessionAffinity": "ClientIP", "loadBalancerIP": "1.2.3.4", "externalIPs": ["FD::1"]})
        ),
        [
            "spec.loadBalancerIP is ignored for headless services",
            "spec.externalIPs is ignored for headless services",
            "spec.SessionAffinity is ignored for headless services",
            "spec.externalIPs[0]: IPv6 address \"FD::1\" should be in RFC 5952 canonical format (\"fd::1\")",
        ]
    );
    assert_eq!(
        service(json!({"externalName": "a.b", "loadBalancerSourceRanges": ["10.0.0.1/8"]})),
        [
            "spec.loadBalancerSourceRanges[0]: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ]
    );
    for (group, resource, object, want) in [
        (
            "",
            "persistentvolumes",
            json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle"}}),
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
        ),
        (
            "",
            "persistentvolumes",
            json!({"spec": {"cephfs": {}}}),
            "spec.cephfs: deprecated in v1.28, non-functional in v1.31+",
        ),
        (
            "",
            "persistentvolumeclaims",
            json!({"spec": {"resources": {"requests": {"storage": "1500m"}}}}),
            "spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer",
        ),
        (
            "",
            "nodes",
            json!({"spec": {"podCIDRs": ["FD::/64"]}}),
            "spec.podCIDRs[0]: IPv6 CIDR value \"FD::/64\" should be in RFC 5952 canonical format (\"fd::/64\")",
        ),
        (
            "",
            "serviceaccounts",
            json!({"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}}),
            "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets",
        ),
        (
            "networking.k8s.io",
            "networkpolicies",
            json!({"spec": {"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "10.1.0.0/8"}}]}]}}),
            "spec.egress[0].to[0].ipBlock.cidr: CIDR value \"10.1.0.0/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.1.0.0/32\"?)",
        ),
        (
            "node.k8s.io",
            "runtimeclasses",
            json!({"handler": "h", "scheduling": {"nodeSelector": {"node-role.kubernetes.io/master": ""}}}),
            "scheduling.nodeSelector: use \"node-role.kubernetes.io/control-plane\" instead",
        ),
        (
            "storage.k8s.io",
            "storageclasses",
            json!({"provisioner": "p", "allowedTopologies": [{"matchLabelExpressions": [{"key": "beta.kubernetes.io/arch", "values": ["a"]}]}]}),
            "allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        ),
        (
            "storage.k8s.io",
            "csidrivers",
            json!({"spec": {"tokenRequests": [{"audience": "a"}]}}),
            "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes",
        ),
    ] {
        assert_eq!(warnings(group, resource, object), [want]);
    }

    // An update warns about changes in the template, but not about the name.
    let mut old = made("apps", "deployments", deployment(json!({})));
    old["metadata"]["name"] = json!("a.b");
    old["spec"]["template"]["spec"]["hostAliases"] = json!([{"ip": "::1"}, {"ip": "::1"}]);
    let warnings = strategy("apps", "deployments").warnings;
    assert_eq!(warnings(&old, None).len(), 2);
    assert_eq!(warnings(&old, Some(&old)), Vec::<String>::new());
    let mut new = old.clone();
    new["metadata"]["generation"] = json!(2);
    assert_eq!(
        warnings(&new, Some(&old)),
        ["spec.template.spec.hostAliases[1].ip: duplicate ip \"::1\""]
    );
}

use api_schema::Schema;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Context, created, update};
use crate::{FieldSet, testing::pod_schema};

/// Runs a chain of writes (manager, subresource, object) and returns the last object.
fn chain(writes: &[(&str, &str, Value)]) -> Value {
    let (schema, root) = pod_schema();
    let mut live: Option<Value> = None;
    for (i, (manager, subresource, object)) in writes.iter().enumerate() {
        let now = format!("2026-01-01T00:00:{i:02}Z");
        let ctx = Context {
            schema: &schema,
            node: Some(root),
            manager,
            api_version: "v1",
            subresource,
            now: &now,
            reset: None,
            versions: None,
            force: false,
        };
        let mut new = object.clone();
        update(&ctx, live.as_ref(), &mut new);
        live = Some(new);
    }
    live.unwrap()
}

fn entries(object: &Value) -> Vec<(String, Value)> {
    let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    list.iter()
        .map(|e| {
            let subresource = e.get("subresource").and_then(Value::as_str).unwrap_or("");
            let slash = if subresource.is_empty() { "" } else { "/" };
            let id = format!(
                "{}{slash}{subresource} {} {}",
                e["manager"].as_str().unwrap(),
                e["operation"].as_str().unwrap(),
                &e["time"].as_str().unwrap()[17..19]
            );
            (id, e["fieldsV1"].clone())
        })
        .collect()
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": {"a": "b"}, "finalizers": ["x/y"],
            "ownerReferences": [{"uid": "1", "name": "o"}]},
        "spec": {
            "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}], "resources": {}}],
            "args": ["a"], "strategy": {"type": "R", "rollingUpdate": {"maxSurge": 1}}, "selector": {"matchLabels": {"a": "b"}}},
        "status": {}
    })
}

fn pod_fields() -> Value {
    json!({
        "f:metadata": {
            "f:labels": {".": {}, "f:a": {}},
            "f:finalizers": {".": {}, "v:\"x/y\"": {}},
            "f:ownerReferences": {".": {}, "k:{\"uid\":\"1\"}": {}}},
        "f:spec": {
            "f:containers": {"k:{\"name\":\"c\"}": {
                ".": {}, "f:name": {}, "f:image": {}, "f:resources": {},
                "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}}}},
            "f:args": {},
            "f:strategy": {"f:type": {}, "f:rollingUpdate": {".": {}, "f:maxSurge": {}}},
            "f:selector": {}}
    })
}

#[test]
fn creator_owns_all_set_fields() {
    let made = chain(&[("kubectl", "", pod())]);
    assert_eq!(entries(&made), [("kubectl Update 00".to_owned(), pod_fields())]);
    assert_eq!(made["metadata"]["managedFields"][0]["fieldsType"], "FieldsV1");
}

#[test]
fn writer_owns_changed_fields() {
    let mut scaled = pod();
    scaled["spec"]["replicas"] = json!(3);
    scaled["spec"]["containers"][0]["image"] = json!("j");
    let mut done = scaled.clone();
    done["status"]["phase"] = json!("Running");
    let object = chain(&[("a", "", pod()), ("b", "", scaled), ("kubelet", "status", done)]);
    let mut left = FieldSet::from_value(pod_fields()).unwrap();
    let taken = json!({"f:spec": {"f:replicas": {}, "f:containers": {"k:{\"name\":\"c\"}": {"f:image": {}}}}});
    left.difference(&FieldSet::from_value(taken.clone()).unwrap());
    assert_eq!(
        entries(&object),
        [
            ("a Update 00".to_owned(), left.into_value()),
            ("b Update 01".to_owned(), taken),
            ("kubelet/status Update 02".to_owned(), json!({"f:status": {"f:phase": {}}})),
        ]
    );
}

/// Go distinguishes an empty list from nil.
#[test]
fn given_empty_list_is_owned() {
    let (mut empty, mut nil) = (pod(), pod());
    empty["spec"]["containers"] = json!([]);
    nil["spec"]["containers"] = Value::Null;
    let owned =
        |object| entries(&chain(&[("a", "", object)]))[0].1["f:spec"].get("f:containers").cloned();
    assert_eq!((owned(empty), owned(nil)), (Some(json!({})), None));
}

#[test]
fn removed_fields_have_no_owner() {
    let mut bare = pod();
    bare["metadata"]["labels"] = json!({});
    bare["spec"].as_object_mut().unwrap().remove("args");
    bare["spec"]["containers"] = json!([{"name": "n"}]);
    let object = chain(&[("a", "", pod()), ("b", "", bare)]);
    let found = entries(&object);
    assert_eq!(
        found[1].1,
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"n\"}": {".": {}, "f:name": {}}}}})
    );
    assert_eq!(found[0].1["f:metadata"]["f:labels"], json!({}));
    assert_eq!(found[0].1["f:spec"].get("f:args"), None);
    assert_eq!(found[0].1["f:spec"].get("f:containers"), None);
}

#[test]
fn duplicate_items_are_owned_as_one() {
    let with = |names: &[&str]| {
        let mut object = pod();
        let list: Vec<Value> = names.iter().map(|n| json!({"name": n, "image": "i"})).collect();
        object["spec"]["containers"] = list.into();
        object
    };
    let x = |object: &Value, entry: usize| {
        let list = &entries(object)[entry].1["f:spec"]["f:containers"];
        list.get("k:{\"name\":\"x\"}").cloned()
    };
    let doubled = chain(&[("a", "", with(&["x"])), ("b", "", with(&["x", "x"]))]);
    assert_eq!((x(&doubled, 0), x(&doubled, 1)), (None, Some(json!({}))));
    let single = chain(&[("a", "", with(&["x", "x"])), ("b", "", with(&["x"]))]);
    let whole = json!({".": {}, "f:name": {}, "f:image": {}});
    assert_eq!((x(&single, 0), x(&single, 1)), (None, Some(whole)));
}

#[test]
fn unchanged_write_keeps_times() {
    let first = chain(&[("a", "", pod())]);
    let second = chain(&[("a", "", pod()), ("a", "", first.clone()), ("b", "", pod())]);
    assert_eq!(first, second);
}

#[test]
fn removes_entries_only_for_one_empty_entry() {
    let with = |list: Value| {
        let mut object = pod();
        object["metadata"]["managedFields"] = list;
        object
    };
    let stripped = chain(&[("a", "", pod()), ("a", "", with(json!([{}])))]);
    assert_eq!(stripped["metadata"].get("managedFields"), None);
    let kept = chain(&[("a", "", pod()), ("a", "", with(json!([])))]);
    assert_eq!(entries(&kept).len(), 1);
    let nonsense = chain(&[("a", "", pod()), ("a", "", with(json!([{"operation": "Eat"}])))]);
    assert_eq!(entries(&nonsense).len(), 1);
    // After the entries are removed, updates are not tracked.
    let mut next = pod();
    next["spec"]["replicas"] = json!(1);
    let later = chain(&[("a", "", pod()), ("a", "", with(json!([{}]))), ("b", "", next)]);
    assert_eq!(later["metadata"].get("managedFields"), None);
}

#[test]
fn clients_may_edit_the_entries() {
    let mut object = pod();
    object["metadata"]["managedFields"] = json!([{"manager": "m", "operation": "Apply", "apiVersion": "v1",
        "time": "2020-01-01T00:00:07Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:args": {}}}}]);
    let object = chain(&[("a", "", pod()), ("a", "", object)]);
    assert_eq!(entries(&object), [("m Apply 07".to_owned(), json!({"f:spec": {"f:args": {}}}))]);
}

#[test]
fn merges_oldest_update_managers() {
    let mut writes = vec![("m0".to_owned(), pod())];
    for i in 1..15 {
        let mut object = pod();
        for j in 1..=i {
            object["metadata"]["labels"][format!("l{j}")] = json!("x");
        }
        writes.push((format!("m{i}"), object));
    }
    let writes: Vec<(&str, &str, Value)> =
        writes.iter().map(|(m, o)| (m.as_str(), "", o.clone())).collect();
    let object = chain(&writes);
    let found = entries(&object);
    assert_eq!(found.len(), 10);
    assert_eq!(found[0].0, "ancient-changes Update 05");
    assert_eq!(found[9].0, "m14 Update 14");
    let labels = found[0].1["f:metadata"]["f:labels"].as_object().unwrap();
    assert_eq!(labels.len(), 7);
}

#[test]
fn reset_fields_are_not_owned() {
    let (schema, root) = pod_schema();
    let reset = FieldSet::of(&["status"]);
    let mut object = pod();
    object["status"]["phase"] = json!("Running");
    let ctx = Context {
        schema: &schema,
        node: Some(root),
        manager: "a",
        api_version: "v1",
        subresource: "",
        now: "2026-01-01T00:00:00Z",
        reset: Some(&reset),
        versions: None,
        force: false,
    };
    update(&ctx, None, &mut object);
    assert_eq!(entries(&object)[0].1, pod_fields());
}

/// The entries that upstream records for `kubectl create deployment web --image=nginx --port=80`.
#[test]
fn tracks_deployment_like_upstream() {
    let schema = Schema::builtin();
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
        "spec": {
            "replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
                "containers": [{"name": "nginx", "image": "nginx", "imagePullPolicy": "Always", "resources": {},
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                "securityContext": {}, "terminationGracePeriodSeconds": 30}}},
        "status": {}});
    let ctx = Context {
        schema,
        node: schema.kind("apps", "v1", "Deployment"),
        manager: "kubectl-create",
        api_version: "apps/v1",
        subresource: "",
        now: "2026-01-01T00:00:00Z",
        reset: None,
        versions: None,
        force: false,
    };
    update(&ctx, None, &mut object);
    assert_eq!(
        entries(&object)[0].1,
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:progressDeadlineSeconds": {}, "f:replicas": {}, "f:revisionHistoryLimit": {}, "f:selector": {},
                "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}, "f:type": {}},
                "f:template": {
                    "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                    "f:spec": {
                        "f:containers": {"k:{\"name\":\"nginx\"}": {
                            ".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {},
                            "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                                ".": {}, "f:containerPort": {}, "f:protocol": {}}},
                            "f:resources": {}, "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}}},
                        "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
                        "f:terminationGracePeriodSeconds": {}}}}})
    );
}

/// Generates objects for the test schema, some of them invalid: lists instead of maps, nulls, and list items with
/// duplicate or missing keys.
fn any_object() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3).prop_map(Value::from),
        "[a\"\\\\.é]{0,2}".prop_map(Value::from),
    ];
    let names = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "labels",
        "name",
        "uid",
        "finalizers",
        "ownerReferences",
        "containers",
        "ports",
        "containerPort",
        "protocol",
        "resources",
        "limits",
        "strategy",
        "rollingUpdate",
        "selector",
        "args",
        "named",
        "image",
        "a",
        ".",
        "a\"b",
    ]);
    let inner = scalar.prop_recursive(6, 96, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| {
        let mut pod = pod();
        pod["metadata"]["labels"] = a;
        pod["spec"]["containers"][0]["ports"] = b.clone();
        pod["spec"]["named"] = b;
        match c {
            Value::Object(map) => pod.as_object_mut().unwrap().extend(map),
            other => pod["spec"]["containers"] = other,
        }
        pod
    })
}

proptest! {
    /// The text for a create equals the difference to an absent object.
    #[test]
    fn created_fields_equal_difference_to_nothing(object in any_object(), reset in any::<bool>()) {
        let (schema, root) = pod_schema();
        let reset = reset.then(|| FieldSet::of(&["status", "spec.containers", "metadata.labels.a"]));
        let ctx = Context {
            schema: &schema,
            node: Some(root),
            manager: "m\"",
            api_version: "v1",
            subresource: "",
            now: "2026-01-01T00:00:00Z",
            reset: reset.as_ref(),
            versions: None,
            force: false,
        };
        let mut tree = object.clone();
        update(&ctx, None, &mut tree);
        let expected = crate::managed::of(&tree);
        match created(&ctx, &object) {
            Some(text) => {
                prop_assert_eq!(&serde_json::from_slice::<Value>(&text).unwrap(), expected);
                prop_assert_eq!(String::from_utf8(text).unwrap(), expected.to_string());
            }
            None => {
                let plain = object["metadata"].is_object() && crate::managed::of(&object).is_null();
                prop_assert!(!plain || expected.is_null());
            }
        }
    }
}

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{ApplyError, apply};
use crate::{Context, FieldSet, testing::pod_schema, typed::extract::extract, update};

enum Op {
    Apply(&'static str, Value),
    Force(&'static str, Value),
    /// Changes the live object through a function, as an update does.
    Update(&'static str, fn(&mut Value)),
}
use Op::{Apply, Force, Update};

fn config(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
}

fn run(ops: &[Op]) -> Result<Value, ApplyError> {
    let (schema, root) = pod_schema();
    let mut live: Option<Value> = None;
    for (i, op) in ops.iter().enumerate() {
        let now = format!("2026-01-01T00:00:{i:02}Z");
        let (Apply(manager, _) | Force(manager, _) | Update(manager, _)) = op;
        let ctx = Context {
            schema: &schema,
            node: Some(root),
            manager,
            api_version: "v1",
            subresource: "",
            now: &now,
            reset: None,
            versions: None,
            force: matches!(op, Force(..)),
        };
        live = Some(match op {
            Apply(_, config) | Force(_, config) => apply(&ctx, live.as_ref(), config)?,
            Update(_, change) => {
                let mut new = live.clone().unwrap_or_else(|| config(json!({})));
                change(&mut new);
                update(&ctx, live.as_ref(), &mut new);
                new
            }
        });
    }
    Ok(live.unwrap())
}

fn spec(ops: &[Op]) -> Value {
    run(ops).unwrap()["spec"].clone()
}

fn owned(object: &Value, manager: &str) -> Value {
    let list = object["metadata"]["managedFields"].as_array().unwrap();
    list.iter().find(|e| e["manager"] == manager).map_or(Value::Null, |e| e["fieldsV1"].clone())
}

#[test]
fn applier_owns_applied_fields() {
    let object = run(&[Apply(
        "a",
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": {"x": "y"}},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}], "args": [], "strategy": {}}}),
    )])
    .unwrap();
    assert_eq!(
        owned(&object, "a"),
        json!({
            "f:metadata": {"f:labels": {"f:x": {}}},
            "f:spec": {
                "f:args": {}, "f:strategy": {},
                "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {},
                    "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}}}})
    );
    assert_eq!(object["metadata"]["managedFields"][0]["operation"], "Apply");
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn removes_dropped_fields_unless_shared() {
    let cases: [(&[Op], Value); 7] = [
        // A field that only this manager owned is removed, with parents that become empty.
        (
            &[
                Apply(
                    "a",
                    config(json!({"replicas": 1, "strategy": {"rollingUpdate": {"maxSurge": 1}}})),
                ),
                Apply("a", config(json!({"nodeName": "n"}))),
            ],
            json!({"nodeName": "n"}),
        ),
        // A shared field stays.
        (
            &[
                Apply("a", config(json!({"replicas": 1, "nodeName": "n"}))),
                Apply("b", config(json!({"replicas": 1}))),
                Apply("a", config(json!({"nodeName": "n"}))),
            ],
            json!({"replicas": 1, "nodeName": "n"}),
        ),
        // Unowned fields are removed with the enclosing struct...
        (
            &[
                Apply(
                    "a",
                    config(
                        json!({"nodeName": "n", "strategy": {"rollingUpdate": {"maxSurge": 1}}}),
                    ),
                ),
                Apply("a", config(json!({"nodeName": "n"}))),
            ],
            json!({"nodeName": "n"}),
        ),
        // ... but stay if another manager keeps the struct.
        (
            &[
                Apply(
                    "a",
                    config(json!({"strategy": {"type": "R", "rollingUpdate": {"maxSurge": 1}}})),
                ),
                Update("b", |o| {
                    o["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] = json!(2)
                }),
                Apply("a", config(json!({"nodeName": "n"}))),
            ],
            json!({"nodeName": "n", "strategy": {"rollingUpdate": {"maxUnavailable": 2}}}),
        ),
        // List items are identified by key.
        (
            &[
                Apply(
                    "a",
                    config(json!({"containers": [{"name": "x", "image": "1"}, {"name": "y"}]})),
                ),
                Apply("b", config(json!({"containers": [{"name": "z"}]}))),
                Apply("a", config(json!({"containers": [{"name": "y", "image": "2"}]}))),
            ],
            json!({"containers": [{"name": "y", "image": "2"}, {"name": "z"}]}),
        ),
        // An item is the same whether a key with a default is set or not.
        (
            &[
                Apply(
                    "a",
                    config(
                        json!({"containers": [{"name": "x", "ports": [{"containerPort": 80}]}]}),
                    ),
                ),
                Update("d", |o| o["spec"]["containers"][0]["ports"][0]["protocol"] = json!("TCP")),
                Apply(
                    "a",
                    config(json!({"containers": [{"name": "x",
                    "ports": [{"containerPort": 80, "name": "h"}, {"containerPort": 80, "protocol": "UDP"}]}]})),
                ),
            ],
            json!({"containers": [{"name": "x", "ports": [
                {"containerPort": 80, "protocol": "TCP", "name": "h"}, {"containerPort": 80, "protocol": "UDP"}]}]}),
        ),
        // Atomic lists are replaced as a whole.
        (
            &[
                Apply("a", config(json!({"args": ["1", "2"]}))),
                Apply("a", config(json!({"args": ["3"]}))),
            ],
            json!({"args": ["3"]}),
        ),
    ];
    for (ops, want) in cases {
        assert_eq!(spec(ops), want);
    }
}

#[test]
fn orders_merged_lists() {
    let names = |list: &[&str]| {
        let list: Vec<Value> = list.iter().map(|n| json!({"name": n})).collect();
        json!({ "containers": list })
    };
    let cases: [(&[&str], &[&str], &[&str]); 7] = [
        (&["a", "b", "b"], &["b", "c"], &["a", "b", "c"]),
        (&["a", "b", "c", "d", "e"], &["x", "d", "y", "b"], &["a", "c", "x", "d", "e", "y", "b"]),
        (&["a", "b"], &["c"], &["a", "b", "c"]),
        (&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]),
        (&["a", "b", "c"], &["b", "d"], &["a", "b", "c", "d"]),
        (&["a", "b"], &["d", "b"], &["a", "d", "b"]),
        (&[], &["b", "a"], &["b", "a"]),
    ];
    for (live, applied, want) in cases {
        let live = config(names(live));
        let (schema, root) = pod_schema();
        let merged =
            crate::typed::merge::merge(&schema, Some(root), Some(live), &config(names(applied)));
        assert_eq!(merged["spec"], names(want), "{applied:?}");
    }
}

#[test]
fn reports_conflicts_with_managers() {
    let made = || Update("kubectl-client-side-apply", |o| o["spec"]["replicas"] = json!(1));
    let error = run(&[made(), Apply("a", config(json!({"replicas": 2})))]).unwrap_err();
    assert_eq!(error.code(), 409);
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using v1: .spec.replicas"
    );
    let error = run(&[
        made(),
        Apply("b", config(json!({"containers": [{"name": "c", "image": "1"}], "nodeName": "n"}))),
        Apply("a", config(json!({"replicas": 2, "nodeName": "m", "containers": [{"name": "c", "image": "2"}]}))),
    ])
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"b\":\n\
         - .spec.containers[name=\"c\"].image\n- .spec.nodeName\n\
         conflicts with \"kubectl-client-side-apply\" using v1:\n- .spec.replicas"
    );
}

#[test]
fn force_takes_over_and_equal_values_are_shared() {
    let object = run(&[
        Apply("b", config(json!({"replicas": 1, "nodeName": "n"}))),
        Force("a", config(json!({"replicas": 2, "nodeName": "n"}))),
    ])
    .unwrap();
    assert_eq!(object["spec"], json!({"replicas": 2, "nodeName": "n"}));
    assert_eq!(owned(&object, "b"), json!({"f:spec": {"f:nodeName": {}}}));
    assert_eq!(owned(&object, "a"), json!({"f:spec": {"f:nodeName": {}, "f:replicas": {}}}));
}

#[test]
fn unchanged_apply_keeps_times() {
    let a = || Apply("a", config(json!({"replicas": 1})));
    let b = || Apply("b", config(json!({"nodeName": "n"})));
    assert_eq!(run(&[a(), b()]).unwrap(), run(&[a(), b(), a()]).unwrap());
}

#[test]
fn untracked_object_gets_before_first_apply_manager() {
    let strip = |o: &mut Value| o["metadata"]["managedFields"] = json!([{}]);
    let ops = [
        Update("x", |o| o["spec"]["replicas"] = json!(1)),
        Update("x", strip),
        Apply("a", config(json!({"replicas": 2}))),
    ];
    assert_eq!(
        run(&ops).unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .spec.replicas"
    );
}

#[test]
fn kubectl_takes_over_its_client_side_applies() {
    let made = || {
        Update("kubectl-client-side-apply", |o| {
            o["spec"] = json!({"replicas": 1, "nodeName": "n"});
            o["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration":
                "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"p\"},\"spec\":{\"replicas\":1,\"nodeName\":\"n\"}}\n"});
        })
    };
    let object = run(&[made(), Apply("kubectl", config(json!({"replicas": 2})))]).unwrap();
    assert_eq!(object["spec"]["replicas"], 2);
    assert_eq!(
        object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"],
        "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"p\"},\"spec\":{\"replicas\":2}}\n"
    );
    // Fields that another manager has changed since still conflict, and other managers cannot take over fields.
    let changed = Update("other", |o| o["spec"]["replicas"] = json!(5));
    let error =
        run(&[made(), changed, Apply("kubectl", config(json!({"replicas": 2})))]).unwrap_err();
    assert!(error.to_string().contains("conflict with \"other\" using v1: .spec.replicas"));
    assert!(run(&[made(), Apply("helm", config(json!({"replicas": 2})))]).is_err());
}

#[test]
fn rejects_invalid_configurations() {
    let typed = "failed to create typed patch object (/p; /v1, Kind=Pod): ";
    let cases = [
        (json!({"foo": 1}), ".spec.foo: field not declared in schema"),
        (
            json!({"containers": [{"name": "a"}, {"name": "a"}]}),
            ".spec.containers: duplicate entries for key [name=\"a\"]",
        ),
        (
            json!({"containers": [{"image": "a"}], "foo": 1}),
            "errors:\n  .spec.containers: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)\n  .spec.foo: field not declared in schema",
        ),
    ];
    for (spec, want) in cases {
        let error = run(&[Apply("a", config(spec))]).unwrap_err();
        assert_eq!(error.to_string(), format!("{typed}{want}"));
    }
    let managed = json!({"apiVersion": "v1", "metadata": {"managedFields": []}});
    let error = run(&[Apply("a", managed)]).unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.code()),
        ("metadata.managedFields must be nil", 400)
    );
    let version = run(&[Apply("a", json!({"apiVersion": "v2"}))]).unwrap_err();
    assert_eq!(version.code(), 400);
}

/// Generates specs over a small alphabet.
fn specs() -> impl Strategy<Value = Value> {
    let container = ("[abc]", prop::option::of("[12]"), prop::option::of(80..82u16));
    let containers = prop::collection::vec(container, 0..3);
    let parts = (
        containers,
        prop::option::of(0..3u8),
        prop::collection::vec("[xy]", 0..3),
        prop::option::of("[pq]"),
    );
    parts.prop_map(|(containers, replicas, args, kind)| {
        let mut spec = json!({});
        let mut list: Vec<Value> = Vec::new();
        for (name, image, port) in containers {
            if list.iter().any(|c| c["name"] == name.as_str()) {
                continue;
            }
            let mut container = json!({ "name": name });
            if let Some(i) = image {
                container["image"] = i.into();
            }
            if let Some(p) = port {
                container["ports"] = json!([{ "containerPort": p }]);
            }
            list.push(container);
        }
        if !list.is_empty() {
            spec["containers"] = list.into();
        }
        if let Some(r) = replicas {
            spec["replicas"] = r.into();
        }
        if !args.is_empty() {
            spec["args"] = args.into();
        }
        if let Some(k) = kind {
            spec["strategy"] = json!({ "type": k });
        }
        spec
    })
}

proptest! {
    #[test]
    fn applying_twice_changes_nothing(one in specs(), two in specs()) {
        let ops = |n| [Apply("a", config(one.clone())), Force("b", config(two.clone())), Force("b", config(two.clone()))]
            .into_iter().take(n).collect::<Vec<_>>();
        prop_assert_eq!(run(&ops(2)).unwrap(), run(&ops(3)).unwrap());
    }

    #[test]
    fn reapplying_after_another_changes_nothing(one in specs(), two in specs()) {
        let first = [Force("a", config(one.clone())), Force("b", config(two)), Force("a", config(one.clone()))];
        let again = Force("a", config(one));
        let before = run(&first).unwrap();
        prop_assert_eq!(before, run(&first.into_iter().chain([again]).collect::<Vec<_>>()).unwrap());
    }

    #[test]
    fn only_applier_gets_its_configuration(one in specs(), two in specs()) {
        let object = run(&[Apply("a", config(one)), Apply("a", config(two.clone()))]).unwrap();
        let spec = object.get("spec").cloned().unwrap_or_else(|| json!({}));
        prop_assert_eq!(spec, two);
    }

    #[test]
    fn applier_owns_its_configuration_after_force(one in specs(), two in specs()) {
        let object = run(&[Apply("a", config(one)), Force("b", config(two.clone()))]).unwrap();
        let alone = run(&[Apply("b", config(two))]).unwrap();
        prop_assert_eq!(owned(&object, "b"), owned(&alone, "b"));
        for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
            prop_assert!(FieldSet::from_value(entry["fieldsV1"].clone()).is_ok());
        }
    }
}

/// Two versions with different names for the same field: `replicas` and `count`.
struct Renamed(api_schema::Schema, api_schema::NodeId);

impl crate::Versions for Renamed {
    fn types(&self, api_version: &str) -> Option<(&api_schema::Schema, api_schema::NodeId)> {
        matches!(api_version, "v1" | "v2").then_some((&self.0, self.1))
    }

    fn convert(&self, object: &Value, _: &str, to: &str) -> Value {
        let (from, to) = if to == "v1" { ("count", "replicas") } else { ("replicas", "count") };
        let mut object = object.clone();
        if let Some(spec) = object["spec"].as_object_mut()
            && let Some(value) = spec.remove(from)
        {
            spec.insert(to.to_owned(), value);
        }
        object
    }
}

#[test]
fn compares_each_owner_in_its_own_version() {
    let (schema, root) = pod_schema();
    let versions = Renamed(schema, root);
    let ctx = |manager, api_version, force| Context {
        schema: &versions.0,
        node: Some(root),
        manager,
        api_version,
        versions: Some(&versions),
        subresource: "",
        now: "2026-01-01T00:00:00Z",
        reset: None,
        force,
    };
    let of = |version: &str, spec: Value| json!({"apiVersion": version, "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    let as_v2 = |object: &Value| crate::Versions::convert(&versions, object, "v1", "v2");
    let first = apply(&ctx("a", "v1", false), None, &of("v1", json!({"replicas": 1}))).unwrap();

    // Another manager's value of the same field under its other name.
    let (live, wanted) = (as_v2(&first), of("v2", json!({"count": 2})));
    let refused = apply(&ctx("b", "v2", false), Some(&live), &wanted).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 1 conflict: conflict with \"a\": .spec.replicas"
    );
    let forced = apply(&ctx("b", "v2", true), Some(&live), &wanted).unwrap();
    assert_eq!(owned(&forced, "a"), Value::Null);
    assert_eq!(owned(&forced, "b"), json!({"f:spec": {"f:count": {}}}));
    let mut updated = live.clone();
    updated["spec"]["count"] = json!(3);
    update(&ctx("c", "v2", false), Some(&live), &mut updated);
    assert_eq!(owned(&updated, "a"), Value::Null);

    // An equal value is shared, and stays until the last owner drops it in any version.
    let shared =
        apply(&ctx("b", "v2", false), Some(&live), &of("v2", json!({"count": 1}))).unwrap();
    let none = |version: &str| of(version, json!({}));
    let kept = apply(&ctx("a", "v2", false), Some(&shared), &none("v2")).unwrap();
    assert_eq!(kept["spec"], json!({"count": 1}));
    let gone = apply(&ctx("b", "v1", false), Some(&of_v1(&versions, &kept)), &none("v1")).unwrap();
    assert_eq!(gone.pointer("/spec/replicas"), None);

    // An owner in a removed version owns nothing.
    let mut old = live;
    old["metadata"]["managedFields"][0]["apiVersion"] = json!("v0");
    let taken = apply(&ctx("b", "v2", false), Some(&old), &wanted).unwrap();
    assert_eq!(owned(&taken, "a"), Value::Null);
}

fn of_v1(versions: &Renamed, object: &Value) -> Value {
    crate::Versions::convert(versions, object, "v2", "v1")
}

#[test]
fn identifies_items_by_partial_keys() {
    let schema = api_schema::Schema::builtin();
    let ctx = Context {
        schema,
        node: schema.kind("resource.k8s.io", "v1", "ResourceClaim"),
        manager: "driver",
        api_version: "resource.k8s.io/v1",
        subresource: "status",
        now: "2026-01-01T00:00:00Z",
        reset: None,
        versions: None,
        force: false,
    };
    let claim = |device: Value| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "c"}, "status": {"devices": [device]}})
    };
    let device = json!({"driver": "d", "pool": "p", "device": "x", "data": {"a": 1}});
    let made = apply(&ctx, None, &claim(device)).unwrap();
    let devices = &owned(&made, "driver")["f:status"]["f:devices"];
    let keys: Vec<&String> = devices.as_object().unwrap().keys().collect();
    assert_eq!(keys, [r#"k:{"device":"x","driver":"d","pool":"p"}"#]);
    // Go always writes this key, so its zero value is part of the identity. Validation rejects it.
    let made = apply(&ctx, None, &claim(json!({"data": {}}))).unwrap();
    let devices = &owned(&made, "driver")["f:status"]["f:devices"];
    let keys: Vec<&String> = devices.as_object().unwrap().keys().collect();
    assert_eq!(keys, [r#"k:{"device":"","driver":"","pool":""}"#]);
}

#[test]
fn validates_contents_of_atomic_values() {
    let schema = api_schema::Schema::builtin();
    let errors = |group: &str, version: &str, kind: &str, object: Value| {
        extract(schema, schema.kind(group, version, kind), &object).err().unwrap_or_default()
    };
    let backend = json!({"serviceName": "s", "service": {"name": 1, "port": {"number": "80"}}});
    let ingress = json!({"spec": {"rules": [{"http": {"paths": [{"backend": backend}]}}]}});
    let mut found = errors("networking.k8s.io", "v1", "Ingress", ingress);
    found.sort();
    let at = ".spec.rules[0].http.paths[0].backend";
    assert_eq!(
        found,
        [
            format!("{at}.service.name: expected string, got &value.valueUnstructured{{Value:1}}"),
            format!("{at}.service.port.number: expected numeric (int or float), got string"),
            format!("{at}.serviceName: field not declared in schema"),
        ]
    );
    let map = json!({"immutable": "yes", "data": {"a": true, "b": null}});
    assert_eq!(
        errors("", "v1", "ConfigMap", map),
        [
            ".data.a: expected string, got &value.valueUnstructured{Value:true}",
            ".immutable: expected boolean, got &{yes}",
        ]
    );
    let fits = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": 1}},
        "livenessProbe": {"httpGet": {"port": "http"}}}]}});
    assert_eq!(errors("", "v1", "Pod", fits), Vec::<String>::new());
}

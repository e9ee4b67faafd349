//! Robustness tests with malformed patches of all four kinds.

use api_schema::Schema;
use serde_json::{Value, json};

use crate::context::Context;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn deployment() -> Value {
    json!({"metadata": {"name": "d", "finalizers": ["a", "b"], "labels": {"x": "y"}}, "spec": {"template": {"spec": {
        "containers": [{"name": "a", "image": "i", "env": [{"name": "E", "value": "1"}]}, {"name": "b", "image": "j"}]}}}})
}

#[test]
fn json_patches() {
    let object = deployment();
    let patch = br#"[{"op":"test","path":"/metadata/name","value":"d"},{"op":"copy","from":"/spec","path":"/spec/x"},
        {"op":"move","from":"/metadata/labels","path":"/a~1b"},{"op":"add","path":"/metadata/finalizers/-","value":1},
        {"op":"remove","path":"/spec/template/spec/containers/0"},{"op":"replace","path":"","value":{}}]"#;
    // Repeated copies double an object with each step.
    let growing = format!(
        "[{}]",
        [r#"{"op":"copy","from":"/spec","path":"/spec/template/x"}"#; 60].join(",")
    );
    fuzz::fuzz(HERE, "json-patch", &[patch, growing.as_bytes()], |input| {
        let _ = crate::json::json_patch(&object, input);
    });
}

#[test]
fn merge_and_strategic_merge_patches() {
    let schema = Schema::builtin();
    let node = schema.kind("apps", "v1", "Deployment");
    let patch = br#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],"labels":{"$patch":"replace","n":"m"}},
        "spec":{"$retainKeys":["template"],"template":{"spec":{"$setElementOrder/containers":[{"name":"b"},{"name":"a"}],
        "containers":[{"name":"a","$patch":"delete"},{"name":"c","env":null}]}}}}"#;
    fuzz::fuzz(HERE, "merge-patch", &[patch], |input| {
        let Ok(patch) = serde_json::from_slice::<Value>(input) else { return };
        let _ = crate::json::merge_patch(&mut deployment(), &patch);
        let _ = crate::strategic(schema, node, &mut deployment(), &patch);
    });
}

/// Merges the second value of an input into the first one, a Deployment.
fn merge_strategically(input: &[u8]) {
    let schema = Schema::builtin();
    let node = schema.kind("apps", "v1", "Deployment");
    let Ok((mut object, patch)) = serde_json::from_slice::<(Value, Value)>(input) else { return };
    let _ = crate::strategic(schema, node, &mut object, &patch);
}

/// Builds a Deployment with `count` variables that are numbered from `from`.
fn with_variables(from: usize, count: usize) -> Value {
    let variables: Vec<Value> =
        (from..from + count).map(|i| json!({"name": format!("V{i}"), "value": "x"})).collect();
    let containers = json!([{"name": "a", "env": variables}]);
    json!({"spec": {"template": {"spec": {"containers": containers}}}})
}

#[test]
fn strategic_merge_patches() {
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]},
        "spec": {"template": {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
        "containers": [{"name": "a", "env": [{"name": "E", "$patch": "delete"}]}, {"name": "b", "$patch": "replace"}]}}}});
    let seeds = [
        json!([deployment(), patch]).to_string(),
        json!([with_variables(0, 3), with_variables(1, 3)]).to_string(),
    ];
    let seeds = seeds.each_ref().map(|seed| seed.as_bytes());
    fuzz::fuzz(HERE, "strategic", &seeds, merge_strategically);
}

#[test]
fn strategic_merge_of_many_variables() {
    let merge = |object: Value, patch: Value| json!([object, patch]).to_string().into_bytes();
    let mut ordered = with_variables(20_000, 40_000);
    let names: Vec<Value> =
        (0..40_000).map(|i| json!({"name": format!("V{}", 20_000 + i)})).collect();
    ordered["spec"]["template"]["spec"]["containers"][0]["$setElementOrder/env"] = names.into();
    let inputs = [
        merge(with_variables(0, 1), with_variables(0, 10_000)),
        merge(with_variables(0, 10_000), with_variables(0, 10_000)),
        merge(with_variables(0, 40_000), with_variables(0, 40_000)),
        merge(with_variables(0, 40_000), ordered),
    ];
    fuzz::try_large("strategic", &inputs, merge_strategically);
}

#[test]
fn applied_configurations_and_managed_fields() {
    let schema = Schema::builtin();
    let context = Context {
        schema,
        node: schema.kind("apps", "v1", "Deployment"),
        manager: "m",
        api_version: "apps/v1",
        subresource: "",
        now: "2026-01-02T03:04:05Z",
        reset: None,
        versions: None,
        force: false,
    };
    let mut applied = deployment();
    applied["apiVersion"] = json!("apps/v1");
    applied["kind"] = json!("Deployment");
    let live = crate::apply(&context, None, &applied).unwrap();
    let sent = live.to_string();
    fuzz::fuzz(HERE, "apply", &[applied.to_string().as_bytes(), sent.as_bytes()], |input| {
        let Ok(tree) = serde_json::from_slice::<Value>(input) else { return };
        let _ = crate::apply(&context, Some(&live), &tree);
        // The `managedFields` that a client sends are parsed as well.
        let mut new = tree.clone();
        crate::update(&context, Some(&live), &mut new);
        let _ = crate::apply(&context, Some(&tree), &applied);
    });
}

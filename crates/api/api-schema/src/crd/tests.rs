use serde_json::{Value, json};

use super::*;

fn built(properties: &Value) -> Schema {
    let open_api = json!({"type": "object", "properties": properties});
    Schema::from_crd(
        &open_api,
        &GroupVersionKind::new("example.com", "v1", "Widget"),
        &Path::new("schema"),
    )
    .unwrap()
}

/// Schemas that differ in one keyword each.
fn different() -> Vec<Value> {
    let text = |more: Value| merged(json!({"type": "string"}), more);
    let number = |more: Value| merged(json!({"type": "number"}), more);
    let list = |more: Value| merged(json!({"type": "array", "items": {"type": "string"}}), more);
    let object = |more: Value| {
        let members = json!({"a": {"type": "string"}, "b": {"type": "string"}});
        merged(json!({"type": "object", "properties": members}), more)
    };
    vec![
        text(json!({})),
        text(json!({"nullable": true})),
        text(json!({"default": "x"})),
        text(json!({"default": "y"})),
        text(json!({"pattern": "^x"})),
        text(json!({"pattern": "^y"})),
        text(json!({"format": "date"})),
        text(json!({"enum": ["x", "y"]})),
        text(json!({"enum": ["y", "x"]})),
        text(json!({"minLength": 1})),
        text(json!({"maxLength": 1})),
        text(json!({"not": {"enum": ["x"]}})),
        text(json!({"not": {"enum": ["y"]}})),
        number(json!({})),
        number(json!({"minimum": 1})),
        number(json!({"maximum": 1})),
        number(json!({"minimum": 1, "exclusiveMinimum": true})),
        number(json!({"multipleOf": 2})),
        number(json!({"default": 0})),
        number(json!({"default": 0.0})),
        number(json!({"default": -0.0})),
        json!({"type": "integer"}),
        json!({"type": "boolean"}),
        json!({"x-kubernetes-int-or-string": true}),
        json!({"x-kubernetes-preserve-unknown-fields": true}),
        list(json!({})),
        list(json!({"minItems": 1})),
        list(json!({"maxItems": 1})),
        list(json!({"x-kubernetes-list-type": "set"})),
        list(json!({"items": {"type": "boolean"}})),
        object(json!({})),
        object(json!({"required": ["a"]})),
        object(json!({"required": ["b"]})),
        object(json!({"x-kubernetes-map-type": "atomic"})),
        object(json!({"x-kubernetes-preserve-unknown-fields": true})),
        object(json!({"x-kubernetes-embedded-resource": true})),
        object(json!({"properties": {"a": {"type": "string"}, "c": {"type": "string"}}})),
        object(json!({"properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}})),
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        json!({"type": "object", "additionalProperties": {"type": "boolean"}}),
    ]
}

fn merged(mut schema: Value, more: Value) -> Value {
    let more = more.as_object().cloned().unwrap();
    schema.as_object_mut().unwrap().extend(more);
    schema
}

#[test]
fn shares_nodes_of_equal_schemas_only() {
    let schemas = different();
    let places = schemas.iter().enumerate().flat_map(|(at, schema)| {
        let described = merged(schema.clone(), json!({"description": format!("number {at}")}));
        [(format!("first{at}"), schema.clone()), (format!("second{at}"), described)]
    });
    let schema = built(&Value::Object(places.collect()));
    let node = |name: &str, at: usize| {
        schema.member(schema.kinds[0].node, &format!("{name}{at}")).unwrap()
    };
    for at in 0..schemas.len() {
        assert_eq!(node("first", at), node("second", at), "{}", schemas[at]);
        for other in 0..at {
            let both = format!("{} and {}", schemas[at], schemas[other]);
            assert_ne!(node("first", at), node("first", other), "{both}");
        }
    }
}

/// Large definitions contain the same types again and again, such as Pod templates.
#[test]
fn needs_no_memory_for_repeated_types() {
    let members: Map<String, Value> =
        different().into_iter().enumerate().map(|(at, s)| (format!("m{at}"), s)).collect();
    let repeated = json!({"type": "object", "properties": members});
    let count = |copies: usize| {
        let all: Map<String, Value> =
            (0..copies).map(|at| (format!("copy{at}"), repeated.clone())).collect();
        built(&Value::Object(all)).nodes.len()
    };
    assert_eq!(count(1), count(50));
}

#[test]
fn restricts_names_of_one_resource_only() {
    let resource = |metadata: Value| json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"metadata": metadata}});
    let short =
        json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}});
    let schema = built(&json!({
        "short": resource(short), "long": resource(json!({"type": "object"})),
    }));
    let node = schema.kinds[0].node;
    let errors = |member: &str| {
        let embedded = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "long"}});
        let object = json!({"metadata": {"name": "object"}, member: embedded});
        crate::validate(&schema, node, &object, None).len()
    };
    assert_eq!((errors("short"), errors("long")), (1, 0));
}

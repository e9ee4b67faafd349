use api_meta::GroupVersionKind;
use serde_json::json;

use super::*;
use crate::{Fill, decode_value};

fn schema(spec: Value) -> Schema {
    let open_api = json!({"type": "object", "properties": {"spec": spec}});
    Schema::from_crd(
        &open_api,
        &GroupVersionKind::new("example.com", "v1", "Widget"),
        &Path::new("schema"),
    )
    .unwrap()
}

fn refused(open_api: Value) -> Vec<String> {
    let result = Schema::from_crd(
        &open_api,
        &GroupVersionKind::new("example.com", "v1", "Widget"),
        &Path::new("spec.validation.openAPIV3Schema"),
    );
    result.unwrap_err().iter().map(ToString::to_string).collect()
}

/// Returns the errors of a `spec` that is decoded for a write.
fn findings(spec_schema: Value, spec: Value) -> Vec<String> {
    let schema = schema(spec_schema);
    let node = schema.kinds[0].node;
    let decoded = decode_value(&schema, node, json!({"spec": spec}), Fill::Defaults).unwrap();
    validate(&schema, node, &decoded.value, None).iter().map(ToString::to_string).collect()
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn reports_errors_in_upstream_words() {
    let number = |more: Value| {
        let mut schema = json!({"type": "integer"});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"type": "object", "properties": {"n": schema}})
    };
    let text = |more: Value| {
        let mut schema = json!({"type": "string"});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"type": "object", "properties": {"s": schema}})
    };
    for (schema, spec, expected) in [
        (
            number(json!({})),
            json!({"n": "x"}),
            r#"spec.n: Invalid value: "string": spec.n in body must be of type integer: "string""#,
        ),
        (
            number(json!({})),
            json!({"n": 1.5}),
            r#"spec.n: Invalid value: "number": spec.n in body must be of type integer: "number""#,
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}}),
            json!([null]),
            r#"spec[0]: Invalid value: "null": spec[0] in body must be of type integer: "null""#,
        ),
        (
            number(json!({"minimum": 1})),
            json!({"n": 0}),
            "spec.n: Invalid value: 0: spec.n in body should be greater than or equal to 1",
        ),
        (
            number(json!({"maximum": 1, "exclusiveMaximum": true})),
            json!({"n": 1}),
            "spec.n: Invalid value: 1: spec.n in body should be less than 1",
        ),
        (
            number(json!({"multipleOf": 3})),
            json!({"n": 4}),
            "spec.n: Invalid value: 4: spec.n in body should be a multiple of 3",
        ),
        (
            text(json!({"enum": ["a", "b"]})),
            json!({"s": "c"}),
            r#"spec.s: Unsupported value: "c": supported values: "a", "b""#,
        ),
        (
            text(json!({"pattern": "^a+$"})),
            json!({"s": "b"}),
            r#"spec.s: Invalid value: "b": spec.s in body should match '^a+$'"#,
        ),
        (
            text(json!({"minLength": 2})),
            json!({"s": "é"}),
            r#"spec.s: Invalid value: "é": spec.s in body should be at least 2 chars long"#,
        ),
        (
            text(json!({"maxLength": 1})),
            json!({"s": "ab"}),
            "spec.s: Too long: may not be more than 1 bytes",
        ),
        (
            text(json!({"format": "ipv4"})),
            json!({"s": "x"}),
            r#"spec.s: Invalid value: "x": spec.s in body must be of type ipv4: "x""#,
        ),
        (
            json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}),
            json!({}),
            "spec.a: Required value",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
            json!(["a", "b"]),
            "spec: Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
            json!(["a", "b", "a"]),
            r#"spec[2]: Duplicate value: "a""#,
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}}),
            json!([{"k": "a", "v": 1}, {"k": "a", "v": 2}]),
            r#"spec[1]: Duplicate value: {"k":"a"}"#,
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({"a": "", "b": ""}),
            r#"<nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"apiVersion": "v1", "x": 1}),
            "spec.kind: Required value",
        ),
        (
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            json!(true),
            r#"spec: Invalid value: "boolean": spec in body must be of type integer,string: "boolean""#,
        ),
    ] {
        assert_eq!(findings(schema.clone(), spec.clone()), [expected], "{schema} {spec}");
    }
}

#[test]
fn accepts_valid_values() {
    for (schema, spec) in [
        (json!({"type": "number"}), json!(1)),
        (json!({"type": "integer"}), json!(1.0)),
        (json!({"type": "string", "nullable": true}), json!(null)),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%")),
        (json!({"type": "string", "x-kubernetes-int-or-string": true}), json!(50)),
        (
            json!({"type": "string", "x-kubernetes-int-or-string": true, "pattern": "^[0-9]+$",
                "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"maximum": 3}]}),
            json!(3),
        ),
        (
            json!({"x-kubernetes-preserve-unknown-fields": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            json!("x"),
        ),
        (json!({"x-kubernetes-preserve-unknown-fields": true}), json!([1, null, {"a": 1}])),
        (json!({"type": "object", "additionalProperties": {"type": "integer"}}), json!({"a": 1})),
        (json!({"type": "integer", "default": 3}), json!(null)),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}},
                "anyOf": [{"properties": {"a": {"pattern": "^x"}}}, {"properties": {"a": {"enum": ["y"]}}}]}),
            json!({"a": "y"}),
        ),
    ] {
        assert_eq!(findings(schema, spec), [] as [&str; 0]);
    }
}

#[test]
fn prunes_and_defaults_custom_resources() {
    let schema = schema(json!({"type": "object", "properties": {
        "n": {"type": "integer", "default": 3},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": {"type": "object", "properties": {}}}},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object", "default": {"a": 1},
            "properties": {"a": {"type": "integer"}}}}}}}));
    let node = schema.kinds[0].node;
    let given = json!({"apiVersion": "example.com/v1", "kind": "Widget", "bogus": 1,
        "metadata": {"name": "w", "creationTimestamp": null, "bogus": 1, "labels": {"a": "b"}},
        "spec": {"free": {"x": {"y": 1}, "known": {"z": 1}}, "template": {"kind": "K", "metadata": {"name": "t", "bogus": 1}}, "other": []}});
    let decoded = decode_value(&schema, node, given, Fill::Defaults).unwrap();
    assert_eq!(
        decoded.value,
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "labels": {"a": "b"}},
            "spec": {"n": 3, "free": {"x": {"y": 1}, "known": {}}, "template": {"kind": "K", "metadata": {"name": "t"}, "spec": {"a": 1}}}})
    );
    assert_eq!(
        decoded.unknown().collect::<Vec<_>>(),
        [
            "metadata.bogus",
            "bogus",
            "spec.free.known.z",
            "spec.other",
            "spec.template.metadata.bogus"
        ]
    );
    let wrong =
        decode_value(&schema, node, json!({"metadata": {"labels": {"a": 1}}}), Fill::Defaults);
    assert_eq!(
        wrong.unwrap_err().to_string(),
        "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string"
    );
}

#[test]
fn drops_null_of_non_nullable_members() {
    let text = json!({"type": "string"});
    let nullable = json!({"type": "string", "nullable": true});
    let filled = json!({"type": "string", "default": "d"});
    let map = |values: &Value| json!({"type": "object", "additionalProperties": values});
    let list = |items: &Value| json!({"type": "array", "items": items});
    for (shape, given, shown) in [
        (text.clone(), json!(null), json!({})),
        (json!({"x-kubernetes-int-or-string": true}), json!(null), json!({})),
        (json!({"x-kubernetes-preserve-unknown-fields": true}), json!(null), json!({})),
        (nullable.clone(), json!(null), json!({"f": null})),
        (filled.clone(), json!(null), json!({"f": "d"})),
        (map(&text), json!({"a": null, "b": "x"}), json!({"f": {"b": "x"}})),
        (map(&nullable), json!({"a": null}), json!({"f": {"a": null}})),
        (map(&filled), json!({"a": null}), json!({"f": {"a": "d"}})),
        (list(&text), json!([null]), json!({"f": [null]})),
        (list(&filled), json!([null]), json!({"f": ["d"]})),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            json!({"a": null}),
            json!({"f": {"a": null}}),
        ),
    ] {
        let schema = schema(json!({"type": "object", "properties": {"f": shape}}));
        let object = json!({"spec": {"f": given}});
        let decoded = decode_value(&schema, schema.kinds[0].node, object.clone(), Fill::Defaults);
        assert_eq!(decoded.unwrap().value["spec"], shown, "{shape} {given}");
        let applied = decode_value(&schema, schema.kinds[0].node, object.clone(), Fill::Given);
        assert_eq!(applied.unwrap().value, object, "what is applied says more than what is kept");
    }
}

#[test]
fn rejects_non_structural_schemas() {
    let root = "spec.validation.openAPIV3Schema";
    let spec = |spec: Value| json!({"type": "object", "properties": {"spec": spec}});
    for (schema, expected) in [
        (json!({}), format!("{root}.type: Required value: must not be empty at the root")),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            format!("{root}.type: Invalid value: \"array\": must be object at the root"),
        ),
        (
            spec(json!({})),
            format!(
                "{root}.properties[spec].type: Required value: must not be empty for specified object fields"
            ),
        ),
        (
            spec(json!({"type": "array", "items": {}})),
            format!(
                "{root}.properties[spec].items.type: Required value: must not be empty for specified array items"
            ),
        ),
        (
            spec(json!({"type": "int"})),
            format!(
                "{root}.properties[spec].type: Unsupported value: \"int\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\""
            ),
        ),
        (
            spec(json!({"type": "string", "uniqueItems": true})),
            format!(
                "{root}.properties[spec].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
            ),
        ),
        (
            spec(json!({"type": "string", "anyOf": [{"type": "string"}]})),
            format!(
                "{root}.properties[spec].anyOf[0].type: Forbidden: must be empty to be structural"
            ),
        ),
        (
            spec(json!({"type": "string", "default": 1})),
            format!(
                "{root}.properties[spec].default: Invalid value: \"integer\": {root}.properties[spec].default in body must be of type string: \"integer\""
            ),
        ),
        (
            spec(json!({"type": "object", "default": {"a": 1}})),
            format!(
                "{root}.properties[spec].default: Invalid value: {{\"a\":1}}: must not have unknown fields"
            ),
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            format!(
                "{root}.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified"
            ),
        ),
    ] {
        assert_eq!(refused(schema.clone()), [expected], "{schema}");
    }
}

#[test]
fn reports_errors_of_closest_branch() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "string"}},
        "anyOf": [{"required": ["a", "b"]}, {"required": ["c"]}]});
    assert_eq!(
        findings(schema, json!({})),
        [
            "<nil>: Invalid value: \"\": \"spec\" must validate at least one schema (anyOf)",
            "spec.c: Required value"
        ]
    );
}

#[test]
fn update_ignores_unchanged_invalid_values() {
    let schema = schema(json!({"type": "object", "properties": {
        "n": {"type": "integer", "maximum": 5}, "m": {"type": "integer", "maximum": 5},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object",
            "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer", "maximum": 5}}}}}}));
    let node = schema.kinds[0].node;
    let old = json!({"spec": {"n": 9, "m": 1, "items": [{"k": "a", "v": 9}]}});
    let new = json!({"spec": {"n": 9, "m": 7, "items": [{"k": "b", "v": 8}, {"k": "a", "v": 9}]}});
    let errors: Vec<String> =
        validate(&schema, node, &new, Some(&old)).iter().map(|e| e.field.to_string()).collect();
    assert_eq!(errors, ["spec.items[0].v", "spec.m"]);
    assert_eq!(validate(&schema, node, &new, None).len(), 4);
}

#[test]
fn reports_findings_in_upstream_order() {
    let schema = schema(json!({"type": "object", "properties": {"a": {"type": "integer"},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}));
    let text =
        br#"{"spec":{"z":1,"b":1,"b":2,"a":1,"a":2,"free":{"x":{"y":1,"y":[{"q":1,"q":2}]}}}}"#;
    let decoded = crate::decode(&schema, schema.kinds[0].node, text, Fill::Given).unwrap();
    assert_eq!(
        decoded.findings(),
        [
            "duplicate field \"spec.b\"",
            "duplicate field \"spec.a\"",
            "duplicate field \"spec.free.x.y[0].q\"",
            "duplicate field \"spec.free.x.y\"",
            "unknown field \"spec.b\"",
            "unknown field \"spec.z\"",
        ]
    );
    assert_eq!(decoded.value, json!({"spec": {"a": 2, "free": {"x": {"y": [{"q": 2}]}}}}));
}

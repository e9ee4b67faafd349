//! Tests of validation rules that are written as users write them.

use api_meta::{ErrorList, GroupVersionKind, Path};
use serde_json::{Value, json};

use crate::Schema;

fn schema(spec: Value) -> Schema {
    let given = json!({"type": "object", "properties": {"spec": spec}});
    Schema::from_crd(
        &given,
        &GroupVersionKind::new("example.com", "v1", "Widget"),
        &Path::new("schema"),
    )
    .unwrap()
}

/// Returns the errors of an object by its structure and its rules.
fn validate(schema: &Schema, value: &Value, old: Option<&Value>) -> ErrorList {
    let node = schema.kinds[0].node;
    let mut errors = crate::validate(schema, node, value, old);
    crate::validate_rules(schema, node, value, old, &mut errors);
    errors
}

/// Returns the errors of a definition with this schema of `spec`.
fn refused(spec: Value) -> Vec<String> {
    schema(spec).rule_errors().iter().map(ToString::to_string).collect()
}

fn errors(spec: &Value, value: Value, old: Option<Value>) -> Vec<String> {
    let schema = schema(spec.clone());
    assert!(schema.rule_errors().is_empty(), "{:?}", schema.rule_errors());
    let of = |spec: Value| json!({"metadata": {"name": "w"}, "spec": spec});
    let errors = validate(&schema, &of(value), old.map(of).as_ref());
    errors.iter().map(ToString::to_string).collect()
}

fn rules(properties: Value, rules: Value) -> Value {
    json!({"type": "object", "properties": properties, "x-kubernetes-validations": rules})
}

fn replicas(rule: Value) -> Value {
    let integer = json!({"type": "integer"});
    rules(json!({"min": integer, "replicas": integer}), json!([rule]))
}

#[test]
fn reports_failed_rule_with_message_reason_and_path() {
    let value = json!({"min": 3, "replicas": 1});
    for (rule, wanted) in [
        (
            json!({"rule": "self.min <= self.replicas"}),
            "spec: Invalid value: failed rule: self.min <= self.replicas",
        ),
        (
            json!({"rule": "self.min <= self.replicas", "message": "too few"}),
            "spec: Invalid value: too few",
        ),
        (
            json!({"rule": "self.min <= self.replicas", "messageExpression": "'at least %d'.format([self.min])"}),
            "spec: Invalid value: at least 3",
        ),
        (
            json!({"rule": "self.min <= self.replicas", "message": "own", "messageExpression": "['a'][self.min]"}),
            "spec: Invalid value: own",
        ),
        (
            json!({"rule": "self.min <= self.replicas", "message": "m", "reason": "FieldValueForbidden", "fieldPath": ".replicas"}),
            "spec.replicas: Forbidden: m",
        ),
        (
            json!({"rule": "self.min <= self.replicas", "message": "m", "reason": "FieldValueRequired"}),
            "spec: Required value: m",
        ),
        (
            json!({"rule": "self.min <= self.replicas", "message": "m", "reason": "FieldValueDuplicate"}),
            "spec: Duplicate value",
        ),
        (
            json!({"rule": "[1][self.min] > 0"}),
            "spec: Invalid value: \"object\": index out of bounds: 3 evaluating rule: [1][self.min] > 0",
        ),
    ] {
        assert_eq!(errors(&replicas(rule), value.clone(), None), [wanted]);
    }
    let spec = replicas(json!({"rule": "self.min <= self.replicas"}));
    assert_eq!(errors(&spec, json!({"min": 1, "replicas": 1}), None), [""; 0]);
}

#[test]
fn transition_rules_see_old_value() {
    let spec = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 9, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}]},
        "size": {"type": "integer", "x-kubernetes-validations": [
            {"rule": "oldSelf.hasValue() || self == 1", "message": "begins at one", "optionalOldSelf": true},
        ]},
        "parts": {"type": "array", "maxItems": 9, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
            "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "n": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.n >= oldSelf.n", "message": "only grows"}]}},
    }});
    let value = |name: &str, parts: Value| json!({"name": name, "parts": parts});
    let before = value("a", json!([{"id": "x", "n": 1}, {"id": "y", "n": 5}]));
    assert_eq!(errors(&spec, value("b", json!([])), None), [""; 0]);
    assert_eq!(
        errors(&spec, value("b", json!([{"id": "y", "n": 4}, {"id": "z", "n": 0}])), Some(before)),
        ["spec.name: Invalid value: \"b\": immutable", "spec.parts[0]: Invalid value: only grows"]
    );
    assert_eq!(
        errors(&spec, json!({"size": 2}), None),
        ["spec.size: Invalid value: 2: begins at one"]
    );
    assert_eq!(errors(&spec, json!({"size": 3}), Some(json!({"size": 2}))), [""; 0]);
}

#[test]
fn ignores_violations_of_unchanged_values() {
    let part = json!({"type": "object", "properties": {"n": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.n > 0", "message": "positive"}]});
    let spec = json!({"type": "object", "properties": {
        "a": part, "b": part,
        "list": {"type": "array", "maxItems": 5, "items": part},
    }});
    let old = json!({"a": {"n": 0}, "b": {"n": 0}, "list": [{"n": 0}]});
    let new = json!({"a": {"n": 0}, "b": {"n": -1}, "list": [{"n": 0}, {"n": 1}]});
    // Items of a list without keys do not correlate with old ones, so all are validated once the list changes.
    assert_eq!(
        errors(&spec, new, Some(old.clone())),
        ["spec.b: Invalid value: positive", "spec.list[0]: Invalid value: positive"]
    );
    let only_b = json!({"a": {"n": 0}, "b": {"n": 2}, "list": [{"n": 0}]});
    assert_eq!(errors(&spec, only_b, Some(old)), [""; 0]);
}

#[test]
fn converts_formats_names_and_unions_for_expressions() {
    let text = |format: &str| json!({"type": "string", "format": format});
    let properties = json!({
        "at": text("date-time"), "day": text("date"), "for": text("duration"), "raw": text("byte"),
        "port": {"x-kubernetes-int-or-string": true}, "namespace": {"type": "string"}, "a-b.c/d__e": {"type": "integer"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    });
    let given = json!({
        "at": "2026-01-02T03:04:05Z", "day": "2026-01-02", "for": "1h30m", "raw": "aGk=", "port": "80%", "namespace": "n",
        "a-b.c/d__e": 7, "labels": {"k": "v"}, "set": ["a", "b"],
    });
    for rule in [
        "self.at.getFullYear() == 2026 && self.day < self.at",
        "self.__for__ == duration('90m') && self.raw == b'hi'",
        "type(self.port) == string && self.port.endsWith('%')",
        "self.__namespace__ == 'n' && self.a__dash__b__dot__c__slash__d__underscores__e == 7",
        "self.labels.all(k, self.labels[k] == 'v') && 'k' in self.labels && self.labels.k == 'v'",
        "self.set == ['b', 'a'] && size(self.set + ['c', 'a']) == 3",
        "!has(self.labels.other) && has(self.port)",
    ] {
        let spec = rules(properties.clone(), json!([{"rule": rule, "message": rule}]));
        let schema = schema(spec.clone());
        let cheap: Vec<_> =
            schema.rule_errors().iter().filter(|e| !e.detail.contains("cost")).collect();
        assert!(cheap.is_empty(), "{cheap:?}");
        let object = json!({"metadata": {"name": "w"}, "spec": given});
        assert_eq!(*validate(&schema, &object, None), [], "{rule}");
    }
}

#[test]
fn exposes_only_name_of_metadata() {
    let of = |rule: &str| {
        let given = json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}]});
        Schema::from_crd(
            &given,
            &GroupVersionKind::new("example.com", "v1", "Widget"),
            &Path::new("schema"),
        )
        .unwrap()
    };
    let named = of("self.metadata.name.startsWith('w')");
    let object = json!({"metadata": {"name": "x", "labels": {}}});
    let found = validate(&named, &object, None);
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].to_string(),
        "<nil>: Invalid value: failed rule: self.metadata.name.startsWith('w')"
    );
    let labels = of("size(self.metadata.labels) == 0");
    assert!(labels.rule_errors()[0].detail.contains("undefined field 'labels'"));
}

#[test]
fn rejects_rules_that_do_not_compile() {
    let place = "schema.properties[spec].x-kubernetes-validations[0]";
    for (rule, wanted) in [
        (json!({"rule": ""}), format!("{place}.rule: Required value: rule is not specified")),
        (
            json!({"rule": "true", "message": "a\nb"}),
            format!("{place}.message: Invalid value: \"a\\nb\": must not contain line breaks"),
        ),
        (
            json!({"rule": "true ||\nfalse"}),
            format!(
                "{place}.message: Required value: message must be specified if rule contains line breaks"
            ),
        ),
        (
            json!({"rule": "true", "reason": "Other"}),
            format!(
                "{place}.reason: Unsupported value: \"Other\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\""
            ),
        ),
        (
            json!({"rule": "true", "fieldPath": ".none"}),
            format!("{place}.fieldPath: Invalid value: \".none\": must be a valid path"),
        ),
        (
            json!({"rule": "true", "optionalOldSelf": true}),
            format!(
                "{place}.optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule"
            ),
        ),
    ] {
        assert_eq!(refused(replicas(rule)), [wanted]);
    }
    let details: Vec<(&str, &str)> = vec![
        (
            "self.min <",
            "compilation failed: ERROR: <input>:1:11: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | self.min <\n | ..........^",
        ),
        (
            "self.other > 1",
            "compilation failed: ERROR: <input>:1:5: undefined field 'other'\n | self.other > 1\n | ....^",
        ),
        (
            "other > 1",
            "compilation failed: ERROR: <input>:1:1: undeclared reference to 'other' (in container '')\n | other > 1\n | ^",
        ),
        (
            "self.min == 'a'",
            "compilation failed: ERROR: <input>:1:10: found no matching overload for '_==_' applied to '(int, string)'\n | self.min == 'a'\n | .........^",
        ),
        ("self.min", "cel expression must evaluate to a bool"),
    ];
    for (rule, detail) in details {
        let schema = schema(replicas(json!({"rule": rule})));
        let found: Vec<&str> = schema.rule_errors().iter().map(|e| e.detail.as_str()).collect();
        assert_eq!(found, [detail]);
    }
}

#[test]
fn rejects_rules_over_estimated_cost_limit() {
    let list = |most: Value| {
        let items = json!({"type": "string"});
        let mut list = json!({"type": "array", "items": items, "x-kubernetes-validations": [
            {"rule": "self.all(x, self.all(y, x == y))"},
        ]});
        if let Some(members) = list.as_object_mut().filter(|_| !most.is_null()) {
            members.insert("maxItems".to_owned(), most);
        }
        json!({"type": "object", "properties": {"list": list}})
    };
    let found = refused(list(Value::Null));
    let place = "schema.properties[spec].properties[list].x-kubernetes-validations[0].rule";
    let advice = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";
    assert_eq!(
        found,
        [
            format!(
                "{place}: Forbidden: estimated rule cost exceeds budget by factor of more than 100x {advice}"
            ),
            format!(
                "{place}: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
            ),
            format!(
                "schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x {advice}"
            ),
        ]
    );
}

#[test]
fn rejects_old_self_without_correlation() {
    let spec = json!({"type": "object", "properties": {"list": {"type": "array", "maxItems": 5,
        "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}}}});
    assert_eq!(
        refused(spec),
        [
            "schema.properties[spec].properties[list].items.x-kubernetes-validations[0].rule: Invalid value: \"self >= oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within schema.properties[spec].properties[list]"
        ]
    );
}

#[test]
fn skips_rules_for_invalid_objects() {
    let spec = replicas(json!({"rule": "self.min <= self.replicas"}));
    let found = errors(&spec, json!({"min": "three", "replicas": 1}), None);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        found[1],
        "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"
    );
}

#[test]
fn stops_validation_at_cost_limit() {
    let integers = json!({"type": "array", "maxItems": 1000, "items": {"type": "integer"}});
    let spec = json!({"type": "object", "properties": {"list": integers}, "x-kubernetes-validations": [
        {"rule": "self.list.all(x, self.list.all(y, x + y > 0))"}, {"rule": "false"},
    ]});
    let schema = schema(spec);
    let object = json!({"metadata": {}, "spec": {"list": vec![1; 1000]}});
    let found = validate(&schema, &object, None);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        found[0].detail,
        "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: self.list.all(x, self.list.all(y, x + y > 0))"
    );
}

/// Templates with metadata of their own, as in JobSet and Kubeflow's Trainer.
#[test]
fn compiles_rules_over_fields_named_by_reserved_words() {
    let text = json!({"type": "string"});
    let words = "as break const continue else for function if import let loop package namespace return var void while";
    for word in words.split(' ') {
        let metadata = json!({"type": "object", "properties": {word: text, "name": text}});
        let template = json!({"type": "object", "properties": {"apiVersion": text, "kind": text, "metadata": metadata}});
        let spec = rules(
            json!({"templates": {"type": "array", "maxItems": 9, "items": template}}),
            json!([
                {"rule": format!("self.templates.all(t, !has(t.metadata.{word}))"), "message": "plain"},
                {"rule": format!("self.templates.all(t, t.metadata.?{word}.orValue('') != 'a')"), "message": "optional"},
                {"rule": format!("self.templates.all(t, !has(t.metadata.__{word}__))"), "message": "escaped"},
            ]),
        );
        let value = |metadata| json!({"templates": [{"metadata": metadata}]});
        let failed = ["plain", "optional", "escaped"].map(|m| format!("spec: Invalid value: {m}"));
        assert_eq!(errors(&spec, value(json!({word: "a"})), None), failed, "{word}");
        assert_eq!(errors(&spec, value(json!({"name": "a"})), None), [""; 0], "{word}");
    }
}

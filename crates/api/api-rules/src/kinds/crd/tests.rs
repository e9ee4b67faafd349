use serde_json::{Value, json};

use crate::kinds::{strategy, tests::made};

#[test]
fn restricts_selectable_field_types() {
    let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
    let path = "spec.selectableFields[0].jsonPath";
    for (field, wanted) in [
        (".spec.size", None),
        (".spec.list", Some(format!("{path}: Invalid value: \".spec.list\": {detail}"))),
        (
            ".spec.none",
            Some(format!(
                "{path}: Invalid value: \".spec.none\": is an invalid path: does not refer to a valid field"
            )),
        ),
    ] {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer"}, "list": {"type": "array", "items": {"type": "string"}}}}}});
        let crd = json!({"spec": {
            "group": "a.example.com", "scope": "Namespaced", "names": {"plural": "xs", "kind": "X"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "selectableFields": [{"jsonPath": field}]}],
        }});
        let mut crd = made("apiextensions.k8s.io", "customresourcedefinitions", crd);
        crd["metadata"]["name"] = json!("xs.a.example.com");
        let kind = strategy("apiextensions.k8s.io", "customresourcedefinitions");
        let found = kind.create_errors(&crd, false);
        assert_eq!(found.first().map(ToString::to_string), wanted, "{field}");
    }
}

#[test]
fn validates_conversions_of_custom_kinds() {
    let path = "spec.conversion.webhookClientConfig";
    let url = |url: &str| json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": url}, "conversionReviewVersions": ["v1"]}});
    let versions = |list: Value| json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://a/b"}, "conversionReviewVersions": list}});
    let service = |service: Value| json!({"strategy": "Webhook", "webhook": {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}});
    for (conversion, wanted) in [
        (json!({"strategy": "None"}), vec![]),
        (url("https://a/b"), vec![]),
        (json!({}), vec!["spec.conversion.strategy: Required value".to_owned()]),
        (json!({"strategy": "Other"}), vec!["spec.conversion.strategy: Unsupported value: \"Other\": supported values: \"None\", \"Webhook\"".to_owned()]),
        (json!({"strategy": "Webhook"}), vec![
            format!("{path}: Required value: required when strategy is set to Webhook"),
            "spec.conversion.conversionReviewVersions: Required value".to_owned(),
        ]),
        (versions(json!([])), vec!["spec.conversion.conversionReviewVersions: Required value".to_owned()]),
        (versions(json!(["v7"])), vec!["spec.conversion.conversionReviewVersions: Invalid value: [\"v7\"]: must include at least one of v1, v1beta1".to_owned()]),
        (versions(json!(["v1", "v1"])), vec!["spec.conversion.conversionReviewVersions[1]: Invalid value: \"v1\": duplicate version".to_owned()]),
        (url("http://a"), vec![format!("{path}.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]")]),
        (url("https://u:p@a/x?y=1#f"), vec![
            format!("{path}.url: Invalid value: \"u:p\": user information is not permitted in the URL"),
            format!("{path}.url: Invalid value: \"f\": fragments are not permitted in the URL"),
            format!("{path}.url: Invalid value: \"y=1\": query parameters are not permitted in the URL"),
        ]),
        (url("a/b"), vec![
            format!("{path}.url: Invalid value: \"\": 'https' is the only allowed URL scheme; desired format: https://host[/path]"),
            format!("{path}.url: Invalid value: \"\": host must be specified; desired format: https://host[/path]"),
        ]),
        (service(json!({"name": "", "namespace": "", "path": "a//b", "port": 0})), vec![
            format!("{path}.service.name: Required value"),
            format!("{path}.service.namespace: Required value"),
            format!("{path}.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive"),
            format!("{path}.service.path: Invalid value: \"a//b\": must start with a '/'"),
            format!("{path}.service.path: Invalid value: \"a//b\": segment[0] may not be empty"),
            format!("{path}.service.path: Invalid value: \"a//b\": segment[1] may not be empty"),
        ]),
        (json!({"strategy": "None", "webhook": {"clientConfig": {"url": "https://a"}, "conversionReviewVersions": ["v1"]}}), vec![
            format!("{path}: Forbidden: should not be set when strategy is not set to Webhook"),
            "spec.conversion.conversionReviewVersions: Forbidden: should not be set when strategy is not set to Webhook".to_owned(),
        ]),
    ] {
        let crd = json!({"spec": {
            "group": "a.example.com", "scope": "Namespaced", "names": {"plural": "xs", "kind": "X"}, "conversion": conversion,
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        }});
        let mut crd = made("apiextensions.k8s.io", "customresourcedefinitions", crd);
        crd["metadata"]["name"] = json!("xs.a.example.com");
        let kind = strategy("apiextensions.k8s.io", "customresourcedefinitions");
        let found: Vec<String> = kind.create_errors(&crd, false).iter().map(ToString::to_string).collect();
        assert_eq!(found, wanted, "{conversion}");
    }
    let crd = json!({"spec": {"names": {"plural": "xs", "kind": "X"}, "conversion": service(json!({"name": "a", "namespace": "b"}))}});
    let crd = made("apiextensions.k8s.io", "customresourcedefinitions", crd);
    assert_eq!(crd["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"], 443);
}

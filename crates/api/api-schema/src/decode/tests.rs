use api_meta::GroupVersionKind;
use serde_json::json;

use super::*;

fn pod(text: &str, fill: Fill) -> Result<Decoded, DecodeError> {
    let schema = Schema::builtin();
    decode(schema, schema.kind("", "v1", "Pod").unwrap(), text.as_bytes(), fill)
}

#[test]
fn reports_type_errors_in_words_of_converter_of_trees() {
    for (text, message) in [
        (r#"{"metadata":{"labels":"a"}}"#, "cannot restore map from string"),
        (r#"{"metadata":{"labels":["a"]}}"#, "cannot restore map from slice"),
        (r#"{"metadata":{"labels":{"a":1}}}"#, "cannot convert int64 to string"),
        (r#"{"metadata":{"labels":{"a":true}}}"#, "unrecognized type: string"),
        (r#"{"metadata":{"finalizers":{"a":"b"}}}"#, "cannot restore slice from map"),
        (r#"{"metadata":"a"}"#, "cannot restore struct from: string"),
        (r#"{"spec":["a"]}"#, "cannot restore struct from: slice"),
        (r#"{"spec":{"tolerations":[1]}}"#, "cannot restore struct from: int64"),
        (r#"{"spec":{"terminationGracePeriodSeconds":"a"}}"#, "unrecognized type: int64"),
        (r#"{"spec":{"terminationGracePeriodSeconds":1.5}}"#, "cannot convert float64 to int64"),
        (r#"{"spec":{"hostNetwork":"true"}}"#, "unrecognized type: bool"),
        (
            r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"a"}}}]}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            r#"{"metadata":{"creationTimestamp":1}}"#,
            "json: cannot unmarshal number into Go value of type string",
        ),
    ] {
        match pod(text, Fill::Given) {
            Err(DecodeError::Type(error)) => assert_eq!(error.conversion(), message, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn reports_errors_in_words_of_go() {
    for (text, message) in [
        (
            r#"{"spec":{"containers":"x"}}"#,
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            r#"{"spec":{"containers":[{"ports":[{"containerPort":"80"}]}]}}"#,
            "json: cannot unmarshal string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        (
            r#"{"metadata":{"labels":{"a":1}}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            r#"{"spec":{"terminationGracePeriodSeconds":1.5}}"#,
            "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64",
        ),
        (r#"[]"#, "json: cannot unmarshal array into Go value of type v1.Pod"),
        (
            r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"a"}}}]}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (r#"{"spec":"#, "unexpected end of JSON input"),
        (r#"{"spec":}"#, "invalid character '}' looking for beginning of value"),
        (r#"{"spec" 1}"#, "invalid character '1' after object key"),
        (r#"{} x"#, "invalid character 'x' after top-level value"),
        (r#"{a:1}"#, "invalid character 'a' looking for beginning of object key string"),
    ] {
        let error = pod(text, Fill::Given).unwrap_err();
        assert_eq!(error.to_string(), message, "{text}");
    }
}

#[test]
fn unknown_and_duplicate_members_are_reported_with_their_paths() {
    let text = r#"{"bogus":1,"metadata":{"labels":{"a":"1","a":"2"}},
        "spec":{"containers":[{"name":"c"},{"name":"d","name":"e","foo":{"x":[1]},"foo":1}],"bar":null}}"#;
    let decoded = pod(text, Fill::Given).unwrap();
    assert_eq!(
        decoded.findings().join(", "),
        "unknown field \"bogus\", duplicate field \"metadata.labels.a\", \
         duplicate field \"spec.containers[1].name\", unknown field \"spec.containers[1].foo\", \
         unknown field \"spec.bar\""
    );
    assert_eq!(
        decoded.value,
        json!({"metadata": {"labels": {"a": "2"}}, "spec": {"containers": [{"name": "c"}, {"name": "e"}]}})
    );
}

#[test]
fn omits_and_fills_zero_values_like_go() {
    let text = r#"{"metadata":{"creationTimestamp":null,"labels":{},"annotations":{"a":null}},
        "spec":{"hostNetwork":false,"terminationGracePeriodSeconds":0,"nodeName":"","containers":[
        {"name":"c","args":[],"ports":[{"hostPort":0}]}]}}"#;
    assert_eq!(
        pod(text, Fill::Zeroes).unwrap().value,
        json!({"metadata": {"annotations": {"a": ""}}, "status": {},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [
                {"name": "c", "ports": [{"containerPort": 0}], "resources": {}}]}})
    );
}

#[test]
fn writes_scalars_in_canonical_text() {
    let text = r#"{"metadata":{"creationTimestamp":"2024-01-02T03:04:05.678+01:00"},"spec":{"containers":[
        {"livenessProbe":{"httpGet":{"port":"http"}},"resources":{"limits":{"cpu":"1000m","memory":0.5,"x":"1Gi"}}}]}}"#;
    assert_eq!(
        pod(text, Fill::Given).unwrap().value,
        json!({"metadata": {"creationTimestamp": "2024-01-02T02:04:05Z"}, "spec": {"containers": [
            {"livenessProbe": {"httpGet": {"port": "http"}},
             "resources": {"limits": {"cpu": "1", "memory": "500m", "x": "1Gi"}}}]}})
    );
}

#[test]
fn applies_defaults_inside_defaults() {
    let schema = Schema::builtin();
    let node = schema.kind("apps", "v1", "StatefulSet").unwrap();
    let decoded = decode(schema, node, br#"{"spec":{"replicas":null}}"#, Fill::Defaults).unwrap();
    let spec = &decoded.value["spec"];
    assert_eq!(spec["replicas"], 1);
    assert_eq!(
        spec["persistentVolumeClaimRetentionPolicy"],
        json!({"whenDeleted": "Retain", "whenScaled": "Retain"})
    );
    assert_eq!(spec["template"]["spec"]["dnsPolicy"], "ClusterFirst");
    let mut given = json!({"spec": {"template": {"spec": {"containers": [{}]}}}});
    crate::apply_defaults(schema, node, &mut given).unwrap();
    let container = &given["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["terminationMessagePolicy"], "File");
}

#[test]
fn completes_default_that_replaces_null() {
    let item = json!({"type": "object", "default": {"a": 1}, "properties": {
        "a": {"type": "integer"}, "b": {"type": "integer", "default": 2}}});
    let spec = json!({"type": "object", "properties": {
        "list": {"type": "array", "items": item},
        "map": {"type": "object", "additionalProperties": item}}});
    let open_api = json!({"type": "object", "properties": {"spec": spec}});
    let path = api_meta::Path::new("s");
    let schema =
        Schema::from_crd(&open_api, &GroupVersionKind::new("g", "v1", "K"), &path).unwrap();
    let given = json!({"spec": {"list": [null, {}], "map": {"x": null, "y": {"a": 3}}}});
    let decoded = decode_value(&schema, schema.kinds[0].node, given, Fill::Defaults).unwrap();
    assert_eq!(
        decoded.value["spec"],
        json!({"list": [{"a": 1, "b": 2}, {"b": 2}],
            "map": {"x": {"a": 1, "b": 2}, "y": {"a": 3, "b": 2}}})
    );
}

/// Schemas below `items` and `additionalProperties` are decoded like the outer ones: typed clients write all zero
/// values.
#[test]
fn decodes_schemas_of_definitions_at_every_depth() {
    let schema = Schema::builtin();
    let node = schema.kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
    let below = |inner: &str| {
        format!(
            r#"{{"spec":{{"versions":[{{"schema":{{"openAPIV3Schema":{{"items":{inner},"additionalProperties":{inner},"dependencies":{{"a":["b"],"c":{inner}}}}}}}}}]}}}}"#
        )
    };
    let read = |inner: &str| {
        let decoded = decode(schema, node, below(inner).as_bytes(), Fill::Zeroes);
        decoded.map(|decoded| {
            assert_eq!(decoded.findings(), [""; 0]);
            let schema = &decoded.value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            [&schema["items"], &schema["additionalProperties"], &schema["dependencies"]["c"]]
                .map(Value::clone)
        })
    };
    let given = r#"{"type":"array","title":"","nullable":false,"bogus":1,"items":{"pattern":"","type":"string"}}"#;
    let kept = json!({"type": "array", "items": {"type": "string"}});
    assert_eq!(read(given).unwrap(), [kept.clone(), kept.clone(), kept]);
    assert_eq!(read(r#"{"default":0}"#).unwrap()[0], json!({"default": 0}));
    let wrong = read(r#"{"items":{"title":true}}"#).unwrap_err().to_string();
    assert!(wrong.starts_with("json: cannot unmarshal bool into Go struct field"), "{wrong}");
    assert!(wrong.ends_with("title of type string"), "{wrong}");
}

#[test]
fn limits_nesting() {
    let nested = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
    let fields =
        |depth| format!(r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{}}}]}}}}"#, nested(depth));
    assert!(pod(&fields(100), Fill::Given).is_ok());
    assert!(pod(&fields(100_000), Fill::Given).is_err());
    // Unknown members are skipped without recursion.
    assert_eq!(
        pod(&nested(100_000), Fill::Given).unwrap().findings,
        [Finding::Unknown("a".into())]
    );
}

#[test]
fn validates_base64() {
    let schema = Schema::builtin();
    let node = schema.kind("", "v1", "Secret").unwrap();
    let read = |text: &str| {
        let text = json!({"data": {"a": text}}).to_string();
        decode(schema, node, text.as_bytes(), Fill::Given)
    };
    for good in ["", "YQ==", "YWI=", "YWJj", "YW\nJj"] {
        assert!(read(good).is_ok(), "{good:?}");
    }
    for (bad, at) in [("YQ=", 2), ("Y!==", 1), ("YWJjZ", 4)] {
        let message = read(bad).unwrap_err().to_string();
        assert!(
            message.starts_with("illegal base64 data at input byte"),
            "{bad:?} {at}: {message}"
        );
    }
}

use api_meta::BudgetExceeded;
use api_schema::Schema;
use serde_json::json;

use super::*;

fn schema() -> &'static Schema {
    Schema::builtin()
}

/// The bytes are written by hand from the published field numbers.
#[test]
fn encodes_small_object_to_known_bytes() {
    let object =
        json!({"metadata": {"name": "a", "labels": {"k": "v", "b": ""}}, "data": {"x": "y"}});
    let bytes = to_protobuf(schema(), "v1", "ConfigMap", &object).unwrap();
    let mut expected = b"k8s\0".to_vec();
    expected.extend_from_slice(b"\x0a\x0f\x0a\x02v1\x12\x09ConfigMap");
    expected.extend_from_slice(b"\x12\x1c");
    expected
        .extend_from_slice(b"\x0a\x12\x0a\x01a\x5a\x05\x0a\x01b\x12\x00\x5a\x06\x0a\x01k\x12\x01v");
    expected.extend_from_slice(b"\x12\x06\x0a\x01x\x12\x01y");
    expected.extend_from_slice(b"\x1a\x00\x22\x00");
    assert_eq!(bytes, expected);
    let mut back = object;
    back["kind"] = "ConfigMap".into();
    back["apiVersion"] = "v1".into();
    assert_eq!(from_protobuf(schema(), &bytes).unwrap(), back);
}

#[test]
fn round_trips_every_scalar() {
    let long = "x".repeat(70_000);
    for (api_version, kind, object) in [
        (
            "v1",
            "Pod",
            json!({"metadata": {"creationTimestamp": "2024-01-02T03:04:05Z",
                    "managedFields": [{"fieldsV1": {"f:spec": {}}}]},
                "spec": {"priority": -5, "hostNetwork": true, "terminationGracePeriodSeconds": 0,
                    "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": long}],
                    "containers": [{"ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": "http"}},
                        "readinessProbe": {"tcpSocket": {"port": 70}, "periodSeconds": 3},
                        "env": [{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                        "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}}}]}}),
        ),
        ("v1", "Secret", json!({"data": {"a": "AAEC/w==", "b": ""}})),
        (
            "coordination.k8s.io/v1",
            "Lease",
            json!({"spec": {"renewTime": "2024-01-02T03:04:05.123456Z"}}),
        ),
        (
            "certificates.k8s.io/v1",
            "CertificateSigningRequest",
            json!({"spec": {"request": "", "signerName": "x", "extra": {"a": ["b", "c"]}}}),
        ),
        (
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {
                "type": "object", "default": {"a": [1, null]}, "enum": [1, "x"], "$ref": "r",
                "items": {"type": "string"}, "additionalProperties": false, "maximum": 1.5,
                "properties": {"p": {"additionalProperties": {"type": "integer"}, "x-kubernetes-int-or-string": true}}}}}]}}),
        ),
        (
            "v1",
            "Status",
            json!({"status": "Failure", "code": 404, "details": {"name": "a", "causes": [{"field": "f"}]}}),
        ),
        (
            "v1",
            "DeleteOptions",
            json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "dryRun": ["All"]}),
        ),
    ] {
        let bytes = to_protobuf(schema(), api_version, kind, &object).unwrap();
        let mut expected = object;
        expected["kind"] = kind.into();
        expected["apiVersion"] = api_version.into();
        assert_eq!(from_protobuf(schema(), &bytes).unwrap(), expected);
    }
}

#[test]
fn builds_frames_from_messages() {
    let item = json!({"metadata": {"name": "a"}});
    let node = |kind| schema().kind("", "v1", kind).unwrap();
    let message = value_to_message(schema(), node("ConfigMap"), &item).unwrap();
    let frame = watch_frame("ADDED", &envelope("v1", "ConfigMap", &message));
    assert_eq!(u32::from_be_bytes(*frame.first_chunk().unwrap()) as usize, frame.len() - 4);
    let event = message_to_value(schema(), node("WatchEvent"), &frame[4..]).unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "a");
    assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!("ConfigMap")));
}

#[test]
fn skips_unknown_fields_and_rejects_malformed_messages() {
    let node = schema().kind("", "v1", "ConfigMap").unwrap();
    let unknown = b"\xf8\x07\x01\xf9\x07\0\0\0\0\0\0\0\0\xfa\x07\x02ab\xfd\x07\0\0\0\0\x20\x01";
    assert_eq!(message_to_value(schema(), node, unknown).unwrap(), json!({"immutable": true}));
    for bad in [
        &b"\x0a"[..],
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x08\x01",
        b"\x0b",
        b"\x0a\x03\x0a\x01\xff",
        b"\0\0",
    ] {
        assert!(message_to_value(schema(), node, bad).is_err(), "{bad:?}");
    }
    // A schema whose `not` contains a schema, and so on.
    let node = schema()
        .type_named("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps");
    let mut deep = Vec::new();
    for _ in 0..2000 {
        let mut outer = Vec::new();
        wire::bytes(&mut outer, 28, &deep);
        deep = outer;
    }
    let error = message_to_value(schema(), node.unwrap(), &deep).unwrap_err();
    assert_eq!(error, ProtobufError::Exceeded(BudgetExceeded::Depth(112)));
}

proptest::proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        for kind in ["Pod", "Service", "Status", "WatchEvent"] {
            let node = schema().kind("", "v1", kind).unwrap();
            let _ = message_to_value(schema(), node, &bytes);
        }
        let _ = from_protobuf(schema(), &[MAGIC, &bytes].concat());
    }
}

fn message(number: u32, inner: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    wire::bytes(&mut out, number, inner);
    out
}

/// Encodes nested envelopes: in the data of a ControllerRevision, or in a manager's fields.
fn envelopes(levels: usize, in_fields: bool) -> Vec<u8> {
    (0..levels).fold(b"{}".to_vec(), |inner, _| {
        if in_fields {
            let entry = message(7, &message(1, &inner));
            envelope("v1", "ConfigMap", &message(1, &message(17, &entry)))
        } else {
            envelope("apps/v1", "ControllerRevision", &message(2, &message(1, &inner)))
        }
    })
}

/// A request of 80 kB once overflowed the stack of a server's thread.
#[test]
fn limits_depth_across_nested_envelopes() {
    let run = || {
        let read = from_protobuf(schema(), &envelopes(3, false)).unwrap();
        assert_eq!(read["data"]["data"]["data"], json!({}));
        for levels in [60, 200, 2000] {
            let error = from_protobuf(schema(), &envelopes(levels, false)).unwrap_err();
            assert_eq!(error, ProtobufError::Exceeded(BudgetExceeded::Depth(112)), "{levels}");
        }
        // No server sends an envelope there: managed fields are JSON.
        for levels in [2, 2000] {
            let error = from_protobuf(schema(), &envelopes(levels, true)).unwrap_err();
            assert!(matches!(error, ProtobufError::Malformed(..)), "{error}");
        }
        let deep = format!("{}1{}", "[".repeat(110), "]".repeat(110));
        let inside = |json: &str| {
            let data = message(2, &message(1, json.as_bytes()));
            from_protobuf(schema(), &envelope("apps/v1", "ControllerRevision", &data))
        };
        assert!(inside(&deep).is_ok());
        let error = inside(&format!("[[[{deep}]]]")).unwrap_err();
        assert_eq!(error, ProtobufError::Exceeded(BudgetExceeded::Depth(112)));
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap();
    thread.join().unwrap();
}

#[test]
fn limits_memory_of_short_messages() {
    let pod =
        |item: &[u8]| envelope("v1", "Pod", &message(2, &item.repeat((3 << 20) / item.len())));
    for item in [message(2, b""), message(2, b"\x0a\x00"), message(1, b"")] {
        let error = from_protobuf(schema(), &pod(&item)).unwrap_err();
        assert!(matches!(error, ProtobufError::Exceeded(BudgetExceeded::Memory(_))), "{error}");
    }
}

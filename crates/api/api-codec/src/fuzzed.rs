//! Fuzz tests with damaged JSON, YAML and protobuf.

use api_meta::Tree as _;
use api_schema::{Fill, Schema};
use serde_json::{Value, json};

use crate::protobuf::wire;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn pod() -> Value {
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "a", "labels": {"x": "y"}, "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {
            "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1500m"}},
                "livenessProbe": {"httpGet": {"port": "http", "path": "/"}}}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "s", "secret": {"items": [{"key": "k", "path": "p", "mode": 256}]}}],
        },
    })
}

#[test]
fn stores_and_sends_parsed_json() {
    let text = pod().to_string();
    fuzz::fuzz(HERE, "json", &[text.as_bytes()], |input| {
        let _ = crate::type_meta(input);
        let Ok(tree) = serde_json::from_slice::<Value>(input) else { return };
        // Every stored object can be sent.
        let mut out = Vec::new();
        let form = crate::Form::Full { kind: "Pod", api_version: "v1" };
        crate::splice(&mut out, &crate::encode_stored(&tree), 7, form);
        let sent: Value = serde_json::from_slice(&out).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(sent["metadata"]["resourceVersion"], "7");
    });
}

#[test]
fn limits_size_of_parsed_yaml() {
    let text = crate::to_yaml(&pod()).unwrap();
    let anchors = b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n";
    fuzz::fuzz(
        HERE,
        "yaml",
        &[text.as_bytes(), anchors, b"a: |\n  text\n? b\n: !!int 3\n"],
        |input| {
            if let Ok(tree) = crate::from_yaml(input) {
                // A small text must not become a large tree.
                assert!(tree.to_string().len() < 100 * input.len().max(1000));
            }
        },
    );
}

#[test]
fn encodes_decoded_cbor() {
    let object = crate::cbor::to_cbor(&pod());
    let event = crate::cbor::watch_event("ADDED", &json!({"a": [1.5, -7, null, true]}));
    let forms = b"\xbf\x61a\x9f\xd6\x43abc\xc1\x1a\x51\x4b\x67\xb0\x7f\x61a\xff\xff\xff";
    fuzz::fuzz(HERE, "cbor", &[&object, &event, forms], |input| {
        let Ok(tree) = crate::cbor::from_cbor(input) else { return };
        let again = crate::cbor::from_cbor(&crate::cbor::to_cbor(&tree));
        assert_eq!(again.unwrap_or_else(|error| panic!("{error}")), tree);
    });
}

#[test]
fn encodes_decoded_protobuf() {
    let schema = Schema::builtin();
    let pod = crate::protobuf::to_protobuf(schema, "v1", "Pod", &pod()).unwrap();
    let options =
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "u"}});
    let options = crate::protobuf::to_protobuf(schema, "v1", "DeleteOptions", &options).unwrap();
    // An object within another's bytes: both decoders share one budget.
    let nested = |levels| {
        (0..levels).fold(json!({"a": [1]}), |inner, _| {
            json!({"kind": "ControllerRevision", "apiVersion": "apps/v1", "data": inner})
        })
    };
    let revision =
        crate::protobuf::to_protobuf(schema, "apps/v1", "ControllerRevision", &nested(5)).unwrap();
    let prop = |inner| json!({"type": "object", "properties": {"a": inner}, "items": [{"not": {}}], "default": {"x": [null]}});
    let props = (0..20).fold(json!({"type": "string"}), |inner, _| prop(inner));
    let crd = json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "spec": {"group": "g",
        "versions": [{"name": "v1", "schema": {"openAPIV3Schema": props}}]}});
    let crd = crate::protobuf::to_protobuf(
        schema,
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &crd,
    )
    .unwrap();
    let mut enveloped = Vec::new();
    wire::nested(&mut enveloped, 2, |out| wire::bytes(out, 1, &revision));
    let enveloped = crate::protobuf::envelope("apps/v1", "ControllerRevision", &enveloped);
    let seeds: [&[u8]; 5] = [&pod, &options, &revision, &crd, &enveloped];
    fuzz::fuzz(HERE, "protobuf", &seeds, |input| {
        let Ok(tree) = crate::protobuf::from_protobuf(schema, input) else { return };
        let (version, kind) = (tree.text("apiVersion").to_owned(), tree.text("kind").to_owned());
        let (group, short) = crate::protobuf::group_version(&version);
        let node = schema.kind(group, short, &kind).unwrap_or_else(|| panic!("{version} {kind}"));
        // Every object that the schema accepts can be encoded again.
        if let Ok(decoded) = api_schema::decode_value(schema, node, tree, Fill::Zeroes) {
            let written = crate::protobuf::to_protobuf(schema, &version, &kind, &decoded.value);
            written.unwrap_or_else(|e| panic!("{e}"));
        }
    });
}

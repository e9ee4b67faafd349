//! Tests every API type, with every field set, as JSON, YAML and protobuf.

use std::fs;

use api_codec::{from_yaml, protobuf};
use api_schema::{Fill, Schema, decode, decode_value};
use serde_json::Value;

#[test]
fn decodes_all_encodings_to_same_object() {
    let Some(dir) = super::reference().map(|dir| dir.join("api-testdata")) else { return };
    let schema = Schema::builtin();
    let (mut checked, mut wrong) = (0, Vec::new());
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let json = fs::read(&path).unwrap();
        let tree: Value = serde_json::from_slice(&json).unwrap();
        let text = |key: &str| tree[key].as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (&text("apiVersion")[..], &text("kind")[..]);
        let (group, version) = protobuf::group_version(api_version);
        // Groups that are off by default and long removed are not published.
        let Some(node) = schema.kind(group, version, kind) else { continue };
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let mut check = |what: &str, ok: bool| {
            if !ok {
                wrong.push(format!("{name}: {what}"));
            }
        };
        let decoded = decode(schema, node, &json, Fill::Zeroes).unwrap();
        check("JSON has unknown or duplicate members", decoded.findings().is_empty());
        check("JSON is not canonical as it is", decoded.value == tree);
        let yaml = from_yaml(&fs::read(path.with_extension("yaml")).unwrap()).unwrap();
        check(
            "YAML differs",
            decode_value(schema, node, yaml, Fill::Zeroes).unwrap().value == tree,
        );
        let bytes = fs::read(path.with_extension("pb")).unwrap();
        let value = protobuf::from_protobuf(schema, &bytes).unwrap();
        let value = decode_value(schema, node, value, Fill::Zeroes).unwrap().value;
        check("protobuf reads differently", value == tree);
        check(
            "protobuf is written differently",
            protobuf::to_protobuf(schema, api_version, kind, &tree).unwrap() == bytes,
        );
        checked += 1;
    }
    assert!(wrong.is_empty(), "{} of {checked} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(checked >= 100, "only {checked} types checked");
}

//! Robustness tests with malformed objects and schemas.

use api_meta::{GroupVersionKind, Path};
use serde_json::{Value, json};

use crate::{fill::Fill, schema::Schema};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn objects_of_a_built_in_kind() {
    let schema = Schema::builtin();
    let node = schema.kind("", "v1", "Pod").unwrap();
    let pod = json!({"metadata": {"name": "a", "managedFields": [{"fieldsV1": {"f:a": {}}}]}, "spec": {"containers": [{
        "name": "c", "image": "i", "resources": {"limits": {"cpu": "1.5"}}, "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}});
    fuzz::fuzz(HERE, "object", &[pod.to_string().as_bytes()], |input| {
        let Ok(decoded) = crate::decode(schema, node, input, Fill::Defaults) else { return };
        // Decoded objects are canonical: decoding them again changes nothing.
        let again =
            crate::decode::decode_value(schema, node, decoded.value.clone(), Fill::Defaults);
        assert_eq!(again.map(|d| d.value).ok().as_ref(), Some(&decoded.value));
    });
}

#[test]
fn schemas_of_custom_kinds_and_their_objects() {
    let definition = json!({"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer", "minimum": 1, "default": 3, "multipleOf": 0.5},
        "name": {"type": "string", "pattern": "^[a-z]{1,9}$", "format": "date-time", "maxLength": 5},
        "list": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}},
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
        "any": {"x-kubernetes-preserve-unknown-fields": true, "anyOf": [{"required": ["a"]}, {"not": {"required": ["b"]}}]},
        "map": {"type": "object", "additionalProperties": {"type": "string", "enum": ["x"]}},
    }}}});
    let object = json!({"spec": {"size": 0, "name": "x", "list": [{"k": "a"}, {"k": "a"}], "any": {"b": 1}, "map": {"m": "y"}}});
    fuzz::fuzz(HERE, "custom-schema", &[definition.to_string().as_bytes()], |input| {
        let Ok(definition) = serde_json::from_slice::<Value>(input) else { return };
        let Ok(schema) = Schema::from_crd(
            &definition,
            &GroupVersionKind::new("g", "v1", "K"),
            &Path::new("spec"),
        ) else {
            return;
        };
        let node = schema.kinds[0].node;
        if let Ok(decoded) =
            crate::decode::decode_value(&schema, node, object.clone(), Fill::Defaults)
        {
            let mut errors = crate::validate(&schema, node, &decoded.value, None);
            crate::validate_rules(&schema, node, &decoded.value, None, &mut errors);
            let mut errors = crate::validate(&schema, node, &decoded.value, Some(&object));
            crate::validate_rules(&schema, node, &decoded.value, Some(&object), &mut errors);
        }
    });
}

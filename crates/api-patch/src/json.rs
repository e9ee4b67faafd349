//! JSON patch (RFC 6902) and JSON merge patch (RFC 7396).

use json_patch::PatchOperation;
use serde_json::Value;

use crate::PatchError;

/// Upstream's bound on one JSON patch, so that a small request cannot buy much work.
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;

/// Applies a JSON patch document to a copy of `object`.
pub fn json_patch(object: &Value, patch: &[u8]) -> Result<Value, PatchError> {
    let operations: json_patch::Patch =
        serde_json::from_slice(patch).map_err(|e| PatchError::Decode(e.to_string()))?;
    let got = operations.0.len();
    if got > MAX_JSON_PATCH_OPERATIONS {
        return Err(PatchError::TooManyOperations { max: MAX_JSON_PATCH_OPERATIONS, got });
    }
    let mut patched = object.clone();
    for operation in operations.iter() {
        if tests_absence(operation, &patched) {
            continue;
        }
        json_patch::patch_unsafe(&mut patched, std::slice::from_ref(operation))
            .map_err(|e| PatchError::Operation(e.to_string()))?;
    }
    Ok(patched)
}

/// Upstream lets a test for null pass where there is nothing, which the RFC does not.
fn tests_absence(operation: &PatchOperation, object: &Value) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    test.value.is_null() && test.path.resolve(object).is_err()
}

/// Merges `patch` into `object`: null removes, objects merge, all else replaces.
pub fn merge_patch(object: &mut Value, patch: &Value) -> Result<(), PatchError> {
    if !patch.is_object() {
        return Err(PatchError::InvalidMergePatch);
    }
    json_patch::merge(object, patch);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_patch_applies_in_order() {
        let object = json!({"spec": {"replicas": 1, "list": ["a", "b"]}});
        let patch = br#"[
            {"op": "test", "path": "/spec/replicas", "value": 1},
            {"op": "replace", "path": "/spec/replicas", "value": 3},
            {"op": "add", "path": "/spec/list/-", "value": "c"},
            {"op": "remove", "path": "/spec/list/0"},
            {"op": "add", "path": "/metadata", "value": {"labels": {"a/b": "c"}}},
            {"op": "replace", "path": "/metadata/labels/a~1b", "value": "d"}
        ]"#;
        assert_eq!(
            json_patch(&object, patch).unwrap(),
            json!({"spec": {"replicas": 3, "list": ["b", "c"]}, "metadata": {"labels": {"a/b": "d"}}})
        );
    }

    #[test]
    fn json_patch_errors_say_their_code() {
        let object = json!({"spec": {"replicas": 1}});
        let cases: [(&[u8], u16); 7] = [
            (br#"{"op": "add"}"#, 400),
            (br#"[{"op": "add""#, 400),
            (br#"[{"op": "test", "path": "/spec/replicas", "value": 2}]"#, 422),
            (br#"[{"op": "test", "path": "/spec/replicas", "value": null}]"#, 422),
            (br#"[{"op": "remove", "path": "/spec/none"}]"#, 422),
            (br#"[{"op": "replace", "path": "/none", "value": 1}]"#, 422),
            (br#"[{"op": "add", "path": "/none/deeper", "value": 1}]"#, 422),
        ];
        for (patch, code) in cases {
            assert_eq!(json_patch(&object, patch).unwrap_err().code(), code);
        }
        let absent = br#"[{"op": "test", "path": "/spec/none", "value": null}]"#;
        assert_eq!(json_patch(&object, absent).unwrap(), object);
        let one = r#"{"op":"test","path":"/spec/replicas","value":1}"#;
        let many = format!("[{}]", vec![one; 10_001].join(","));
        let error = json_patch(&object, many.as_bytes()).unwrap_err();
        assert_eq!(error.code(), 413);
        assert_eq!(
            error.to_string(),
            "The allowed maximum operations in a JSON patch is 10000, got 10001"
        );
    }

    #[test]
    fn merge_patch_follows_the_rfc() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "l": [1, 2], "x": 1});
        merge_patch(&mut object, &json!({"a": {"b": null, "d": 4}, "l": [3], "y": {"z": null}}))
            .unwrap();
        assert_eq!(object, json!({"a": {"c": 2, "d": 4}, "l": [3], "x": 1, "y": {}}));
        assert_eq!(merge_patch(&mut object, &json!([1])).unwrap_err().code(), 400);
    }
}

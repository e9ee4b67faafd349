//! JSON patch (RFC 6902) and JSON merge patch (RFC 7396).

use std::io;

use api_meta::{Budget, BudgetExceeded, JsonError, budget::MAX_DEPTH};
use json_patch::{
    PatchOperation,
    jsonptr::{Pointer, PointerBuf},
};
use serde::Deserialize as _;
use serde_json::Value;

use crate::error::PatchError;

/// Upstream's limit on the operations of one JSON patch, which bounds the work for a small request.
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;

/// Upstream's limit on the size that all `copy` operations of one JSON patch add, in bytes of JSON.
const MAX_JSON_PATCH_COPIES: usize = 3 << 20;

/// The limit on the list items that the operations of one JSON patch move by insertions and removals.
const MAX_JSON_PATCH_MOVES: usize = 20_000_000;

/// Applies a JSON patch document to a copy of `object`.
pub fn json_patch(object: &Value, patch: &[u8]) -> Result<Value, PatchError> {
    let mut budget = Budget::object();
    let mut operations = budget.json(patch).map_err(|error| match error {
        JsonError::Exceeded(exceeded) => PatchError::Exceeded(exceeded),
        JsonError::Syntax(error) => PatchError::Decode(error.to_string()),
    })?;
    // A Go program that has no operations encodes its empty list as null.
    if operations.is_null() {
        return Ok(object.clone());
    }
    let got = operations.as_array().map_or(0, Vec::len);
    if got > MAX_JSON_PATCH_OPERATIONS {
        return Err(PatchError::TooManyOperations { max: MAX_JSON_PATCH_OPERATIONS, got });
    }
    set_missing_values(&mut operations);
    let operations = json_patch::Patch::deserialize(operations)
        .map_err(|error| PatchError::Decode(error.to_string()))?;
    let mut patched = object.clone();
    let mut growth = Growth { budget, copied: 0, moved: 0 };
    for operation in operations.iter() {
        api_meta::steps::spend(1);
        if is_absence_test(operation, &patched) {
            continue;
        }
        let addition = addition(operation, &patched);
        let operation = addition.as_ref().unwrap_or(operation);
        growth.allow(operation, &patched)?;
        json_patch::patch_unsafe(&mut patched, std::slice::from_ref(operation)).map_err(
            |error| match error.kind {
                json_patch::PatchErrorKind::TestFailed => PatchError::TestFailed,
                _ => PatchError::Operation(error.to_string()),
            },
        )?;
    }
    Ok(patched)
}

/// Sets the missing values of operations to null, as upstream does: Go programs may leave out empty values.
fn set_missing_values(operations: &mut Value) {
    for operation in operations.as_array_mut().into_iter().flatten() {
        if let Some(members) = operation.as_object_mut()
            && let Some("add" | "replace" | "test") = members.get("op").and_then(Value::as_str)
        {
            members.entry("value").or_insert(Value::Null);
        }
    }
}

/// The accumulated growth by the operations of one patch. Each operation is checked before it runs, because a few
/// copies can multiply an object's size, or nest it as deeply as there are operations.
struct Growth {
    /// The limits on memory and depth. Added and moved values count.
    budget: Budget,
    /// The copied bytes of JSON.
    copied: usize,
    /// The moved list items.
    moved: usize,
}

impl Growth {
    fn allow(&mut self, operation: &PatchOperation, object: &Value) -> Result<(), PatchError> {
        match operation {
            PatchOperation::Move(step) => {
                self.shift(&step.from, object)?;
                self.shift(&step.path, object)?;
            }
            PatchOperation::Add(_) | PatchOperation::Remove(_) | PatchOperation::Copy(_) => {
                self.shift(operation.path(), object)?;
            }
            PatchOperation::Replace(_) | PatchOperation::Test(_) => {}
        }
        match operation {
            PatchOperation::Add(add) => self.put(&add.path, &add.value),
            PatchOperation::Replace(replace) => self.put(&replace.path, &replace.value),
            PatchOperation::Move(step) => match step.from.resolve(object) {
                Ok(moved) => self.put(&step.path, moved),
                // A missing source is reported by the operation itself.
                Err(_) => Ok(()),
            },
            PatchOperation::Copy(copy) => self.copy(&copy.from, &copy.path, object),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => Ok(()),
        }
    }

    /// Counts the items after a position in a list.
    fn shift(&mut self, path: &Pointer, object: &Value) -> Result<(), PatchError> {
        let Some((parent, place)) = path.split_back() else { return Ok(()) };
        if let Ok(Value::Array(items)) = parent.resolve(object)
            && let Ok(index) = place.encoded().parse::<usize>()
        {
            self.moved += items.len().saturating_sub(index);
        }
        let (moved, max) = (self.moved, MAX_JSON_PATCH_MOVES);
        if moved > max { Err(PatchError::MovesTooMuch { moved, max }) } else { Ok(()) }
    }

    fn copy(
        &mut self,
        from: &PointerBuf,
        path: &PointerBuf,
        object: &Value,
    ) -> Result<(), PatchError> {
        let Ok(source) = from.resolve(object) else { return Ok(()) };
        let mut length = Length(0);
        // Counting cannot fail.
        let _ = serde_json::to_writer(&mut length, source);
        self.copied += length.0;
        if self.copied > MAX_JSON_PATCH_COPIES {
            let (copied, max) = (self.copied, MAX_JSON_PATCH_COPIES);
            return Err(PatchError::CopiesTooMuch { copied, max });
        }
        self.put(path, source)
    }

    /// Charges a value at a path, whose length is the value's depth.
    fn put(&mut self, path: &Pointer, value: &Value) -> Result<(), PatchError> {
        let steps = path.count();
        if steps > MAX_DEPTH {
            return Err(BudgetExceeded::Depth(MAX_DEPTH).into());
        }
        (0..steps).try_for_each(|_| self.budget.enter())?;
        self.budget.item()?;
        self.budget.tree(value)?;
        (0..steps).for_each(|_| self.budget.leave());
        Ok(())
    }
}

/// A writer that only counts bytes.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reports whether the operation tests a missing value for null. Upstream accepts this test, unlike the RFC.
fn is_absence_test(operation: &PatchOperation, object: &Value) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    test.value.is_null() && test.path.resolve(object).is_err()
}

/// Returns the addition of a member that an operation replaces and the object lacks. Upstream accepts this operation,
/// unlike the RFC: external-snapshotter replaces the annotations of objects that have none.
fn addition(operation: &PatchOperation, object: &Value) -> Option<PatchOperation> {
    let PatchOperation::Replace(replace) = operation else { return None };
    let (parent, member) = replace.path.split_back()?;
    let members = parent.resolve(object).ok()?.as_object()?;
    if members.contains_key(&*member.decoded()) {
        return None;
    }
    let (path, value) = (replace.path.clone(), replace.value.clone());
    Some(PatchOperation::Add(json_patch::AddOperation { path, value }))
}

/// Merges `patch` into `object`: null removes a member, objects are merged, other values replace.
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
    fn replacing_a_missing_member_adds_it() {
        let object = json!({"metadata": {"name": "a"}, "list": [1]});
        let patch = br#"[{"op": "replace", "path": "/metadata/annotations", "value": {"a": "b"}},
            {"op": "replace", "path": "/metadata/annotations/c~1d", "value": "e"}]"#;
        let patched = json_patch(&object, patch).unwrap();
        assert_eq!(patched["metadata"]["annotations"], json!({"a": "b", "c/d": "e"}));
        let outside = br#"[{"op": "replace", "path": "/list/1", "value": 2}]"#;
        assert_eq!(json_patch(&object, outside).unwrap_err().code(), 422);
        // The added values count like those of additions.
        let nested = format!("{}0{}", "[".repeat(200), "]".repeat(200));
        let deep = format!(r#"[{{"op": "replace", "path": "/a", "value": {nested}}}]"#);
        assert_eq!(json_patch(&object, deep.as_bytes()).unwrap_err().code(), 413);
    }

    #[test]
    fn null_changes_nothing_and_missing_values_are_null() {
        let object = json!({"a": {"b": 1}});
        assert_eq!(json_patch(&object, b"null").unwrap(), object);
        let patch = br#"[{"op": "add", "path": "/a/b"}, {"op": "test", "path": "/a/b"}]"#;
        assert_eq!(json_patch(&object, patch).unwrap(), json!({"a": {"b": null}}));
        for hostile in ["[null]", "[[]]", "[{}]", r#"[{"op": 1}]"#, r#"{"op": "add"}"#] {
            assert_eq!(json_patch(&object, hostile.as_bytes()).unwrap_err().code(), 400);
        }
    }

    #[test]
    fn maps_errors_to_status_codes() {
        let object = json!({"spec": {"replicas": 1}});
        let cases: [(&[u8], u16); 8] = [
            (br#"{"op": "add"}"#, 400),
            (br#"[{"op": "add""#, 400),
            (br#"[{"op": "test", "path": "/spec/replicas", "value": 2}]"#, 422),
            (br#"[{"op": "test", "path": "/spec/replicas", "value": null}]"#, 422),
            (br#"[{"op": "remove", "path": "/spec/none"}]"#, 422),
            (br#"[{"op": "replace", "path": "/none/deeper", "value": 1}]"#, 422),
            (br#"[{"op": "replace", "path": "/spec/replicas/none", "value": 1}]"#, 422),
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
    fn rejects_27_copies_of_object_into_itself() {
        let object = json!({"metadata": {"name": "a", "annotations": {"x": "y".repeat(99)}}});
        let copies: Vec<Value> = (0..27)
            .map(|i| json!({"op": "copy", "from": "/metadata", "path": format!("/metadata/a{i}")}))
            .collect();
        let error = json_patch(&object, json!(copies).to_string().as_bytes()).unwrap_err();
        assert_eq!(error.code(), 422);
        assert!(
            error.to_string().starts_with(
                "Unable to complete the copy, the accumulated size increase of copy is "
            ),
            "{error}"
        );
        assert!(error.to_string().ends_with(", exceeding the limit 3145728"), "{error}");
        let few = json!(copies[..10]).to_string();
        let grown = json_patch(&object, few.as_bytes()).unwrap();
        assert!(grown.to_string().len() > 1024 * 30);
    }

    #[test]
    fn rejects_nesting_by_operations() {
        let leaf = |depth: usize| (0..depth).fold(json!({}), |inner, _| json!({"a": inner}));
        let path = "/a".repeat(60);
        let mut steps = vec![json!({"op": "add", "path": "/r", "value": leaf(60)})];
        for _ in 0..200 {
            steps.push(json!({"op": "add", "path": "/t", "value": leaf(60)}));
            steps.push(json!({"op": "move", "from": "/r", "path": format!("/t{path}")}));
            steps.push(json!({"op": "move", "from": "/t", "path": "/r"}));
        }
        let error = json_patch(&json!({}), json!(steps).to_string().as_bytes()).unwrap_err();
        assert_eq!(error.code(), 413);
        assert_eq!(error.to_string(), "exceeded max depth of 112");
        // Each operation adds one level at a longer path.
        let path = |depth: usize| format!("/{}", vec!["a"; depth].join("/"));
        let steps: Vec<Value> =
            (1..500).map(|i| json!({"op": "add", "path": path(i), "value": {}})).collect();
        assert!(json_patch(&json!({}), json!(steps).to_string().as_bytes()).is_err());
    }

    #[test]
    fn charges_size_of_moved_values() {
        let object = json!({"a": vec![json!({"b": 0}); 10_000]});
        let there_and_back = [("/a", "/c"), ("/c", "/a")];
        let steps: Vec<Value> = there_and_back
            .iter()
            .cycle()
            .take(10_000)
            .map(|(from, path)| json!({"op": "move", "from": from, "path": path}))
            .collect();
        assert_eq!(
            json_patch(&object, json!(steps).to_string().as_bytes()).unwrap_err().code(),
            413
        );
    }

    #[test]
    fn rejects_patch_that_moves_long_list_often() {
        let object = json!({"list": vec![0; 10_000]});
        let steps = |count: usize| {
            let step = json!({"op": "add", "path": "/list/0", "value": 1});
            json_patch(&object, json!(vec![step; count]).to_string().as_bytes())
        };
        assert_eq!(steps(1000).unwrap()["list"].as_array().map(Vec::len), Some(11_000));
        assert_eq!(steps(2000).unwrap_err().code(), 413);
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

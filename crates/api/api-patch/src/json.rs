//! JSON patch (RFC 6902) and JSON merge patch (RFC 7396), with the deviations of upstream's library.
//!
//! Upstream's operations differ from the RFC: a test of a missing member for null passes, a replacement adds a missing
//! member, a copy of a missing member adds null, and negative indexes count from the end of a list. The text before the
//! first slash of a path is ignored.

use std::io;

use api_meta::{Budget, BudgetExceeded, JsonError, budget::MAX_DEPTH};
use serde_json::{Map, Value};

use crate::error::{PatchError, json_word};

/// Upstream's limit on the operations of one JSON patch, which bounds the work for a small request.
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;

/// Upstream's limit on the size that all `copy` operations of one JSON patch add, in bytes of JSON.
const MAX_JSON_PATCH_COPIES: usize = 3 << 20;

/// The limit on the list items that the operations of one JSON patch move by insertions and removals.
const MAX_JSON_PATCH_MOVES: usize = 20_000_000;

/// Applies a JSON patch document to a copy of `object`.
pub fn json_patch(object: &Value, patch: &[u8]) -> Result<Value, PatchError> {
    let mut budget = Budget::object();
    let operations = budget.json(patch).map_err(|error| match error {
        JsonError::Exceeded(exceeded) => PatchError::Exceeded(exceeded),
        JsonError::Syntax(error) => PatchError::Decode(error.to_string()),
    })?;
    apply_operations(object, &operations, budget)
}

/// Applies a JSON patch that is parsed already to a copy of `object`.
pub fn json_patch_tree(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let mut budget = Budget::object();
    budget.tree(patch)?;
    apply_operations(object, patch, budget)
}

/// Applies the operations of a patch. `budget` is what the patch itself leaves for the growth of the object.
fn apply_operations(object: &Value, patch: &Value, budget: Budget) -> Result<Value, PatchError> {
    let operations = Operation::list(patch)?;
    let got = operations.len();
    if got > MAX_JSON_PATCH_OPERATIONS {
        return Err(PatchError::TooManyOperations { max: MAX_JSON_PATCH_OPERATIONS, got });
    }
    let mut patched = object.clone();
    let mut growth = Growth { budget, copied: 0, moved: 0 };
    for operation in operations {
        api_meta::steps::spend(1);
        operation.apply(&mut patched, &mut growth)?;
    }
    Ok(patched)
}

/// An operation of a JSON patch. Its members are read when it is applied.
struct Operation<'a> {
    op: Option<&'a str>,
    path: Option<&'a str>,
    from: Option<&'a str>,
    /// A missing value is null: Go programs may leave out empty values.
    value: &'a Value,
}

impl<'a> Operation<'a> {
    /// Reads the operations of a patch. A Go program that has none encodes its empty list as null.
    fn list(patch: &'a Value) -> Result<Vec<Self>, PatchError> {
        match patch {
            Value::Null => Ok(Vec::new()),
            Value::Array(items) => items.iter().map(Self::read).collect(),
            other => Err(wrong_type(other, "value of type []handlers.jsonPatchOp")),
        }
    }

    fn read(item: &'a Value) -> Result<Self, PatchError> {
        if !item.is_object() && !item.is_null() {
            return Err(wrong_type(item, "value of type handlers.jsonPatchOp"));
        }
        let text = |name: &str| match &item[name] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.as_str())),
            other => {
                let field = format!("struct field jsonPatchOp.{name} of type string");
                Err(wrong_type(other, &field))
            }
        };
        let (op, path, from) = (text("op")?, text("path")?, text("from")?);
        Ok(Self { op, path, from, value: &item["value"] })
    }

    fn apply(self, object: &mut Value, growth: &mut Growth) -> Result<(), PatchError> {
        let Self { op, path, from, value } = self;
        let op = op.unwrap_or("unknown");
        let needed = |member: Option<&'a str>, name: &str| {
            member.ok_or_else(|| {
                PatchError::Operation(format!("{op} operation, missing {name} field"))
            })
        };
        match op {
            "add" => add(object, needed(path, "path")?, value.clone(), growth),
            "remove" => remove(object, needed(path, "path")?, growth).map(drop),
            "replace" => replace(object, needed(path, "path")?, value.clone(), growth),
            "test" => test(object, needed(path, "path")?, value),
            "move" => {
                let moved = remove(object, needed(from, "from")?, growth)?;
                add(object, needed(path, "path")?, moved, growth)
            }
            "copy" => {
                let source = needed(from, "from")?;
                let copied = Place::find(object, source)?.get()?.cloned().unwrap_or_default();
                growth.copy(&copied)?;
                add(object, needed(path, "path")?, copied, growth)
            }
            _ => Err(PatchError::Operation(format!("Unexpected kind: {op}"))),
        }
    }
}

fn wrong_type(value: &Value, place: &str) -> PatchError {
    PatchError::Decode(format!("json: cannot unmarshal {} into Go {place}", json_word(value)))
}

/// The place that a path names: an object or a list, and a key or an index in it.
struct Place<'a> {
    parent: &'a mut Value,
    key: String,
}

impl<'a> Place<'a> {
    fn find(object: &'a mut Value, path: &str) -> Result<Self, PatchError> {
        let missing = || PatchError::Operation(format!("doc is missing path: {path:?}"));
        let mut parts = path.split('/').skip(1).map(unescape).peekable();
        let mut parent = object;
        while let Some(key) = parts.next() {
            if parts.peek().is_none() {
                return Ok(Self { parent, key });
            }
            let next = Self { parent, key }.into_value().ok_or_else(missing)?;
            parent = Some(next).filter(|v| v.is_object() || v.is_array()).ok_or_else(missing)?;
        }
        Err(missing())
    }

    fn into_value(self) -> Option<&'a mut Value> {
        match self.parent {
            Value::Object(members) => members.get_mut(&self.key),
            Value::Array(items) => {
                let at = index(&self.key, items.len()).ok()?;
                items.get_mut(at)
            }
            _ => None,
        }
    }

    /// Returns the value. A missing member of an object is `None`, a missing item of a list is an error.
    fn get(&self) -> Result<Option<&Value>, PatchError> {
        match &*self.parent {
            Value::Array(items) => Ok(items.get(index(&self.key, items.len())?)),
            parent => Ok(parent.get(&self.key)),
        }
    }
}

/// Decodes a step of a path.
fn unescape(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// Parses an index below `length`. Negative ones count from `length`.
fn index(text: &str, length: usize) -> Result<usize, PatchError> {
    let counted = |number: isize| match usize::try_from(number) {
        Ok(at) => Some(at).filter(|at| *at < length),
        Err(_) => length.checked_sub(number.unsigned_abs()),
    };
    let at = text.parse().ok().and_then(counted);
    at.ok_or_else(|| PatchError::Operation(format!("Unable to access invalid index: {text}")))
}

fn add(
    object: &mut Value,
    path: &str,
    value: Value,
    growth: &mut Growth,
) -> Result<(), PatchError> {
    growth.put(path, &value)?;
    let Place { parent, key } = Place::find(object, path)?;
    match parent {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            // A negative index counts the place behind the last item, too.
            let at = index(&key, items.len() + 1)?;
            growth.shift(items.len() - at)?;
            items.insert(at, value);
        }
        parent => {
            parent.as_object_mut().map(|members| members.insert(key, value));
        }
    }
    Ok(())
}

fn remove(object: &mut Value, path: &str, growth: &mut Growth) -> Result<Value, PatchError> {
    let Place { parent, key } = Place::find(object, path)?;
    match parent {
        Value::Array(items) => {
            let at = index(&key, items.len())?;
            growth.shift(items.len() - at)?;
            Ok(items.remove(at))
        }
        parent => {
            let removed = parent.as_object_mut().and_then(|members| members.remove(&key));
            removed.ok_or_else(|| {
                PatchError::Operation(format!("Unable to remove nonexistent key: {key}"))
            })
        }
    }
}

fn replace(
    object: &mut Value,
    path: &str,
    value: Value,
    growth: &mut Growth,
) -> Result<(), PatchError> {
    growth.put(path, &value)?;
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            let text = "replace operation value must be object or array";
            return Err(PatchError::Operation(text.to_owned()));
        }
        *object = value;
        return Ok(());
    }
    let place = Place::find(object, path)?;
    place.get()?;
    match place.parent {
        Value::Object(members) => drop(members.insert(place.key, value)),
        _ => drop(place.into_value().map(|old| *old = value)),
    }
    Ok(())
}

fn test(object: &mut Value, path: &str, value: &Value) -> Result<(), PatchError> {
    let equal = match path {
        "" => object == value,
        _ => Place::find(object, path)?.get()?.unwrap_or(&Value::Null) == value,
    };
    if equal { Ok(()) } else { Err(PatchError::TestFailed) }
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
    /// Counts the items after a position in a list.
    fn shift(&mut self, items: usize) -> Result<(), PatchError> {
        self.moved += items;
        let (moved, max) = (self.moved, MAX_JSON_PATCH_MOVES);
        if moved > max { Err(PatchError::MovesTooMuch { moved, max }) } else { Ok(()) }
    }

    /// Counts the bytes of a copied value.
    fn copy(&mut self, value: &Value) -> Result<(), PatchError> {
        let mut length = Length(0);
        // Counting cannot fail.
        let _ = serde_json::to_writer(&mut length, value);
        self.copied += length.0;
        let (copied, max) = (self.copied, MAX_JSON_PATCH_COPIES);
        if copied > max { Err(PatchError::CopiesTooMuch { copied, max }) } else { Ok(()) }
    }

    /// Charges a value at a path, whose length is the value's depth.
    fn put(&mut self, path: &str, value: &Value) -> Result<(), PatchError> {
        let steps = path.split('/').skip(1).count();
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

/// Merges `patch` into `object`: null removes a member, objects are merged, other values replace. As upstream, nulls
/// are also removed from objects within added lists.
pub fn merge_patch(object: &mut Value, patch: &Value) -> Result<(), PatchError> {
    match (object, patch) {
        (Value::Object(members), Value::Object(patch)) => {
            merge(members, patch);
            Ok(())
        }
        (_, Value::Object(_) | Value::Null) => Err(PatchError::InvalidMergePatch),
        (_, patch) => Err(wrong_type(patch, "value of type map[string]interface {}")),
    }
}

fn merge(members: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, new) in patch {
        api_meta::steps::spend(1);
        match (members.get_mut(name), new) {
            (_, Value::Null) => drop(members.remove(name)),
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            // Upstream replaces an object by a list without a look into the list.
            (Some(Value::Object(_)), new) => drop(members.insert(name.clone(), new.clone())),
            (_, new) => drop(members.insert(name.clone(), without_nulls(new))),
        }
    }
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.iter().filter(|(_, value)| !value.is_null());
            kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        scalar => scalar.clone(),
    }
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
        for hostile in ["[[]]", r#"[{"op": 1}]"#, r#"{"op": "add"}"#] {
            assert_eq!(json_patch(&object, hostile.as_bytes()).unwrap_err().code(), 400);
        }
        for rejected in ["[null]", "[{}]", r#"[{"op": "add", "value": 1}]"#] {
            assert_eq!(json_patch(&object, rejected.as_bytes()).unwrap_err().code(), 422);
        }
    }

    #[test]
    fn follows_deviations_of_upstream() {
        let object = json!({"a": {"b": 1}, "list": [1, 2, 3]});
        let cases = [
            (
                json!([{"op": "copy", "from": "/a/none", "path": "/a/c"}]),
                Some(("/a/c", json!(null))),
            ),
            (json!([{"op": "move", "from": "/a/none", "path": "/a/c"}]), None),
            (json!([{"op": "add", "path": "a/b", "value": 2}]), Some(("/b", json!(2)))),
            (json!([{"op": "add", "path": "", "value": {}}]), None),
            (json!([{"op": "replace", "path": "", "value": {"c": 1}}]), Some(("/c", json!(1)))),
            (json!([{"op": "replace", "path": "", "value": 1}]), None),
            (json!([{"op": "add", "path": "/list/-1", "value": 4}]), Some(("/list/3", json!(4)))),
            (json!([{"op": "remove", "path": "/list/-1"}]), Some(("/list/1", json!(2)))),
            (
                json!([{"op": "replace", "path": "/list/-3", "value": 0}]),
                Some(("/list/0", json!(0))),
            ),
            (json!([{"op": "replace", "path": "/list/-4", "value": 0}]), None),
            (json!([{"op": "add", "path": "/list/01", "value": 9}]), Some(("/list/1", json!(9)))),
            (json!([{"op": "add", "path": "/list/4", "value": 9}]), None),
            (json!([{"op": "test", "path": "/none/b", "value": null}]), None),
            (json!([{"op": "test", "path": "/list/3", "value": null}]), None),
            (json!([{"op": "burn", "path": "/a"}]), None),
        ];
        for (patch, want) in cases {
            let result = json_patch(&object, patch.to_string().as_bytes());
            match (result, want) {
                (Ok(patched), Some((path, value))) => {
                    assert_eq!(patched.pointer(path), Some(&value), "{patch}");
                }
                (Err(error), None) => assert_eq!(error.code(), 422, "{patch}"),
                (result, _) => panic!("{patch}: {result:?}"),
            }
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
    fn merge_patch_removes_nulls() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "l": [1, 2], "x": 1});
        merge_patch(&mut object, &json!({"a": {"b": null, "d": 4}, "l": [3], "y": {"z": null}}))
            .unwrap();
        assert_eq!(object, json!({"a": {"c": 2, "d": 4}, "l": [3], "x": 1, "y": {}}));
        merge_patch(&mut object, &json!({"l": [{"b": null}], "a": [{"b": null}]})).unwrap();
        assert_eq!(object, json!({"a": [{"b": null}], "l": [{}], "x": 1, "y": {}}));
        assert_eq!(merge_patch(&mut object, &json!([1])).unwrap_err().code(), 400);
    }
}

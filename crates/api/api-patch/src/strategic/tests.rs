use serde_json::{Value, json};

use super::strategic;
use crate::testing::pod_schema;

fn patched(original: Value, patch: Value) -> Result<Value, String> {
    let (schema, root) = pod_schema();
    let mut object = original;
    strategic(&schema, Some(root), &mut object, &patch).map_err(|e| e.to_string())?;
    Ok(object)
}

fn containers(items: Value) -> Value {
    json!({"spec": {"containers": items}})
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn merges() {
    let cases = [
        // A new item is placed first, as in the documentation's example.
        (
            containers(json!([{"name": "a", "image": "x"}])),
            containers(json!([{"name": "b", "image": "y"}])),
            containers(json!([{"name": "b", "image": "y"}, {"name": "a", "image": "x"}])),
        ),
        // An item with a known key is merged in place.
        (
            containers(json!([{"name": "a", "image": "x"}, {"name": "b", "image": "y"}])),
            containers(json!([{"name": "b", "image": "z", "tty": true}])),
            containers(
                json!([{"name": "a", "image": "x"}, {"name": "b", "image": "z", "tty": true}]),
            ),
        ),
        // Deletion by key.
        (
            containers(json!([{"name": "a"}, {"name": "b"}])),
            containers(json!([{"name": "a", "$patch": "delete"}])),
            containers(json!([{"name": "b"}])),
        ),
        // Replacement of a list.
        (
            containers(json!([{"name": "a"}, {"name": "b"}])),
            containers(json!([{"$patch": "replace"}, {"name": "c"}])),
            containers(json!([{"name": "c"}])),
        ),
        // The patch determines the order. Items that only the server has stay before their successors.
        (
            containers(json!([{"name": "a"}, {"name": "b"}, {"name": "c"}])),
            containers(json!([{"name": "c"}, {"name": "a"}])),
            containers(json!([{"name": "b"}, {"name": "c"}, {"name": "a"}])),
        ),
        // An explicit order, without and with items.
        (
            containers(json!([{"name": "a"}, {"name": "b"}])),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
            containers(json!([{"name": "b"}, {"name": "a"}])),
        ),
        (
            containers(json!([{"name": "a"}, {"name": "s"}])),
            json!({"spec": {
                "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
                "containers": [{"name": "b", "image": "y"}]}}),
            containers(json!([{"name": "a"}, {"name": "b", "image": "y"}, {"name": "s"}])),
        ),
        // Added items fill the positions of deleted ones.
        (
            containers(json!([{"name": "a"}, {"name": "b"}, {"name": "d"}])),
            json!({"spec": {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "c"}],
                "containers": [{"name": "c"}, {"$patch": "delete", "name": "a"}]}}),
            containers(json!([{"name": "b"}, {"name": "d"}, {"name": "c"}])),
        ),
        // Lists of scalars.
        (
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"finalizers": ["b", "c"]}}),
            json!({"metadata": {"finalizers": ["a", "b", "c"]}}),
        ),
        (
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
            json!({"metadata": {"finalizers": ["b"]}}),
        ),
        (
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {
                "$deleteFromPrimitiveList/finalizers": ["a"],
                "$setElementOrder/finalizers": ["c", "b"],
                "finalizers": ["c"]}}),
            json!({"metadata": {"finalizers": ["c", "b"]}}),
        ),
        // Atomic lists are replaced.
        (
            json!({"spec": {"args": ["a"]}}),
            json!({"spec": {"args": ["b"]}}),
            json!({"spec": {"args": ["b"]}}),
        ),
        // Nulls remove members, and are ignored for absent ones.
        (
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"a": null, "c": null}, "annotations": {"x": null}}}),
            json!({"metadata": {"labels": {"b": "2"}, "annotations": {}}}),
        ),
        // Replacement and deletion of a map.
        (
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}}}),
            json!({"metadata": {"labels": {"b": "2"}}}),
        ),
        (
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "delete"}}}),
            json!({"metadata": {"labels": {}}}),
        ),
        // Retained keys.
        (
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            json!({"spec": {"strategy": {"type": "Recreate"}}}),
        ),
        // Directives in a value without an original: maps with `$patch` are dropped, other directives stay.
        (
            json!({"spec": {}}),
            json!({"spec": {
                "$setElementOrder/containers": [{"name": "a"}],
                "containers": [{"name": "a", "image": null}, {"name": "b", "$patch": "replace"}],
                "strategy": {"$retainKeys": ["type"]}}}),
            json!({"spec": {
                "containers": [{"name": "a"}], "strategy": {"$retainKeys": ["type"]}}}),
        ),
        // An empty order checks nothing, and a list of another type deletes nothing.
        (
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {
                "$setElementOrder/finalizers": [], "finalizers": ["c"],
                "$deleteFromPrimitiveList/labels": ["a"]}}),
            json!({"metadata": {"finalizers": ["a", "b", "c"]}}),
        ),
    ];
    for (original, patch, want) in cases {
        assert_eq!(patched(original, patch.clone()), Ok(want), "{patch}");
    }
}

#[test]
fn reports_errors_in_upstream_words() {
    let cases = [
        (
            containers(json!([{"image": "x"}])),
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (
            containers(json!([{"name": "a", "$patch": "merge"}])),
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"metadata": {"labels": {"$patch": "burn"}}}),
            "unknown patch type: burn in map: map[$patch:burn]",
        ),
        (
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "rollingUpdate": {}}}}),
            "invalid patch format of retainKeys",
        ),
        (
            json!({"metadata": {"labels": {"$patch": "merge"}}}),
            "unknown patch type: merge in map: map[$patch:merge]",
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveList": ["a"]}}),
            "invalid patch format of primitive list",
        ),
        (
            json!({"metadata": {"$setElementOrder": ["a"]}}),
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({"spec": {"$setElementOrder/containers": 1, "containers": []}}),
            "expected a []interface {}, but received a int64",
        ),
        (
            json!({"spec": {"$setElementOrder/containers": ["a"], "containers": [{"name": "a"}]}}),
            "expected a map[string]interface {}, but received a string",
        ),
        (containers(json!(["x"])), "list element types are not identical: [[map[name:a]] [x]]"),
    ];
    let original = json!({
        "metadata": {"labels": {"a": "1"}, "finalizers": ["a"]},
        "spec": {"containers": [{"name": "a"}], "strategy": {"type": "Recreate"}}});
    for (patch, want) in cases {
        assert_eq!(patched(original.clone(), patch), Err(want.to_owned()));
    }
    let disordered = json!({"spec": {
        "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
        "containers": [{"name": "b"}, {"name": "a"}]}});
    assert!(patched(original, disordered).unwrap_err().contains("doesn't match"));
}

//! Merges a child config into its parent. The child's values win, lists of named items are merged by name, and lists of
//! arguments are concatenated.

use serde_json::{Map, Value};

/// The merge rule of a list.
enum Rule {
    Joined,
    /// Items are identified by the first of these fields that is neither empty nor zero.
    Keyed(&'static [&'static str]),
    /// Items are strings or numbers without duplicates.
    Once,
}

/// Returns the rule for the list in this field.
fn rule(field: &str) -> Rule {
    match field {
        "append" | "options" | "openOptions" | "mountOptions" => Rule::Joined,
        "disks" | "filesystems" => Rule::Keyed(&["device"]),
        "files" | "directories" | "links" => Rule::Keyed(&["path"]),
        "partitions" => Rule::Keyed(&["number", "label"]),
        "merge" | "certificateAuthorities" => Rule::Keyed(&["source"]),
        "tang" => Rule::Keyed(&["url"]),
        "raid" | "luks" | "units" | "dropins" | "users" | "groups" | "httpHeaders" => {
            Rule::Keyed(&["name"])
        }
        _ => Rule::Once,
    }
}

/// Groups of fields whose items replace each other: a path is either a file, a directory or a link.
const RIVALS: [&[&str]; 2] =
    [&["files", "directories", "links"], &["shouldExist", "shouldNotExist"]];

/// Returns the parent merged with the child.
pub fn merge(parent: &Value, child: &Value) -> Value {
    match (parent, child) {
        (Value::Object(parent), Value::Object(child)) => Value::Object(objects(parent, child)),
        (parent, Value::Null) => parent.clone(),
        (_, child) => child.clone(),
    }
}

fn objects(parent: &Map<String, Value>, child: &Map<String, Value>) -> Map<String, Value> {
    let mut out = parent.clone();
    for (field, value) in child {
        let merged = match (out.get(field), value) {
            (Some(Value::Array(old)), Value::Array(new)) => Value::Array(lists(field, old, new)),
            (Some(old), new) => merge(old, new),
            (None, Value::Array(new)) => Value::Array(lists(field, &[], new)),
            (None, new) => new.clone(),
        };
        out.insert(field.clone(), merged);
    }
    for rivals in RIVALS {
        for field in rivals {
            let new = child.get(*field).and_then(Value::as_array).map(Vec::as_slice);
            let names: Vec<Value> = new.unwrap_or_default().iter().map(|i| key(field, i)).collect();
            for rival in rivals.iter().filter(|rival| *rival != field) {
                let Some(Value::Array(inherited)) = out.get_mut(*rival) else { continue };
                // Entries that the child itself has in the rival list stay.
                let own = child.get(*rival).and_then(Value::as_array).cloned().unwrap_or_default();
                let own: Vec<Value> = own.iter().map(|item| key(rival, item)).collect();
                inherited.retain(|item| {
                    let key = key(rival, item);
                    !names.contains(&key) || own.contains(&key)
                });
            }
        }
    }
    out
}

fn lists(field: &str, parent: &[Value], child: &[Value]) -> Vec<Value> {
    let mut out = parent.to_vec();
    if matches!(rule(field), Rule::Joined) {
        out.extend_from_slice(child);
        return out;
    }
    for item in child {
        let name = key(field, item);
        let existing = match name {
            Value::Null => None,
            _ => out.iter_mut().find(|existing| key(field, existing) == name),
        };
        match existing {
            Some(existing) => *existing = merge(existing, item),
            None => out.push(item.clone()),
        }
    }
    if field == "httpHeaders" {
        // A header without a value removes the parent's header.
        let removed = |item: &&Value| item.get("value").is_none_or(Value::is_null);
        let removed: Vec<Value> = child.iter().filter(removed).map(|i| key(field, i)).collect();
        out.retain(|item| parent.is_empty() || !removed.contains(&key(field, item)));
    }
    out
}

/// Returns the identity of an item in the list of this field; null if it has none.
fn key(field: &str, item: &Value) -> Value {
    match rule(field) {
        // A user's groups are strings, those of `passwd` are objects.
        Rule::Keyed(_) if !item.is_object() => item.clone(),
        Rule::Keyed(fields) => {
            let keys = fields.iter().filter_map(|name| item.get(*name));
            let mut keys = keys.filter(|v| !v.is_null() && **v != 0 && **v != "");
            keys.next().cloned().unwrap_or_default()
        }
        Rule::Once => item.clone(),
        Rule::Joined => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn merges_by_name_and_joins_arguments() {
        for (parent, child, want) in [
            (json!({"a": 1, "b": 2}), json!({"b": 3, "a": null}), json!({"a": 1, "b": 3})),
            (
                json!({"files": [{"path": "/a", "mode": 1, "contents": {"source": "x"}}, {"path": "/b"}]}),
                json!({"files": [{"path": "/c"}, {"path": "/a", "mode": 2}]}),
                json!({"files": [{"path": "/a", "mode": 2, "contents": {"source": "x"}}, {"path": "/b"}, {"path": "/c"}]}),
            ),
            (
                json!({"files": [{"path": "/a"}], "links": [{"path": "/l"}]}),
                json!({"links": [{"path": "/a"}], "directories": [{"path": "/l"}]}),
                json!({"files": [], "links": [{"path": "/a"}], "directories": [{"path": "/l"}]}),
            ),
            (
                json!({"partitions": [{"number": 1, "label": "x"}, {"label": "y"}]}),
                json!({"partitions": [{"number": 1, "label": "z"}, {"label": "y", "sizeMiB": 5}, {"number": 0, "label": "w"}]}),
                json!({"partitions": [{"number": 1, "label": "z"}, {"label": "y", "sizeMiB": 5}, {"number": 0, "label": "w"}]}),
            ),
            (
                json!({"options": ["-a"], "sshAuthorizedKeys": ["k"], "append": [{"source": "1"}]}),
                json!({"options": ["-a"], "sshAuthorizedKeys": ["k", "l"], "append": [{"source": "1"}]}),
                json!({"options": ["-a", "-a"], "sshAuthorizedKeys": ["k", "l"], "append": [{"source": "1"}, {"source": "1"}]}),
            ),
            (
                json!({"httpHeaders": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}),
                json!({"httpHeaders": [{"name": "A", "value": "2"}, {"name": "B"}]}),
                json!({"httpHeaders": [{"name": "A", "value": "2"}]}),
            ),
            (
                json!({"shouldExist": ["a", "b"]}),
                json!({"shouldNotExist": ["a"]}),
                json!({"shouldExist": ["b"], "shouldNotExist": ["a"]}),
            ),
            (
                json!({"groups": ["a"]}),
                json!({"groups": ["a", "b"]}),
                json!({"groups": ["a", "b"]}),
            ),
        ] {
            assert_eq!(merge(&parent, &child), want, "{parent} with {child}");
        }
    }

    fn config() -> impl Strategy<Value = Value> {
        let file = ("[ab]", proptest::option::of(0..3u32)).prop_map(|(name, mode)| {
            let mut file = json!({ "path": format!("/{name}") });
            if let Some(mode) = mode {
                file["mode"] = mode.into();
            }
            file
        });
        let unique = |list: Vec<Value>| lists("files", &[], &list);
        let list = || proptest::collection::vec(file.clone(), 0..3).prop_map(unique);
        (list(), list()).prop_map(|(files, units)| {
            json!({ "storage": { "files": files }, "systemd": { "units": units } })
        })
    }

    proptest! {
        #[test]
        fn merge_is_idempotent(parent in config(), child in config()) {
            let once = merge(&parent, &child);
            prop_assert_eq!(merge(&once, &child)["storage"].clone(), once["storage"].clone());
        }

        #[test]
        fn merge_is_associative(a in config(), b in config(), c in config()) {
            let left = merge(&merge(&a, &b), &c);
            let right = merge(&a, &merge(&b, &c));
            prop_assert_eq!(left["storage"].clone(), right["storage"].clone());
        }
    }
}

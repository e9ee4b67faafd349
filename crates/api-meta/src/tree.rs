//! Writing into trees whose shape is somebody else's.

use serde_json::{Map, Value};

/// Writes by paths. `Value`'s own way, `tree["a"]["b"] = x`, panics where a string or a list is in the way, and what is
/// in the way was often sent by a stranger: nothing outside of tests uses it, which `cargo xtask tidy` checks.
pub trait Tree {
    /// Writes a value at a path of members, and makes the maps on the way where nothing is. Where something else is
    /// in the way nothing is changed.
    fn put(&mut self, path: &[&str], value: Value);

    /// What is at a path of members, to be changed.
    fn at_mut(&mut self, path: &[&str]) -> Option<&mut Value>;

    /// Takes what is at a path away and leaves `null` there, which is also what it gives where there is nothing.
    fn take_at(&mut self, path: &[&str]) -> Value {
        self.at_mut(path).map(Value::take).unwrap_or_default()
    }
}

impl Tree for Value {
    fn put(&mut self, path: &[&str], value: Value) {
        let Some((last, way)) = path.split_last() else { return };
        // Looked at before anything is made.
        if !is_free(self, way) {
            return;
        }
        let mut at = Some(self);
        for name in way {
            at = at.and_then(map).map(|members| members.entry(*name).or_insert(Value::Null));
        }
        if let Some(members) = at.and_then(map) {
            members.insert((*last).to_owned(), value);
        }
    }

    fn at_mut(&mut self, path: &[&str]) -> Option<&mut Value> {
        path.iter().try_fold(self, |at, name| at.as_object_mut()?.get_mut(*name))
    }
}

/// Whether a path leads through maps, as far as there is anything.
fn is_free(tree: &Value, way: &[&str]) -> bool {
    let mut at = tree;
    for name in way {
        match at {
            Value::Null => return true,
            Value::Object(members) => match members.get(*name) {
                Some(next) => at = next,
                None => return true,
            },
            _ => return false,
        }
    }
    at.is_object() || at.is_null()
}

fn map(value: &mut Value) -> Option<&mut Map<String, Value>> {
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_in_the_way_stays() {
        for (before, path, after) in [
            (json!({}), &["a"][..], Some(json!({"a": 1}))),
            (json!(null), &["a", "b"], Some(json!({"a": {"b": 1}}))),
            (json!({"a": null, "c": 2}), &["a", "b"], Some(json!({"a": {"b": 1}, "c": 2}))),
            (json!({"a": {"b": [2]}}), &["a", "b"], Some(json!({"a": {"b": 1}}))),
            (json!({"a": "text"}), &["a", "b"], None),
            (json!({"a": ["text"]}), &["a", "0"], None),
            (json!({"x": {}, "a": {"b": 3}}), &["a", "b", "c", "d"], None),
            (json!(7), &["a"], None),
            (json!({}), &[], None),
        ] {
            let mut tree = before.clone();
            tree.put(path, json!(1));
            assert_eq!(tree, after.unwrap_or(before), "{path:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_made() {
        let mut tree = json!({"a": {"b": [1]}, "s": "x"});
        assert_eq!(tree.at_mut(&["a", "b"]), Some(&mut json!([1])));
        assert_eq!(tree.at_mut(&["c"]), None);
        assert_eq!(tree.take_at(&["s", "t"]), Value::Null);
        assert_eq!(tree.take_at(&["a", "b"]), json!([1]));
        assert_eq!(tree, json!({"a": {"b": null}, "s": "x"}));
    }
}

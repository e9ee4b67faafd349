//! Reads and writes untyped JSON trees.

use serde_json::{Map, Value};

use crate::steps;

/// A path through a tree, member by member: `"spec.nodeName"`, or `&["metadata", "labels", key]` if a name may contain
/// dots. The empty path is the tree itself.
pub trait TreePath: Copy {
    /// Returns the names of the members from the root.
    fn names(&self) -> impl Iterator<Item = &str>;
}

/// Iterates over the names of a dotted path. The names are so short that `str::split`, which searches word by word,
/// takes twice as long. A write reads some hundred paths.
struct Names<'w>(&'w str);

impl<'w> Iterator for Names<'w> {
    type Item = &'w str;

    fn next(&mut self) -> Option<&'w str> {
        while !self.0.is_empty() {
            let end = self.0.bytes().position(|b| b == b'.').unwrap_or(self.0.len());
            let (name, rest) = self.0.split_at(end);
            self.0 = rest.get(1..).unwrap_or_default();
            if !name.is_empty() {
                return Some(name);
            }
        }
        None
    }
}

impl TreePath for &str {
    fn names(&self) -> impl Iterator<Item = &str> {
        Names(self)
    }
}

impl<W: TreePath> TreePath for &W {
    fn names(&self) -> impl Iterator<Item = &str> {
        (**self).names()
    }
}

impl TreePath for &String {
    fn names(&self) -> impl Iterator<Item = &str> {
        Names(self)
    }
}

impl TreePath for &[&str] {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().copied()
    }
}

impl<const N: usize> TreePath for &[&str; N] {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().copied()
    }
}

/// Reads and writes a tree by paths.
///
/// A value that is absent, `null` or of another type reads as Go's zero value, or as `None` from an `opt_` method. A
/// tree that was decoded by its schema has no wrong types. If a wrong type must be an error, use serde, with
/// [`null_default`](crate::null_default) for fields that Go's clients write as `null`.
///
/// `Value`'s index assignment, `tree["a"]["b"] = x`, panics if a string or a list is in the way, which untrusted input
/// can cause. Only tests use it; `cargo xtask tidy` checks this.
pub trait Tree {
    /// Returns the value at a path, or `null` if there is none.
    fn at(&self, way: impl TreePath) -> &Value;

    /// Returns the value at a path, unless it is absent.
    fn opt_at(&self, way: impl TreePath) -> Option<&Value> {
        Some(self.at(way)).filter(|value| !value.is_null())
    }

    /// Returns the value at a path for modification.
    fn at_mut(&mut self, way: impl TreePath) -> Option<&mut Value>;

    /// Returns the map at a path and creates missing maps. Returns `None`, and changes nothing, if a value of another
    /// type is in the way.
    fn map_mut(&mut self, way: impl TreePath) -> Option<&mut Map<String, Value>>;

    /// Returns the string at a path, or an empty string.
    fn text(&self, way: impl TreePath) -> &str {
        self.at(way).as_str().unwrap_or_default()
    }

    /// Returns the string at a path, unless it is absent or empty.
    fn opt_text(&self, way: impl TreePath) -> Option<&str> {
        self.at(way).as_str().filter(|text| !text.is_empty())
    }

    /// Returns the integer at a path, or 0.
    fn int(&self, way: impl TreePath) -> i64 {
        self.opt_int(way).unwrap_or_default()
    }

    /// Returns the integer at a path.
    fn opt_int(&self, way: impl TreePath) -> Option<i64> {
        self.at(way).as_i64()
    }

    /// Returns the boolean at a path, or `false`.
    fn flag(&self, way: impl TreePath) -> bool {
        self.opt_flag(way).unwrap_or_default()
    }

    /// Returns the boolean at a path.
    fn opt_flag(&self, way: impl TreePath) -> Option<bool> {
        self.at(way).as_bool()
    }

    /// Returns the items of the list at a path.
    fn items(&self, way: impl TreePath) -> &[Value] {
        self.at(way).as_array().map_or(&[], Vec::as_slice)
    }

    /// Returns the strings of the list at a path.
    fn texts(&self, way: impl TreePath) -> impl Iterator<Item = &str> {
        self.items(way).iter().filter_map(Value::as_str)
    }

    /// Returns the members of the map at a path.
    fn pairs(&self, way: impl TreePath) -> impl Iterator<Item = (&String, &Value)> {
        self.at(way).as_object().into_iter().flatten()
    }

    /// Returns `true` if there is a value at the path, even an empty one.
    fn has(&self, way: impl TreePath) -> bool {
        !self.at(way).is_null()
    }

    /// Returns `true` if the value at the path is absent or empty.
    fn blank(&self, way: impl TreePath) -> bool {
        match self.at(way) {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        }
    }

    /// Returns the object's name.
    fn name(&self) -> &str {
        self.text(&["metadata", "name"])
    }

    /// Returns the object's namespace; empty if it is cluster-scoped.
    fn namespace(&self) -> &str {
        self.text(&["metadata", "namespace"])
    }

    /// Returns the object's UID.
    fn uid(&self) -> &str {
        self.text(&["metadata", "uid"])
    }

    /// Returns an annotation of the object.
    fn annotation(&self, key: &str) -> Option<&str> {
        self.at(&["metadata", "annotations", key]).as_str()
    }

    /// Returns the items of the list at a path for modification.
    fn items_mut(&mut self, way: impl TreePath) -> impl Iterator<Item = &mut Value> {
        self.at_mut(way).and_then(Value::as_array_mut).into_iter().flatten()
    }

    /// Appends an item to the list at a path and creates a missing list. Changes nothing if a value of another type is
    /// in the way.
    fn push(&mut self, way: impl TreePath, item: impl Into<Value>) {
        if !self.has(way) {
            self.put(way, Vec::<Value>::new());
        }
        if let Some(list) = self.at_mut(way).and_then(Value::as_array_mut) {
            list.push(item.into());
        }
    }

    /// Writes a value and creates missing maps on the path. Changes nothing if a value of another type is in the way.
    fn put(&mut self, way: impl TreePath, value: impl Into<Value>);

    /// Writes a value like [`put`](Self::put), but removes the member if the value is `null`.
    fn set(&mut self, way: impl TreePath, value: impl Into<Value>) {
        match value.into() {
            Value::Null => drop(self.remove(way)),
            value => self.put(way, value),
        }
    }

    /// Writes a value if there is none.
    fn set_default(&mut self, way: impl TreePath, value: impl Into<Value>) {
        if !self.has(way) {
            self.set(way, value);
        }
    }

    /// Writes a value if there is none, or an empty string.
    fn put_default(&mut self, way: impl TreePath, value: impl Into<Value>) {
        if !self.has(way) || self.at(way) == "" {
            self.put(way, value);
        }
    }

    /// Writes a value if it is present.
    fn put_some(&mut self, way: impl TreePath, value: Option<&Value>) {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            self.put(way, value.clone());
        }
    }

    /// Copies the value at a path from another tree, or removes it if it is absent there.
    fn keep(&mut self, old: &Value, way: impl TreePath) {
        if self.at(way) != old.at(way) {
            self.set(way, old.at(way).clone());
        }
    }

    /// Removes a member from its map and returns it.
    fn remove(&mut self, way: impl TreePath) -> Option<Value>;

    /// Takes the value at a path and leaves `null`. Returns `null` if there is none.
    fn take_at(&mut self, way: impl TreePath) -> Value {
        self.at_mut(way).map(Value::take).unwrap_or_default()
    }
}

impl Tree for Value {
    fn at(&self, way: impl TreePath) -> &Value {
        steps::spend(1);
        way.names().fold(self, |at, name| at.get(name).unwrap_or(&Value::Null))
    }

    fn at_mut(&mut self, way: impl TreePath) -> Option<&mut Value> {
        way.names().try_fold(self, |at, name| at.as_object_mut()?.get_mut(name))
    }

    fn map_mut(&mut self, way: impl TreePath) -> Option<&mut Map<String, Value>> {
        is_free(self, way.names()).then_some(())?;
        way.names().try_fold(map(self)?, |members, name| member(members, name).and_then(map))
    }

    fn put(&mut self, way: impl TreePath, value: impl Into<Value>) {
        let mut names = way.names().peekable();
        let Some(mut name) = names.next() else { return };
        // Check before anything is created.
        if !is_free(self, before_last(&way)) {
            return;
        }
        let mut members = map(self);
        for next in names {
            members = members.and_then(|members| member(members, name)).and_then(map);
            name = next;
        }
        if let Some(members) = members {
            members.insert(name.to_owned(), value.into());
        }
    }

    fn remove(&mut self, way: impl TreePath) -> Option<Value> {
        let last = way.names().last()?;
        let around = before_last(&way).try_fold(self, |at, name| at.get_mut(name))?;
        around.as_object_mut()?.remove(last)
    }
}

/// Reports whether a value is the zero value of its type, which Go cannot distinguish from an absent one.
pub fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

/// Returns all names but the last.
fn before_last(way: &impl TreePath) -> impl Iterator<Item = &str> {
    way.names().take(way.names().count().saturating_sub(1))
}

/// Returns `true` if only maps are on the path, as far as it exists.
fn is_free<'n>(tree: &Value, mut names: impl Iterator<Item = &'n str>) -> bool {
    let mut at = tree;
    loop {
        match (at, names.next()) {
            (Value::Null, _) | (Value::Object(_), None) => return true,
            (Value::Object(members), Some(name)) => match members.get(name) {
                Some(next) => at = next,
                None => return true,
            },
            _ => return false,
        }
    }
}

/// Returns a member, created as `null` if absent.
fn member<'v>(members: &'v mut Map<String, Value>, name: &str) -> Option<&'v mut Value> {
    // Check first, because the entry API needs a copy of the name.
    if !members.contains_key(name) {
        members.insert(name.to_owned(), Value::Null);
    }
    members.get_mut(name)
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
    fn keeps_value_of_other_type_on_path() {
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
    fn creates_nothing_when_reading_or_removing() {
        let mut tree = json!({"a": {"b": [1]}, "s": "x"});
        assert_eq!(tree.at_mut(&["a", "b"]), Some(&mut json!([1])));
        assert_eq!(tree.at_mut(&["c"]), None);
        assert_eq!(tree.take_at(&["s", "t"]), Value::Null);
        assert_eq!(tree.take_at(&["a", "b"]), json!([1]));
        assert_eq!(tree, json!({"a": {"b": null}, "s": "x"}));
    }

    #[test]
    fn accepts_dotted_paths_and_lists_of_names() {
        let tree =
            json!({"a": {"b.c": "x", "d": [1, "y", null]}, "n": null, "s": "z", "i": 7, "f": true});
        assert_eq!(tree.text(&["a", "b.c"]), "x");
        assert_eq!((tree.text("a.b.c"), tree.text("s.a"), tree.text("i")), ("", "", ""));
        assert_eq!(
            (tree.opt_text("s"), tree.opt_text("n"), json!("").opt_text("")),
            (Some("z"), None, None)
        );
        assert_eq!((tree.int("i"), tree.opt_int("s"), tree.opt_int("n")), (7, None, None));
        assert_eq!((tree.flag("f"), tree.opt_flag("i"), tree.flag("nothing")), (true, None, false));
        assert_eq!(tree.texts("a.d").collect::<Vec<_>>(), ["y"]);
        assert_eq!((tree.items("a.d").len(), tree.items("s").len()), (3, 0));
        assert_eq!(
            tree.pairs("a").map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["b.c", "d"]
        );
        assert_eq!((tree.has("a.d"), tree.has("n"), tree.has("x.y")), (true, false, false));
        assert_eq!((tree.blank("n"), tree.blank("s"), tree.blank("i")), (true, false, false));
        assert_eq!(
            (tree.at(""), tree.at("a.").get("d")),
            (&tree, tree.get("a").and_then(|a| a.get("d")))
        );
    }

    #[test]
    fn treats_null_as_absent_in_keep() {
        let old = json!({"spec": {"a": 1, "b": null}});
        let mut new = json!({"spec": {"a": 2, "b": 3, "c": 4}});
        for way in ["spec.a", "spec.b", "spec.c", "spec.d"] {
            new.keep(&old, way);
        }
        assert_eq!(new, json!({"spec": {"a": 1}}));
        new.set_default("spec.a", 5);
        new.set_default("spec.e", 6);
        new.set("spec.f.g", Value::Null);
        assert_eq!(new, json!({"spec": {"a": 1, "e": 6}}));
        assert_eq!(new.remove("spec.a"), Some(json!(1)));
        assert_eq!(new.remove("spec.a.b"), None);
    }

    #[test]
    fn puts_only_missing_or_present_values() {
        let mut tree = json!({"a": 1, "n": null, "e": ""});
        for way in ["a", "n", "e", "x.y"] {
            tree.put_default(way, 2);
        }
        assert_eq!(tree, json!({"a": 1, "n": 2, "e": 2, "x": {"y": 2}}));
        tree.put_some("a", None);
        tree.put_some("a", Some(&Value::Null));
        tree.put_some("e", Some(&json!(3)));
        assert_eq!((tree.opt_at("a"), tree.opt_at("z")), (Some(&json!(1)), None));
        assert_eq!(tree.opt_at("e"), Some(&json!(3)));
    }

    #[test]
    fn zero_values_are_those_of_go() {
        for zero in
            [json!(null), json!(false), json!(0), json!(0.0), json!(""), json!([]), json!({})]
        {
            assert!(is_zero(&zero), "{zero}");
        }
        for other in [
            json!(true),
            json!(-1),
            json!(0.5),
            json!(u64::MAX),
            json!("0"),
            json!([0]),
            json!({"a": 0}),
        ] {
            assert!(!is_zero(&other), "{other}");
        }
    }

    #[test]
    fn creates_missing_maps_and_lists() {
        let mut tree = json!({"n": null, "s": "x"});
        assert!(tree.map_mut("s.a").is_none());
        tree.push("s", 1);
        assert_eq!(tree, json!({"n": null, "s": "x"}));
        tree.push("n", 1);
        tree.push("a.l", 2);
        tree.map_mut("a.m").unwrap().insert("k".into(), json!(3));
        tree.items_mut("n").for_each(|item| *item = json!(4));
        assert_eq!(tree, json!({"n": [4], "s": "x", "a": {"l": [2], "m": {"k": 3}}}));
    }
}

//! Reading and writing object trees by dotted paths. What is absent or of another type reads as empty.

use serde_json::{Map, Value};

pub(crate) trait Look {
    fn at(&self, path: &str) -> &Value;

    fn text(&self, path: &str) -> &str {
        self.at(path).as_str().unwrap_or_default()
    }

    fn int(&self, path: &str) -> i64 {
        self.opt_int(path).unwrap_or_default()
    }

    fn opt_int(&self, path: &str) -> Option<i64> {
        self.at(path).as_i64()
    }

    fn flag(&self, path: &str) -> bool {
        self.at(path).as_bool().unwrap_or_default()
    }

    fn items(&self, path: &str) -> &[Value] {
        self.at(path).as_array().map_or(&[], Vec::as_slice)
    }

    fn pairs(&self, path: &str) -> impl Iterator<Item = (&String, &Value)> {
        self.at(path).as_object().into_iter().flatten()
    }

    fn has(&self, path: &str) -> bool {
        !self.at(path).is_null()
    }

    /// Whether there is nothing at a path: no value, or an empty one.
    fn blank(&self, path: &str) -> bool {
        self.at(path).blank_itself()
    }

    /// Whether this is no value, or an empty one.
    fn blank_itself(&self) -> bool;
}

impl Look for Value {
    fn at(&self, path: &str) -> &Value {
        path.split('.').fold(self, |here, name| here.get(name).unwrap_or(&Value::Null))
    }

    fn blank_itself(&self) -> bool {
        match self {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        }
    }
}

/// The value at a path, if it is there.
pub(crate) fn slot<'a>(object: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(object, |here, name| here.get_mut(name))
}

/// The list at a path, to change its items.
pub(crate) fn items_mut<'a>(
    object: &'a mut Value,
    path: &str,
) -> impl Iterator<Item = &'a mut Value> {
    slot(object, path).and_then(Value::as_array_mut).into_iter().flatten()
}

/// The map at a path, made where there is none. `None` if a scalar is in the way.
pub(crate) fn map_mut<'a>(object: &'a mut Value, path: &str) -> Option<&'a mut Map<String, Value>> {
    let mut here = object;
    for name in path.split('.').filter(|name| !name.is_empty()) {
        if here.is_null() {
            *here = Value::Object(Map::new());
        }
        let members = here.as_object_mut()?;
        // Asked first, because an entry takes a copy of the name.
        if !members.contains_key(name) {
            members.insert(name.to_owned(), Value::Null);
        }
        here = members.get_mut(name)?;
    }
    if here.is_null() {
        *here = Value::Object(Map::new());
    }
    here.as_object_mut()
}

/// Sets the value at a path, making the maps on the way; null removes.
pub(crate) fn put(object: &mut Value, path: &str, value: impl Into<Value>) {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    let value = value.into();
    if value.is_null() {
        let parent = if parent.is_empty() { Some(object) } else { slot(object, parent) };
        parent.and_then(Value::as_object_mut).map(|map| map.remove(name));
    } else if let Some(map) = map_mut(object, parent) {
        map.insert(name.to_owned(), value);
    }
}

/// Sets the value at a path unless there is one.
pub(crate) fn default(object: &mut Value, path: &str, value: impl Into<Value>) {
    if !object.has(path) {
        put(object, path, value);
    }
}

/// Copies what one object has at a path, or has not, to another.
pub(crate) fn keep(new: &mut Value, old: &Value, path: &str) {
    if new.at(path) != old.at(path) {
        put(new, path, old.at(path).clone());
    }
}

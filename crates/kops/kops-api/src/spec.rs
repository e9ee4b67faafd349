//! Access to specs by dotted paths of fields.

use api_meta::Tree;
use serde_json::Value;

/// The fields of a spec by path, such as `networking.topology.dns`. A field that is absent or of another type reads as
/// Go's zero value.
pub trait Spec {
    fn at(&self, path: &str) -> Option<&Value>;
    fn at_path_mut(&mut self, path: &str) -> Option<&mut Value>;

    /// Reports whether the field exists, even if it is empty.
    fn has(&self, path: &str) -> bool {
        self.at(path).is_some_and(|value| !value.is_null())
    }

    fn text(&self, path: &str) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    fn flag(&self, path: &str) -> Option<bool> {
        self.at(path).and_then(Value::as_bool)
    }

    /// Reports whether the field is `true`.
    fn is(&self, path: &str) -> bool {
        self.flag(path) == Some(true)
    }

    fn int(&self, path: &str) -> Option<i64> {
        self.at(path).and_then(Value::as_i64)
    }

    fn list(&self, path: &str) -> &[Value] {
        self.at(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the strings of a list.
    fn texts(&self, path: &str) -> Vec<&str> {
        self.list(path).iter().filter_map(Value::as_str).collect()
    }

    /// Sets a field, creating its parents.
    fn set(&mut self, path: &str, value: impl Into<Value>);

    /// Sets a field unless the value is absent or null.
    fn set_if(&mut self, path: &str, value: Option<&Value>) {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            self.set(path, value.clone());
        }
    }

    /// Sets a field that is absent, null or an empty string.
    fn default(&mut self, path: &str, value: impl Into<Value>) {
        if self.at(path).is_none_or(|old| old.is_null() || old == "") {
            self.set(path, value);
        }
    }

    fn remove(&mut self, path: &str);
}

impl Spec for Value {
    fn at(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(self, |at, name| at.get(name))
    }

    fn at_path_mut(&mut self, path: &str) -> Option<&mut Value> {
        Tree::at_mut(self, path)
    }

    fn set(&mut self, path: &str, value: impl Into<Value>) {
        Tree::put(self, path, value);
    }

    fn remove(&mut self, path: &str) {
        Tree::remove(self, path);
    }
}

//! Reading and writing specs by dotted paths of fields.

use api_meta::Tree;
use serde_json::Value;

/// A spec's fields by path, as `networking.topology.dns`. A field that is absent, or of another kind, reads as Go's zero
/// value.
pub trait Spec {
    fn at(&self, path: &str) -> Option<&Value>;
    fn at_path_mut(&mut self, path: &str) -> Option<&mut Value>;

    /// Whether the field is there, even if it is empty.
    fn has(&self, path: &str) -> bool {
        self.at(path).is_some_and(|value| !value.is_null())
    }

    fn text(&self, path: &str) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    fn flag(&self, path: &str) -> Option<bool> {
        self.at(path).and_then(Value::as_bool)
    }

    /// Whether the field is there and true.
    fn is(&self, path: &str) -> bool {
        self.flag(path) == Some(true)
    }

    fn int(&self, path: &str) -> Option<i64> {
        self.at(path).and_then(Value::as_i64)
    }

    fn list(&self, path: &str) -> &[Value] {
        self.at(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    /// A list's strings.
    fn texts(&self, path: &str) -> Vec<&str> {
        self.list(path).iter().filter_map(Value::as_str).collect()
    }

    /// Writes a field, and makes what is around it.
    fn set(&mut self, path: &str, value: impl Into<Value>);

    /// Writes a field if there is something to write.
    fn set_if(&mut self, path: &str, value: Option<&Value>) {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            self.set(path, value.clone());
        }
    }

    /// Writes a field that is not there, or that is Go's zero value of a string.
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

//! Objects seen through the schema as server-side apply sees them: which parts are owned field by field, which
//! element by element, and which only as a whole.

pub(crate) mod diff;
pub(crate) mod extract;
pub(crate) mod merge;
pub(crate) mod owned;
pub(crate) mod remove;

use std::sync::Arc;

use api_schema::{Field, ListType, NodeId, Schema, Shape, Struct};
use serde_json::Value;

/// How a value is owned.
#[derive(Clone, Copy)]
pub(crate) enum Form<'s> {
    /// As a whole: scalars, atomic maps and lists.
    Leaf,
    Struct(&'s Struct),
    /// Field by field, all of one type; without a type, the values tell their own.
    Map(Option<NodeId>),
    /// Element by element, by value.
    Set,
    /// Element by element, by keys.
    MapList {
        item: NodeId,
        keys: &'s [Arc<str>],
    },
}

impl<'s> Form<'s> {
    /// The form of a node's values. `sample` is such a value: where the schema does not say (custom kinds that
    /// preserve unknown fields), maps are owned field by field and lists as a whole.
    pub(crate) fn of(schema: &'s Schema, id: Option<NodeId>, sample: Option<&Value>) -> Self {
        let untyped = || match sample {
            Some(Value::Object(_)) => Form::Map(None),
            _ => Form::Leaf,
        };
        let Some(id) = id else { return untyped() };
        let node = schema.node(id);
        match &node.shape {
            Shape::Struct(s) if !s.atomic => Form::Struct(s),
            Shape::Map { value, atomic: false } => Form::Map(Some(*value)),
            Shape::List { list: ListType::Set, .. } => Form::Set,
            Shape::List { item, list: ListType::Map(keys) } => Form::MapList { item: *item, keys },
            // The built-in types of this shape are named, and atomic.
            Shape::Any if node.name.is_none() => untyped(),
            _ => Form::Leaf,
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&'s Field> {
        match self {
            Form::Struct(s) => s.field(name),
            _ => None,
        }
    }

    /// The node behind a field.
    pub(crate) fn child(&self, name: &str) -> Option<NodeId> {
        match self {
            Form::Struct(s) => s.field(name).map(|f| f.node),
            Form::Map(value) => *value,
            _ => None,
        }
    }

    /// The node of a list's elements.
    pub(crate) fn item(&self) -> Option<NodeId> {
        match self {
            Form::MapList { item, .. } => Some(*item),
            _ => None,
        }
    }

    /// The path element of a list's element; an error names the key it lacks.
    pub(crate) fn element(&self, schema: &Schema, value: &Value) -> Result<String, Arc<str>> {
        let Form::MapList { item, keys } = self else { return Ok(format!("v:{value}")) };
        let mut keys: Vec<&Arc<str>> = keys.iter().collect();
        keys.sort_unstable();
        let mut text = String::with_capacity(64);
        text.push_str("k:{");
        for (i, key) in keys.into_iter().enumerate() {
            let value = match value.get(&**key) {
                Some(value) if !value.is_null() => value,
                _ => key_default(schema, *item, key).ok_or_else(|| key.clone())?,
            };
            text.push_str(if i == 0 { "\"" } else { ",\"" });
            text.push_str(key);
            text.push_str("\":");
            text.push_str(&value.to_string());
        }
        text.push('}');
        Ok(text)
    }
}

/// A key may be left out of an element if it has a default (`protocol: TCP` of a port).
fn key_default<'s>(schema: &'s Schema, item: NodeId, key: &str) -> Option<&'s Value> {
    let Shape::Struct(s) = &schema.node(item).shape else { return None };
    let field = s.field(key)?;
    field.default.as_ref().or(schema.node(field.node).default.as_ref())
}

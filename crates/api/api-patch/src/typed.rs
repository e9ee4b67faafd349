//! The ownership of values by their schema types: per field, per item, or as a whole.

pub(crate) mod diff;
pub(crate) mod extract;
pub(crate) mod merge;
pub(crate) mod owned;
pub(crate) mod remove;

use std::sync::{Arc, LazyLock};

use api_schema::{Field, ListType, NodeId, Presence, Schema, Shape, Struct};
use serde_json::Value;

/// The granularity of ownership of a value.
#[derive(Clone, Copy)]
pub(crate) enum Form<'s> {
    /// Owned as a whole: scalars, atomic maps and lists.
    Leaf,
    Struct(&'s Struct),
    /// Owned per field with values of one type. Without a type, the values decide.
    Map(Option<NodeId>),
    /// Owned per item, by value.
    Set,
    /// Owned per item, by keys.
    MapList {
        item: NodeId,
        keys: &'s [Arc<str>],
    },
}

impl<'s> Form<'s> {
    /// Returns the form of a node's values. `sample` is such a value. If the schema has no type (custom resources that
    /// preserve unknown fields), maps are owned per field and lists as a whole.
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
            // Built-in types with this shape are named and atomic.
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

    /// Returns the node of a field.
    pub(crate) fn child(&self, name: &str) -> Option<NodeId> {
        match self {
            Form::Struct(s) => s.field(name).map(|f| f.node),
            Form::Map(value) => *value,
            _ => None,
        }
    }

    /// Returns the node of a list's items.
    pub(crate) fn item(&self) -> Option<NodeId> {
        match self {
            Form::MapList { item, .. } => Some(*item),
            _ => None,
        }
    }

    /// Returns the path element of a list item, which contains its keys, including defaults. An item may lack some of
    /// the keys.
    ///
    /// # Errors
    ///
    /// Returns all keys of the list if the item has none of them.
    pub(crate) fn element(&self, schema: &Schema, value: &Value) -> Result<String, &'s [Arc<str>]> {
        let Form::MapList { item, keys } = *self else { return Ok(format!("v:{value}")) };
        let mut sorted: Vec<&Arc<str>> = keys.iter().collect();
        sorted.sort_unstable();
        let mut text = String::with_capacity(64);
        text.push_str("k:{");
        let empty = text.len();
        for key in sorted {
            let present = value.get(&**key).filter(|value| !value.is_null());
            let Some(value) = present.or_else(|| key_default(schema, item, key)) else { continue };
            text.push_str(if text.len() == empty { "\"" } else { ",\"" });
            text.push_str(key);
            text.push_str("\":");
            text.push_str(&value.to_string());
        }
        if text.len() == empty {
            return Err(keys);
        }
        text.push('}');
        Ok(text)
    }
}

/// Returns the default of a key that an item may omit, such as `protocol: TCP` of a port.
fn key_default<'s>(schema: &'s Schema, item: NodeId, key: &str) -> Option<&'s Value> {
    let Shape::Struct(s) = &schema.node(item).shape else { return None };
    let field = s.field(key)?;
    let node = schema.node(field.node);
    field.default.as_ref().or(node.default.as_ref()).or_else(|| {
        // Go writes the zero value of this key.
        let zero = match node.shape {
            Shape::String => &*EMPTY,
            Shape::Integer { .. } => &*ZERO,
            _ => return None,
        };
        (field.presence == Presence::Always).then_some(zero)
    })
}

static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::from(""));
static ZERO: LazyLock<Value> = LazyLock::new(|| Value::from(0));

//! Objects seen through the schema as server-side apply sees them: which parts are owned field by field, which
//! element by element, and which only as a whole.

pub(crate) mod diff;
pub(crate) mod extract;
pub(crate) mod merge;
pub(crate) mod owned;
pub(crate) mod remove;

use std::sync::{Arc, LazyLock};

use api_schema::{Field, ListType, NodeId, Presence, Schema, Shape, Struct};
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

    /// The path element of a list's element: the keys that it has, or that have defaults. An error names all keys of
    /// the list, where there are none of them; an element without one of several is just another element.
    pub(crate) fn element(&self, schema: &Schema, value: &Value) -> Result<String, &'s [Arc<str>]> {
        let Form::MapList { item, keys } = *self else { return Ok(format!("v:{value}")) };
        let mut sorted: Vec<&Arc<str>> = keys.iter().collect();
        sorted.sort_unstable();
        let mut text = String::with_capacity(64);
        text.push_str("k:{");
        let empty = text.len();
        for key in sorted {
            let given = value.get(&**key).filter(|value| !value.is_null());
            let Some(value) = given.or_else(|| key_default(schema, item, key)) else { continue };
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

/// A key may be left out of an element if it has a default (`protocol: TCP` of a port).
fn key_default<'s>(schema: &'s Schema, item: NodeId, key: &str) -> Option<&'s Value> {
    let Shape::Struct(s) = &schema.node(item).shape else { return None };
    let field = s.field(key)?;
    let node = schema.node(field.node);
    field.default.as_ref().or(node.default.as_ref()).or_else(|| {
        // What Go always writes is there even where nobody gave it.
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

//! Defaults and zero values: what is written out though nobody gave it.

use api_meta::{Budget, Exceeded};
use serde_json::{Map, Value};

use crate::{Field, NodeId, Schema, Shape, Struct};

/// What to make of members that are absent or zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Nothing: the tree says what the text said. For patches and applied configurations.
    Given,
    /// What Go's encoder would write: zero values left out or filled in. For objects read back.
    Zeroes,
    /// Also the schema's defaults. For objects being written.
    Defaults,
}

/// Puts defaults where they are missing. A short list of many empty items, each with a large default, would be
/// an object without measure: it is left as far as it came.
pub fn apply_defaults(schema: &Schema, node: NodeId, value: &mut Value) -> Result<(), Exceeded> {
    put_defaults(schema, node, value, &mut Budget::object())
}

fn put_defaults(
    schema: &Schema,
    node: NodeId,
    value: &mut Value,
    budget: &mut Budget,
) -> Result<(), Exceeded> {
    if !schema.defaulting[node.0 as usize] {
        return Ok(());
    }
    match (&schema.node(node).shape, value) {
        (Shape::Struct(body), Value::Object(members)) => budget.nested(|budget| {
            for (name, member) in members.iter_mut() {
                if let Some(field) = body.field(name) {
                    put_defaults(schema, field.node, member, budget)?;
                }
            }
            default_members(schema, body, members, budget)
        }),
        (Shape::Map { value: node, .. }, Value::Object(members)) => budget.nested(|budget| {
            members.values_mut().try_for_each(|member| put_defaults(schema, *node, member, budget))
        }),
        (Shape::List { item, .. }, Value::Array(items)) => budget.nested(|budget| {
            items.iter_mut().try_for_each(|value| put_defaults(schema, *item, value, budget))
        }),
        _ => Ok(()),
    }
}

/// A `null` where the schema has a default and allows no `null` counts as absent.
fn default_members(
    schema: &Schema,
    body: &Struct,
    members: &mut Map<String, Value>,
    budget: &mut Budget,
) -> Result<(), Exceeded> {
    for field in body.lookup.defaulted.iter().map(|at| &body.fields[*at as usize]) {
        let Some(default) = default_of(schema, field) else { continue };
        let absent = match members.get(&*field.name) {
            None => true,
            Some(Value::Null) => !schema.node(field.node).nullable,
            Some(_) => false,
        };
        if absent {
            budget.member(&field.name, members.is_empty())?;
            budget.tree(default)?;
            let mut value = default.clone();
            put_defaults(schema, field.node, &mut value, budget)?;
            members.insert(field.name.as_ref().to_owned(), value);
        }
    }
    Ok(())
}

fn default_of<'s>(schema: &'s Schema, field: &'s Field) -> Option<&'s Value> {
    field.default.as_ref().or_else(|| schema.node(field.node).default.as_ref())
}

pub(crate) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(given) => !given,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

impl Schema {
    /// Fills in what a struct lacks: defaults if they are asked for, and the zero values that Go writes out.
    pub(crate) fn fill(
        &self,
        body: &Struct,
        members: &mut Map<String, Value>,
        fill: Fill,
        typed: bool,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        if fill == Fill::Defaults {
            default_members(self, body, members, budget)?;
        }
        let always: &[u32] = if typed { &body.lookup.always } else { &[] };
        for field in always.iter().map(|at| &body.fields[*at as usize]) {
            if !members.contains_key(&*field.name) {
                let zero = self.zero(field.node, fill, budget)?;
                if !zero.is_null() {
                    budget.member(&field.name, members.is_empty())?;
                    members.insert(field.name.as_ref().to_owned(), zero);
                }
            }
        }
        Ok(())
    }

    /// What Go writes for a type's zero value; `null` where that would be nothing.
    pub(crate) fn zero(
        &self,
        node: NodeId,
        fill: Fill,
        budget: &mut Budget,
    ) -> Result<Value, Exceeded> {
        Ok(match &self.node(node).shape {
            Shape::Struct(body) => {
                let mut members = Map::new();
                if fill != Fill::Given {
                    budget.nested(|budget| self.fill(body, &mut members, fill, true, budget))?;
                }
                Value::Object(members)
            }
            Shape::Map { .. } => Value::Object(Map::new()),
            Shape::List { .. } => Value::Array(Vec::new()),
            Shape::String | Shape::Bytes => Value::from(""),
            Shape::Integer { .. } | Shape::Number | Shape::IntOrString => Value::from(0),
            Shape::Boolean => Value::from(false),
            Shape::Quantity => Value::from("0"),
            Shape::Time | Shape::MicroTime | Shape::Duration | Shape::Any => Value::Null,
        })
    }
}

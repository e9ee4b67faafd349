//! Merges apply configurations of mutating policies, without recording ownership.

use api_schema::{ListType, NodeId, Schema, Shape};
use serde_json::Value;

use crate::{
    fieldset::{display, field},
    typed::{extract::extract, merge::merge},
};

/// An error of merging a configuration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigurationError {
    #[error("failed to convert patch object to typed object: {0}")]
    Typed(String),
    /// The configuration sets a part of an atomic value. The merge would remove the rest of the value.
    #[error(
        "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
        .0.join(", ")
    )]
    Atomic(Vec<String>),
}

/// Merges the configuration into the live object. The ownership of fields does not change.
pub fn merge_configuration(
    schema: &Schema,
    node: NodeId,
    live: Value,
    configuration: &Value,
) -> Result<Value, ConfigurationError> {
    extract(schema, Some(node), configuration)
        .map_err(|errors| ConfigurationError::Typed(crate::apply::errors_text(&errors)))?;
    let mut found = Vec::new();
    atomics(schema, node, configuration, &mut Vec::new(), &mut found);
    if !found.is_empty() {
        return Err(ConfigurationError::Atomic(found));
    }
    Ok(merge(schema, Some(node), Some(live), configuration))
}

/// Collects the paths of atomic lists, maps and structs.
fn atomics(
    schema: &Schema,
    id: NodeId,
    value: &Value,
    path: &mut Vec<String>,
    found: &mut Vec<String>,
) {
    let node = schema.node(id);
    let whole = match (&node.shape, value) {
        (Shape::Struct(body), Value::Object(_)) => body.atomic,
        (Shape::Map { atomic, .. }, Value::Object(_)) => *atomic,
        (Shape::List { list, .. }, Value::Array(_)) => matches!(list, ListType::Atomic),
        (Shape::Any, Value::Object(_) | Value::Array(_)) => node.name.is_some(),
        _ => false,
    };
    if whole {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        found.push(display(&path));
    }
    match (&node.shape, value) {
        (Shape::Struct(body), Value::Object(members)) => {
            for (name, member) in members {
                let Some(known) = body.field(name) else { continue };
                path.push(field(name));
                atomics(schema, known.node, member, path, found);
                path.pop();
            }
        }
        (Shape::List { item, .. }, Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                path.push(format!("i:{index}"));
                atomics(schema, *item, value, path, found);
                path.pop();
            }
        }
        _ => {}
    }
}

//! Applying a configuration that nobody owns: what mutating policies merge into an object.

use api_schema::{ListType, NodeId, Schema, Shape};
use serde_json::Value;

use crate::{
    fieldset::{display, field},
    typed::{extract::extract, merge::merge},
};

/// Why a configuration could not be merged.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigurationError {
    #[error("failed to convert patch object to typed object: {0}")]
    Typed(String),
    /// Who sets a part of what is replaced as a whole would take the rest away.
    #[error(
        "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
        .0.join(", ")
    )]
    Atomic(Vec<String>),
}

/// The live object with all that the configuration sets. Nobody comes to own it.
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

/// The paths of lists, maps and structs that are owned as a whole.
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

//! Strategic merge patch: a merge patch that merges lists by the merge keys in the schema.
//!
//! Directives: `$patch: replace | delete | merge` in a map, `$patch: replace | delete` in an item of a merged list,
//! `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>` and `$retainKeys`.

mod list;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use api_schema::{NodeId, Patch, Schema, Shape};
use serde_json::{Map, Value};

use crate::{PatchError, error::go_print};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList/";
const SET_ELEMENT_ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch. `node` is the schema of `object`; without it, lists are replaced. After an error,
/// `object` is unspecified.
pub fn strategic(
    schema: &Schema,
    node: Option<NodeId>,
    object: &mut Value,
    patch: &Value,
) -> Result<(), PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (object, patch) else {
        return Err(PatchError::InvalidDocument);
    };
    merge_map(schema, node, original, patch)
}

/// The schema of one member: its node and its merge strategy.
struct Member {
    node: Option<NodeId>,
    /// `true` if the schema does not declare the contents. Such objects are replaced.
    opaque: bool,
    item: Option<NodeId>,
    patch: Patch,
}

fn member(schema: &Schema, parent: Option<NodeId>, name: &str) -> Member {
    let (node, patch) = match parent.map(|id| &schema.node(id).shape) {
        Some(Shape::Struct(s)) => match s.field(name) {
            Some(field) => (Some(field.node), field.patch.clone()),
            None => (None, Patch::default()),
        },
        Some(Shape::Map { value, .. }) => (Some(*value), Patch::default()),
        _ => (None, Patch::default()),
    };
    let item = match node.map(|id| &schema.node(id).shape) {
        Some(Shape::List { item, .. }) => Some(*item),
        _ => None,
    };
    let opaque = node.is_some_and(|id| matches!(schema.node(id).shape, Shape::Any));
    Member { node, opaque, item, patch }
}

fn merge_map(
    schema: &Schema,
    node: Option<NodeId>,
    original: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), PatchError> {
    match patch.get(PATCH).map(|d| (d.as_str(), d)) {
        None | Some((Some("merge"), _)) => {}
        Some((Some("replace"), _)) => {
            *original = clean_map(patch);
            return Ok(());
        }
        Some((Some("delete"), _)) => {
            original.clear();
            return Ok(());
        }
        Some((_, directive)) => return Err(unknown_directive(directive, patch)),
    }
    retain_keys(original, patch)?;
    for (name, value) in patch {
        if let Some(field) = name.strip_prefix(DELETE_FROM_LIST) {
            list::delete_primitives(original, field, value)?;
        }
    }
    for (name, value) in patch {
        if name.starts_with('$') && is_directive(name) {
            continue;
        }
        let order = patch.get(&format!("{SET_ELEMENT_ORDER}{name}"));
        merge_member(schema, &member(schema, node, name), original, name, value, order)?;
    }
    for (name, order) in patch {
        if let Some(field) = name.strip_prefix(SET_ELEMENT_ORDER)
            && !patch.contains_key(field)
            && let Some(Value::Array(items)) = original.get_mut(field)
        {
            let member = member(schema, node, field);
            let before = items.clone();
            list::reorder(&member, items, list::order_list(order)?, &before)?;
        }
    }
    Ok(())
}

fn merge_member(
    schema: &Schema,
    member: &Member,
    original: &mut Map<String, Value>,
    name: &str,
    patch: &Value,
    order: Option<&Value>,
) -> Result<(), PatchError> {
    api_meta::steps::spend(1);
    if patch.is_null() {
        original.remove(name);
        return Ok(());
    }
    match (original.get_mut(name), patch) {
        (Some(Value::Object(old)), Value::Object(new)) if !member.opaque => {
            merge_map(schema, member.node, old, new)?;
        }
        (Some(Value::Array(old)), Value::Array(new)) if member.patch.merge => {
            list::merge(schema, member, old, new, order, name)?;
        }
        (found, patch) => {
            let absent = found.is_none();
            if absent && let (Value::Array(new), Some(order)) = (patch, order) {
                list::check_order(member, new, list::order_list(order)?)?;
            }
            match clean(patch) {
                Some(value) => original.insert(name.to_owned(), value),
                None => original.remove(name),
            };
        }
    }
    Ok(())
}

/// Removes the members of `original` that a `$retainKeys` list does not name.
fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), PatchError> {
    let Some(list) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let list = list.as_array().ok_or(PatchError::RetainKeys)?;
    let list: HashSet<&str> = list.iter().filter_map(Value::as_str).collect();
    let retained = |name: &str| list.contains(name);
    for (name, value) in patch {
        if !value.is_null() && !is_directive(name) && !retained(name) {
            return Err(PatchError::RetainKeys);
        }
    }
    original.retain(|name, _| retained(name));
    Ok(())
}

fn is_directive(name: &str) -> bool {
    name == PATCH
        || name == RETAIN_KEYS
        || name.starts_with(DELETE_FROM_LIST)
        || name.starts_with(SET_ELEMENT_ORDER)
}

/// Returns a patch's value without nulls and directives, for a place without an original value.
fn clean(patch: &Value) -> Option<Value> {
    api_meta::steps::spend(1);
    match patch {
        Value::Null => None,
        Value::Object(map) => match map.get(PATCH).and_then(Value::as_str) {
            Some("delete") => None,
            _ => Some(Value::Object(clean_map(map))),
        },
        Value::Array(items) => Some(Value::Array(
            items.iter().filter(|item| !is_special(item)).filter_map(clean).collect(),
        )),
        scalar => Some(scalar.clone()),
    }
}

fn clean_map(patch: &Map<String, Value>) -> Map<String, Value> {
    patch
        .iter()
        .filter(|(name, _)| !is_directive(name))
        .filter_map(|(name, value)| Some((name.clone(), clean(value)?)))
        .collect()
}

/// Reports whether a list item is a directive.
fn is_special(item: &Value) -> bool {
    item.get(PATCH).is_some()
}

fn unknown_directive(directive: &Value, map: &Map<String, Value>) -> PatchError {
    PatchError::UnknownDirective {
        directive: directive.as_str().map_or_else(|| directive.to_string(), str::to_owned),
        map: go_print(&Value::Object(map.clone())),
    }
}

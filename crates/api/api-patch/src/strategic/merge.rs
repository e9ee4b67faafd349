//! Merging of maps and of lists: maps in lists by merge key, scalars by value.

use std::collections::{HashMap, HashSet};

use api_schema::{NodeId, Schema};
use serde_json::{Map, Value};

use super::{
    directive::{
        DELETE_FROM_LIST, PATCH, RETAIN_KEYS, SET_ELEMENT_ORDER, clean, clean_map, is_directive,
        is_special, unknown_directive,
    },
    member::{Member, member},
    order::{check_order, order_list, reorder},
};
use crate::error::{PatchError, go_print};

/// Merges a patch into a map. `node` is the schema of the map.
pub(super) fn merge_map(
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
            delete_primitives(original, field, value)?;
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
            reorder(&member, items, order_list(order)?, &before)?;
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
            merge_list(schema, member, old, new, order, name)?;
        }
        (found, patch) => {
            let absent = found.is_none();
            if absent && let (Value::Array(new), Some(order)) = (patch, order) {
                check_order(member, new, order_list(order)?)?;
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

/// Merges `patch` into `original` and orders the result by `$setElementOrder`, or else by the patch's own order. Items
/// that only the server has keep their relative positions.
fn merge_list(
    schema: &Schema,
    member: &Member,
    original: &mut Vec<Value>,
    patch: &[Value],
    order: Option<&Value>,
    name: &str,
) -> Result<(), PatchError> {
    let order = order.map(order_list).transpose()?;
    if let Some(order) = order {
        check_order(member, patch, order)?;
    }
    if original.is_empty() && patch.is_empty() {
        return Ok(());
    }
    let maps = element_kind(original.iter().chain(patch))?;
    let mut before = original.clone();
    let plain: Vec<Value> = patch.iter().filter(|item| !is_special(item)).cloned().collect();
    if maps {
        let key = member.patch.merge_key.as_deref();
        let key = key.ok_or_else(|| PatchError::UndeclaredMergeKey(name.to_owned()))?;
        if apply_special(original, patch, key)? {
            *original = plain.iter().filter_map(clean).collect();
            return Ok(());
        }
        merge_maps(schema, member, original, &plain, key)?;
    } else {
        let known: HashSet<&Value> = before.iter().collect();
        let mut added = HashSet::new();
        let new = plain.iter().filter(|item| !known.contains(item) && added.insert(*item));
        original.extend(new.cloned());
    }
    if order.is_some() {
        // As upstream, which reads positions from the old list's memory, after deletions moved items and additions
        // filled the free capacity. Clients see the resulting order.
        before = original.iter().take(before.len()).cloned().collect();
    }
    reorder(member, original, order.unwrap_or(&plain), &before)
}

/// Merges each patch item into the item with its key, or appends it.
fn merge_maps(
    schema: &Schema,
    member: &Member,
    original: &mut Vec<Value>,
    patch: &[Value],
    key: &str,
) -> Result<(), PatchError> {
    let mut places: HashMap<Value, usize> = HashMap::with_capacity(original.len());
    for (at, item) in original.iter().enumerate() {
        if let Some(value) = item.get(key) {
            places.entry(value.clone()).or_insert(at);
        }
    }
    for item in patch {
        let Value::Object(map) = item else { return Err(PatchError::InvalidDocument) };
        let value = map.get(key).ok_or_else(|| no_merge_key(item, key))?;
        match places.get(value).and_then(|at| original.get_mut(*at)) {
            Some(Value::Object(old)) => {
                merge_map(schema, member.item, old, map)?;
                if value.is_null() {
                    // The patch removed the key.
                    places.remove(value);
                }
            }
            _ => {
                let Some(new) = clean(item) else { continue };
                if new.get(key) == Some(value) {
                    places.insert(value.clone(), original.len());
                }
                original.push(new);
            }
        }
    }
    Ok(())
}

/// Executes the `$patch` items of a list. Returns `true` if one of them replaces the list.
fn apply_special(
    original: &mut Vec<Value>,
    patch: &[Value],
    key: &str,
) -> Result<bool, PatchError> {
    let (mut replace, mut deleted) = (false, HashSet::new());
    for item in patch {
        let (Value::Object(map), Some(directive)) = (item, item.get(PATCH)) else { continue };
        match directive.as_str() {
            Some("delete") => {
                deleted.insert(map.get(key).ok_or_else(|| no_merge_key(item, key))?);
            }
            Some("replace") => replace = true,
            Some("merge") => return Err(PatchError::MergeDirectiveInList),
            _ => return Err(unknown_directive(directive, map)),
        }
    }
    original.retain(|item| item.get(key).is_none_or(|value| !deleted.contains(value)));
    Ok(replace)
}

/// Executes a `$deleteFromPrimitiveList/<field>` directive.
fn delete_primitives(
    original: &mut Map<String, Value>,
    field: &str,
    values: &Value,
) -> Result<(), PatchError> {
    let values = values.as_array().ok_or(PatchError::PrimitiveList)?;
    if values.iter().any(|v| v.is_object() || v.is_array()) {
        return Err(PatchError::PrimitiveList);
    }
    if let Some(Value::Array(items)) = original.get_mut(field) {
        let values: HashSet<&Value> = values.iter().collect();
        items.retain(|item| !values.contains(item));
    }
    Ok(())
}

/// Returns `true` for a list of maps and `false` for a list of scalars.
fn element_kind<'a>(items: impl Iterator<Item = &'a Value>) -> Result<bool, PatchError> {
    let mut kind = None;
    for item in items {
        if item.is_array() {
            return Err(PatchError::ListOfLists);
        }
        let maps = item.is_object();
        if *kind.get_or_insert(maps) != maps {
            return Err(PatchError::MixedList(item.to_string()));
        }
    }
    Ok(kind.unwrap_or(false))
}

fn no_merge_key(item: &Value, key: &str) -> PatchError {
    PatchError::NoMergeKey { map: go_print(item), key: key.to_owned() }
}

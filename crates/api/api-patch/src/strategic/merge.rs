//! Merging of maps and of lists: maps in lists by merge key, scalars by value.

use std::collections::{HashMap, HashSet};

use api_schema::{NodeId, Schema};
use serde_json::{Map, Value};

use super::{
    directive::{
        DELETE_FROM_LIST, PATCH, RETAIN_KEYS, SET_ELEMENT_ORDER, clean, is_special,
        unknown_directive,
    },
    member::{Member, member},
    order::{check_order, no_merge_key, reorder},
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
        None => {}
        Some((Some("replace"), _)) => {
            original.clone_from(patch);
            original.remove(PATCH);
            return Ok(());
        }
        Some((Some("delete"), _)) => {
            original.clear();
            return Ok(());
        }
        Some((_, directive)) => return Err(unknown_directive(directive, patch)),
    }
    retain_keys(original, patch)?;
    let mut ordered = HashSet::new();
    for (name, order) in patch {
        if let Some(rest) = name.strip_prefix(SET_ELEMENT_ORDER) {
            let order = list(order)?;
            let field = rest.strip_prefix('/').ok_or(PatchError::SetElementOrder)?;
            merge_ordered(schema, node, original, patch.get(field), field, order)?;
            ordered.extend([name.as_str(), field]);
        }
    }
    for (name, value) in patch {
        if let Some(rest) = name.strip_prefix(DELETE_FROM_LIST) {
            let field = rest.strip_prefix('/').ok_or(PatchError::PrimitiveList)?;
            delete_from_list(original, field, value)?;
        } else if name != RETAIN_KEYS && !ordered.contains(name.as_str()) {
            merge_member(schema, &member(schema, node, name), original, name, value)?;
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
) -> Result<(), PatchError> {
    api_meta::steps::spend(1);
    if patch.is_null() {
        original.remove(name);
        return Ok(());
    }
    match (original.get_mut(name), patch) {
        (Some(Value::Object(old)), Value::Object(new)) if !member.opaque => {
            merge_map(schema, member.node, old, new)
        }
        (Some(Value::Array(old)), Value::Array(new)) => merge_list(schema, member, old, new, name),
        (_, patch) => {
            match clean(patch) {
                Some(value) => original.insert(name.to_owned(), value),
                None => original.remove(name),
            };
            Ok(())
        }
    }
}

/// Merges a list with a `$setElementOrder`, and orders it.
fn merge_ordered(
    schema: &Schema,
    node: Option<NodeId>,
    original: &mut Map<String, Value>,
    patch: Option<&Value>,
    name: &str,
    order: &[Value],
) -> Result<(), PatchError> {
    let (old, new) = (original.get(name).map(list).transpose()?, patch.map(list).transpose()?);
    let member = member(schema, node, name);
    if member.item.is_none() {
        return Err(PatchError::NoSuchList(name.to_owned()));
    }
    let items = new.map_or(&[][..], Vec::as_slice);
    check_order(&member, items, order)?;
    let mut before = old.cloned().unwrap_or_default();
    if old.is_none() && new.is_none() {
        return Ok(());
    }
    element_kind(&before, items)?.ok_or(PatchError::NoElements)?;
    let merged = match (original.get_mut(name), new) {
        (Some(Value::Array(items)), Some(new)) => {
            merge_items(schema, &member, items, new, name)?;
            if member.patch.merge {
                // As upstream, which reads positions from the old list's memory, after deletions moved items and
                // additions filled the free capacity. Clients see the resulting order.
                before = items.iter().take(before.len()).cloned().collect();
            }
            items
        }
        (Some(Value::Array(items)), None) => items,
        (_, new) => {
            let added = new.into_iter().flatten().filter_map(clean).collect();
            let slot = original.entry(name.to_owned()).or_insert(Value::Null);
            *slot = Value::Array(added);
            let Value::Array(items) = slot else { return Ok(()) };
            items
        }
    };
    reorder(&member, merged, order, &before)
}

fn list(value: &Value) -> Result<&Vec<Value>, PatchError> {
    value.as_array().ok_or_else(|| PatchError::wrong_type("[]interface {}", value))
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
        let directive = [RETAIN_KEYS, DELETE_FROM_LIST, SET_ELEMENT_ORDER];
        let is_directive = directive.iter().any(|prefix| name.starts_with(prefix));
        if !value.is_null() && !is_directive && !retained(name) {
            return Err(PatchError::RetainKeys);
        }
    }
    original.retain(|name, _| retained(name));
    Ok(())
}

/// Merges `patch` into `original` and orders the result by the patch's own order. Items that only the server has keep
/// their relative positions.
fn merge_list(
    schema: &Schema,
    member: &Member,
    original: &mut Vec<Value>,
    patch: &[Value],
    name: &str,
) -> Result<(), PatchError> {
    if !member.patch.merge {
        return merge_items(schema, member, original, patch, name);
    }
    let before = original.clone();
    merge_items(schema, member, original, patch, name)?;
    reorder(member, original, &without_special(patch), &before)
}

/// Returns the items that are no directives.
fn without_special(patch: &[Value]) -> Vec<Value> {
    patch.iter().filter(|item| !is_special(item)).cloned().collect()
}

/// Merges the items of `patch` into `original`. A list without the merge strategy is replaced as it is.
fn merge_items(
    schema: &Schema,
    member: &Member,
    original: &mut Vec<Value>,
    patch: &[Value],
    name: &str,
) -> Result<(), PatchError> {
    if !member.patch.merge {
        *original = patch.to_vec();
        return Ok(());
    }
    let Some(maps) = element_kind(original, patch)? else { return Ok(()) };
    if !maps {
        let known: HashSet<Value> = original.iter().cloned().collect();
        let mut added = HashSet::new();
        let new = patch.iter().filter(|item| !known.contains(item) && added.insert(*item));
        original.extend(new.cloned());
        return Ok(());
    }
    let key = member.patch.merge_key.as_deref();
    let key = key.ok_or_else(|| PatchError::UndeclaredMergeKey(name.to_owned()))?;
    let replaced = apply_special(original, patch, key)?;
    let plain = without_special(patch);
    if replaced {
        *original = plain;
        return Ok(());
    }
    merge_maps(schema, member, original, &plain, key)
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
                places.insert(value.clone(), original.len());
                original.push(item.clone());
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

/// Executes a `$deleteFromPrimitiveList/<field>` directive. Values that are not lists are ignored.
fn delete_from_list(
    original: &mut Map<String, Value>,
    field: &str,
    values: &Value,
) -> Result<(), PatchError> {
    if let (Some(Value::Array(items)), Value::Array(values)) = (original.get_mut(field), values)
        && element_kind(items, values)? == Some(false)
    {
        let values: HashSet<&Value> = values.iter().collect();
        items.retain(|item| !values.contains(item));
    }
    Ok(())
}

/// Returns `true` for lists of maps and `false` for lists of scalars. Returns `None` if both lists are empty.
fn element_kind(original: &[Value], patch: &[Value]) -> Result<Option<bool>, PatchError> {
    let mut first = None;
    for item in original.iter().chain(patch) {
        let first = *first.get_or_insert(item);
        if first.is_array() {
            return Err(PatchError::ListOfLists);
        }
        if std::mem::discriminant(first) != std::mem::discriminant(item) {
            let list = |items: &[Value]| go_print(&Value::Array(items.to_vec()));
            return Err(PatchError::MixedList(format!("[{} {}]", list(original), list(patch))));
        }
    }
    Ok(first.map(Value::is_object))
}

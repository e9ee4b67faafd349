//! Merging of lists: maps by merge key and scalars by value, and the order of the result.

use std::collections::{HashMap, HashSet};

use api_schema::Schema;
use serde_json::{Map, Value};

use super::{Member, PATCH, clean, is_special, merge_map, unknown_directive};
use crate::{PatchError, error::go_print};

/// Merges `patch` into `original` and orders the result by `$setElementOrder`, or else by the patch's own order. Items
/// that only the server has keep their relative positions.
pub(super) fn merge(
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
pub(super) fn delete_primitives(
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

pub(super) fn order_list(order: &Value) -> Result<&Vec<Value>, PatchError> {
    order.as_array().ok_or(PatchError::SetElementOrder)
}

/// Checks that the patch's items are listed in its `$setElementOrder` and have the same order.
pub(super) fn check_order(
    member: &Member,
    patch: &[Value],
    order: &[Value],
) -> Result<(), PatchError> {
    let mut places = order.iter();
    for item in patch.iter().filter(|item| !is_special(item)) {
        if !places.any(|place| same(member, place, item)) {
            return Err(PatchError::Order {
                patch: go_print(&Value::Array(patch.to_vec())),
                directive: super::SET_ELEMENT_ORDER.to_owned(),
                order: go_print(&Value::Array(order.to_vec())),
            });
        }
    }
    Ok(())
}

/// Orders `items`: those in `order` as listed, and the others in the order of `before`. Each of the others stays before
/// the listed items that followed it there.
pub(super) fn reorder(
    member: &Member,
    items: &mut Vec<Value>,
    order: &[Value],
    before: &[Value],
) -> Result<(), PatchError> {
    let (order, before) = (Places::of(member, order), Places::of(member, before));
    let (mut ordered, mut own): (Vec<Value>, Vec<Value>) =
        items.drain(..).partition(|item| order.get(item).is_some());
    ordered.sort_by_cached_key(|item| order.get(item));
    own.sort_by_cached_key(|item| before.get(item));
    let mut own = own.into_iter().peekable();
    for item in ordered {
        let here = before.get(&item);
        while let (Some(next), Some(here)) = (own.peek(), here) {
            if before.get(next).is_none_or(|p| p > here) {
                break;
            }
            items.extend(own.next());
        }
        items.push(item);
    }
    items.extend(own);
    Ok(())
}

/// The positions of a list's items, by merge key or value. The first of equal items counts.
struct Places<'a> {
    member: &'a Member,
    first: HashMap<&'a Value, usize>,
}

impl<'a> Places<'a> {
    fn of(member: &'a Member, list: &'a [Value]) -> Self {
        let mut first = HashMap::with_capacity(list.len());
        for (at, item) in list.iter().enumerate() {
            if let Some(identity) = identity(member, item) {
                first.entry(identity).or_insert(at);
            }
        }
        Self { member, first }
    }

    fn get(&self, item: &Value) -> Option<usize> {
        self.first.get(identity(self.member, item)?).copied()
    }
}

/// Returns the merge key's value or the scalar itself. Returns `None` for an item without its merge key.
fn identity<'v>(member: &Member, item: &'v Value) -> Option<&'v Value> {
    match member.patch.merge_key.as_deref() {
        Some(key) => item.get(key),
        None => Some(item),
    }
}

/// Reports whether two items are the same, by merge key or value.
fn same(member: &Member, a: &Value, b: &Value) -> bool {
    api_meta::steps::spend(1);
    identity(member, a).is_some_and(|a| identity(member, b) == Some(a))
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

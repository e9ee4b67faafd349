//! The order of a merged list.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    directive::{SET_ELEMENT_ORDER, is_special},
    member::Member,
};
use crate::error::{PatchError, go_print};

/// Checks that the patch's items are listed in its `$setElementOrder` and have the same order.
pub(super) fn check_order(
    member: &Member,
    patch: &[Value],
    order: &[Value],
) -> Result<(), PatchError> {
    if order.is_empty() {
        return Ok(());
    }
    let mut places = order.iter();
    for item in patch.iter().filter(|item| !is_special(item)) {
        let wanted = required_identity(member, item)?;
        let mut found = false;
        while !found && let Some(place) = places.next() {
            api_meta::steps::spend(1);
            found = required_identity(member, place)? == wanted;
        }
        if !found {
            return Err(PatchError::Order {
                patch: go_print(&Value::Array(patch.to_vec())),
                directive: SET_ELEMENT_ORDER.to_owned(),
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
    let (order, before) = (Positions::of(member, order), Positions::of(member, before));
    let (mut ordered, mut own): (Vec<Value>, Vec<Value>) =
        items.drain(..).partition(|item| order.get(item).is_some());
    ordered.sort_by_cached_key(|item| order.get(item));
    // Items that are new and not in an empty order come last.
    own.sort_by_cached_key(|item| before.get(item).unwrap_or(usize::MAX));
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
struct Positions<'a> {
    member: &'a Member,
    first: HashMap<&'a Value, usize>,
}

impl<'a> Positions<'a> {
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

/// Like [`identity`], with upstream's error for an item that has none.
fn required_identity<'v>(member: &Member, item: &'v Value) -> Result<&'v Value, PatchError> {
    let Some(key) = member.patch.merge_key.as_deref() else { return Ok(item) };
    if !item.is_object() {
        return Err(PatchError::wrong_type("map[string]interface {}", item));
    }
    item.get(key).ok_or_else(|| no_merge_key(item, key))
}

pub(super) fn no_merge_key(item: &Value, key: &str) -> PatchError {
    PatchError::NoMergeKey { map: go_print(item), key: key.to_owned() }
}

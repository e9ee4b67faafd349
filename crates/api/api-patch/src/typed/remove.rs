//! Removes fields from an object.

use api_schema::{NodeId, Schema};
use serde_json::{Map, Value};

use super::Form;
use crate::fieldset::{FieldSet, is_member, kids};

/// Removes the paths of `set` and their descendants. A map or list that becomes empty stays, unless its own path is in
/// the set.
pub(crate) fn remove(schema: &Schema, id: Option<NodeId>, object: &mut Value, set: &FieldSet) {
    value(schema, id, object, &set.0);
}

fn value(schema: &Schema, id: Option<NodeId>, here: &mut Value, set: &Map<String, Value>) {
    api_meta::steps::spend(1);
    let form = Form::of(schema, id, Some(here));
    match (form, here) {
        (Form::Struct(_) | Form::Map(_), Value::Object(map)) => {
            for (element, node) in kids(set) {
                let Some(name) = element.strip_prefix("f:") else { continue };
                if is_member(node) {
                    map.remove(name);
                } else if let Some(found) = map.get_mut(name) {
                    value(schema, form.child(name), found, node);
                }
            }
        }
        (Form::Set | Form::MapList { .. }, Value::Array(items)) => items.retain_mut(|item| {
            let element = form.element(schema, item).ok();
            match element.and_then(|element| set.get(&element)) {
                Some(Value::Object(node)) if is_member(node) => false,
                Some(Value::Object(node)) => {
                    value(schema, form.item(), item, node);
                    true
                }
                _ => true,
            }
        }),
        _ => {}
    }
}

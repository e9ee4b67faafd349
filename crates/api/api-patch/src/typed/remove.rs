//! Removes fields from an object.

use api_schema::{NodeId, Schema};
use serde_json::{Map, Value};

use super::Form;
use crate::fieldset::{FieldSet, is_member, kids};

/// Removes the paths of `set` and their descendants. A map or list that becomes empty is also removed.
pub(crate) fn remove(schema: &Schema, id: Option<NodeId>, object: &mut Value, set: &FieldSet) {
    value(schema, id, object, &set.0);
}

/// Returns `false` if the value became empty and must be removed.
fn value(schema: &Schema, id: Option<NodeId>, here: &mut Value, set: &Map<String, Value>) -> bool {
    api_meta::steps::spend(1);
    let form = Form::of(schema, id, Some(here));
    match (form, here) {
        (Form::Struct(_) | Form::Map(_), Value::Object(map)) => {
            for (element, node) in kids(set) {
                let Some(name) = element.strip_prefix("f:") else { continue };
                let Some(found) = map.get_mut(name) else { continue };
                if is_member(node) || !value(schema, form.child(name), found, node) {
                    map.remove(name);
                }
            }
            !map.is_empty()
        }
        (Form::Set | Form::MapList { .. }, Value::Array(items)) => {
            items.retain_mut(|item| {
                let element = form.element(schema, item).ok();
                match element.and_then(|element| set.get(&element)) {
                    Some(Value::Object(node)) => {
                        !is_member(node) && value(schema, form.item(), item, node)
                    }
                    _ => true,
                }
            });
            !items.is_empty()
        }
        _ => true,
    }
}

//! Merges an applied configuration into the live object.

use std::collections::{HashMap, HashSet, VecDeque};

use api_schema::{NodeId, Schema};
use serde_json::{Map, Value};

use super::Form;

/// Merges the configuration into the live value. Nulls are kept; the decoder interprets them.
pub(crate) fn merge(
    schema: &Schema,
    id: Option<NodeId>,
    live: Option<Value>,
    config: &Value,
) -> Value {
    api_meta::steps::spend(1);
    let form = Form::of(schema, id, Some(config));
    match (form, config) {
        (_, Value::Null) => Value::Null,
        (Form::Struct(_) | Form::Map(_), Value::Object(config)) => {
            let mut merged = match live {
                Some(Value::Object(live)) => live,
                _ => Map::new(),
            };
            for (name, value) in config {
                let live = merged.remove(name);
                merged.insert(name.clone(), merge(schema, form.child(name), live, value));
            }
            Value::Object(merged)
        }
        (Form::Set | Form::MapList { .. }, Value::Array(config)) => {
            let live = match live {
                Some(Value::Array(live)) => live,
                _ => Vec::new(),
            };
            Value::Array(items(schema, form, live, config))
        }
        _ => config.clone(),
    }
}

/// Merges lists by item. Items of both sides follow the configuration's order. The live object's own items keep their
/// positions among them, and new items follow their predecessor in the configuration.
fn items(schema: &Schema, form: Form, live: Vec<Value>, config: &[Value]) -> Vec<Value> {
    let element = |item: &Value| form.element(schema, item).unwrap_or_default();
    let identities: HashSet<String> = config.iter().map(element).collect();
    // Duplicate items of the live list are replaced, not merged.
    let mut shared: HashMap<String, Option<Value>> = HashMap::new();
    // The live list: its own items, and the names of shared items.
    let mut rest = Vec::with_capacity(live.len());
    for item in live {
        let name = element(&item);
        if identities.contains(&name) {
            shared.entry(name.clone()).and_modify(|live| *live = None).or_insert(Some(item));
            rest.push(Err(name));
        } else {
            rest.push(Ok(item));
        }
    }
    let mut order: VecDeque<String> =
        config.iter().map(element).filter(|name| shared.contains_key(name)).collect();
    let mut rest = rest.into_iter().peekable();
    let mut merged = Vec::with_capacity(rest.len() + config.len());
    for item in config {
        let name = element(item);
        // The live object's own items come first, up to the next shared item.
        while let Some(next) = rest.next_if(|next| match next {
            Ok(_) => true,
            Err(gap) => Some(gap) != order.front(),
        }) {
            merged.extend(next);
        }
        if order.front() == Some(&name) {
            order.pop_front();
            rest.next();
        }
        merged.push(merge(schema, form.item(), shared.remove(&name).flatten(), item));
    }
    merged.extend(rest.flatten());
    merged
}

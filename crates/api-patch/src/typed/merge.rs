//! Merging an applied configuration into the live object.

use std::collections::{HashMap, HashSet, VecDeque};

use api_schema::{NodeId, Schema};
use serde_json::{Map, Value};

use super::Form;

/// The live value with all that the configuration sets, null too: what reads the object says what null means there.
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

/// Merges lists by element. Elements of both sides stand in the configuration's order, the live object's own
/// elements keep their places among them, new ones come after what they follow in the configuration.
fn items(schema: &Schema, form: Form, live: Vec<Value>, config: &[Value]) -> Vec<Value> {
    let element = |item: &Value| form.element(schema, item).unwrap_or_default();
    let wanted: HashSet<String> = config.iter().map(element).collect();
    // Elements that the live list has more than once are replaced, not merged.
    let mut shared: HashMap<String, Option<Value>> = HashMap::new();
    // The live list as its own elements and the gaps that shared ones left.
    let mut rest = Vec::with_capacity(live.len());
    for item in live {
        let name = element(&item);
        if wanted.contains(&name) {
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
        // Own elements come first, up to the gap of the shared element that comes next.
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

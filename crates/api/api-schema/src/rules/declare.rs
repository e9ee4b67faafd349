//! CEL declarations of schemas: types, and the bounds for cost estimates.

use std::sync::Arc;

use api_meta::Tree as _;
use cel::{Decl, Field, ListKind, Object, Shape, escape};
use serde_json::{Value, json};

/// The maximum size of a request, which bounds how often a value fits into it.
pub(super) const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// The longest string that fits into a request, without its quotes.
const MAX_TEXT: u64 = MAX_REQUEST - 2;

fn is_set(schema: &Value, key: &str) -> bool {
    schema[key] == true
}

pub(super) fn is_embedded_resource(schema: &Value) -> bool {
    is_set(schema, "x-kubernetes-embedded-resource")
}

/// Returns the declaration of a schema's values, or `None` if expressions cannot access them. `name` is the name of an
/// object type.
pub(super) fn declare(schema: &Value, resource: bool, name: &str) -> Option<Decl> {
    if is_set(schema, "x-kubernetes-int-or-string") {
        let most = max_length(schema).map_or(MAX_TEXT, |most| most.saturating_mul(4));
        return Some(Decl::new(Shape::Any, most, 1));
    }
    let with_meta;
    let schema = if resource {
        with_meta = with_metadata(schema);
        &with_meta
    } else {
        schema
    };
    match schema["type"].as_str()? {
        "array" => array(schema, name),
        "object" => object(schema, name),
        "string" => Some(text(schema)),
        "boolean" => Some(Decl::new(Shape::Bool, 0, 4)),
        "number" => Some(Decl::new(Shape::Double, 0, 1)),
        "integer" => Some(Decl::new(Shape::Int, 0, 1)),
        _ => None,
    }
}

/// Adds kind, version and name to the schema of a whole object. Other metadata is not accessible.
fn with_metadata(schema: &Value) -> Value {
    let properties = &schema["properties"];
    let is = |value: &Value, ty: &str| value["type"] == ty;
    let metadata = &properties["metadata"];
    let complete = is(&properties["kind"], "string")
        && is(&properties["apiVersion"], "string")
        && is(metadata, "object")
        && is(metadata.at("properties.name"), "string")
        && is(metadata.at("properties.generateName"), "string");
    let mut schema = schema.clone();
    if complete {
        return schema;
    }
    let text = json!({"type": "string"});
    let metadata = json!({"type": "object", "properties": {"name": text, "generateName": text}});
    let mut members = properties.as_object().cloned().unwrap_or_default();
    members.insert("kind".to_owned(), text.clone());
    members.insert("apiVersion".to_owned(), text);
    members.insert("metadata".to_owned(), metadata);
    if let Some(object) = schema.as_object_mut() {
        object.insert("properties".to_owned(), Value::Object(members));
    }
    schema
}

fn count(schema: &Value, key: &str) -> Option<u64> {
    // Upstream's arithmetic treats a negative bound as zero.
    schema[key].as_i64().map(|count| u64::try_from(count).unwrap_or(0))
}

fn max_length(schema: &Value) -> Option<u64> {
    count(schema, "maxLength")
}

fn array(schema: &Value, name: &str) -> Option<Decl> {
    let items = &schema["items"];
    let item = declare(items, is_embedded_resource(items), &format!("{name}.@idx"))?;
    let most =
        count(schema, "maxItems").unwrap_or_else(|| (MAX_REQUEST - 2) / (item.min_serialized + 1));
    let kind = match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => ListKind::Set,
        Some("map") => ListKind::Map(keys(schema).map(Arc::from).collect()),
        _ => ListKind::Atomic,
    };
    Some(Decl::new(Shape::List { item: Arc::new(item), kind }, most, 2))
}

/// Returns the `x-kubernetes-list-map-keys`.
pub(super) fn keys(schema: &Value) -> impl Iterator<Item = &str> {
    schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn object(schema: &Value, name: &str) -> Option<Decl> {
    let values = &schema["additionalProperties"];
    if values.is_object() {
        let value = declare(values, is_embedded_resource(values), &format!("{name}.@elem"))?;
        // The minimum size of an entry: quotes, a colon, a comma and two characters of a key.
        let most = count(schema, "maxProperties")
            .unwrap_or_else(|| (MAX_REQUEST - 2) / (value.min_serialized + 6));
        return Some(Decl::new(Shape::Map(Arc::new(value)), most, 2));
    }
    let required = |property: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == property))
    };
    let mut least = 2;
    let mut fields = Vec::new();
    for (key, property) in schema.pairs("properties") {
        let Some(decl) =
            declare(property, is_embedded_resource(property), &format!("{name}.{key}"))
        else {
            continue;
        };
        // A member with a default may be absent.
        if required(key) && property["default"].is_null() {
            least += key.len() as u64 + decl.min_serialized + 4;
        }
        if let Some(name) = escape(key) {
            fields.push(Field { name: name.into(), key: key.as_str().into(), decl });
        }
    }
    Some(Decl::new(Shape::Object(Object::new(name, fields)), 0, least))
}

fn text(schema: &Value) -> Decl {
    match schema["format"].as_str() {
        Some("byte") => Decl::new(Shape::Bytes, max_length(schema).unwrap_or(MAX_TEXT), 2),
        Some("duration") => Decl::new(Shape::Duration, 32, 3),
        Some("date") => Decl::new(Shape::Date, 12, 12),
        Some("date-time") => Decl::new(Shape::Timestamp, 32, 21),
        _ => {
            let longest = || {
                let values = schema["enum"].as_array().filter(|values| !values.is_empty())?;
                values.iter().filter_map(Value::as_str).map(|text| text.len() as u64).max()
            };
            // A character has up to four bytes.
            let most = max_length(schema).map(|most| most.saturating_mul(4));
            Decl::new(Shape::String, most.or_else(longest).unwrap_or(MAX_TEXT), 2)
        }
    }
}

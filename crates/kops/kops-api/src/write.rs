//! Converts the hub's form to a version's, omitting empty fields as Go's encoder does.

use api_meta::is_zero;
use serde_json::{Map, Value};

use crate::schema::{self, Field, Shape, Version};

/// Writes the fields of a type. `parent` is the enclosing type in the hub.
pub(crate) fn structure(
    version: Version,
    name: &str,
    hub: &Map<String, Value>,
    parent: &Map<String, Value>,
) -> Map<String, Value> {
    let fields = schema::of(name).fields.iter();
    let written = fields.filter_map(|field| {
        let value = written(version, field, hub, parent)?;
        Some((field.name(version)?.to_owned(), value))
    });
    written.collect()
}

fn written(
    version: Version,
    field: &Field,
    hub: &Map<String, Value>,
    parent: &Map<String, Value>,
) -> Option<Value> {
    field.name(version)?;
    let place = field.hub.as_ref()?;
    if let (Shape::Pointer(inner), true) = (&field.shape, place.path.is_empty()) {
        let Shape::Struct(name) = **inner else { return None };
        return Some(structure(version, name, hub, parent))
            .filter(|s| !s.is_empty())
            .map(Value::Object);
    }
    let found = at(if place.from_parent { parent } else { hub }, &place.path);
    let mut value = match found.filter(|value| !value.is_null()) {
        Some(found) => shaped(version, &field.shape, found, hub)?,
        None => absent(version, field, hub)?,
    };
    if let (true, Value::Bool(flag)) = (field.is_negated(version), &mut value) {
        *flag = !*flag;
    }
    let left_out = match &field.shape {
        Shape::Pointer(_) | Shape::Struct(_) => false,
        Shape::Loose(_) => version == Version::V1alpha2 && is_zero(&value),
        _ => !field.keep && is_zero(&value),
    };
    (!left_out).then_some(value)
}

/// Returns the value of a field that the hub does not have; `None` to omit it.
fn absent(version: Version, field: &Field, hub: &Map<String, Value>) -> Option<Value> {
    match &field.shape {
        // A structure is never absent in Go, regardless of its tag.
        Shape::Struct(name) | Shape::Loose(name) => {
            Some(Value::Object(structure(version, name, &Map::new(), hub)))
        }
        Shape::Pointer(inner) => match **inner {
            Shape::Struct(name) if schema::of(name).reaches_up => {
                let written = structure(version, name, &Map::new(), hub);
                (!written.is_empty()).then_some(Value::Object(written))
            }
            _ => field.keep.then_some(Value::Null),
        },
        Shape::List(_) | Shape::Map(_) | Shape::Time => field.keep.then_some(Value::Null),
        shape => field.keep.then(|| zero(shape)),
    }
}

fn shaped(
    version: Version,
    shape: &Shape,
    value: &Value,
    hub: &Map<String, Value>,
) -> Option<Value> {
    Some(match (shape, value) {
        (Shape::Pointer(inner), value) => return shaped(version, inner, value, hub),
        (Shape::Struct(name) | Shape::Loose(name), Value::Object(fields)) => {
            Value::Object(structure(version, name, fields, hub))
        }
        (Shape::List(inner), Value::Array(items)) => {
            items.iter().filter_map(|item| shaped(version, inner, item, hub)).collect()
        }
        (Shape::Map(inner), Value::Object(members)) => {
            let members = members.iter();
            let written =
                members.filter_map(|(k, v)| Some((k.clone(), shaped(version, inner, v, hub)?)));
            Value::Object(written.collect())
        }
        (Shape::Role, Value::String(role))
            if version == Version::V1alpha2 && role == "ControlPlane" =>
        {
            "Master".into()
        }
        (_, value) => value.clone(),
    })
}

/// Returns Go's zero value.
pub(crate) fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::Text | Shape::Role | Shape::Bytes => "".into(),
        Shape::Bool => false.into(),
        Shape::Int { .. } | Shape::IntOrString => 0.into(),
        Shape::Quantity => "0".into(),
        Shape::Duration => "0s".into(),
        Shape::Struct(_) | Shape::Loose(_) | Shape::Object | Shape::Map(_) => {
            Value::Object(Map::new())
        }
        Shape::List(_) => Value::Array(Vec::new()),
        Shape::Time | Shape::Pointer(_) => Value::Null,
    }
}

fn at<'t>(tree: &'t Map<String, Value>, path: &[&str]) -> Option<&'t Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(tree.get(*first)?, |at, name| at.get(name))
}

//! Converts a version's form to the hub's, strictly.

use api_config::GoDuration;
use api_meta::{FieldError, Path, Quantity, Timestamp};
use base64::Engine as _;
use serde_json::{Map, Value};

use crate::{
    schema::{self, Field, Shape, Version},
    write::zero,
};

/// Reads one object, and collects the field errors.
pub(crate) struct Reader {
    /// The version of the read form.
    pub(crate) version: Version,
    /// The field errors.
    pub(crate) problems: Vec<FieldError>,
}

impl Reader {
    /// Reads the fields of a type into `out`. `parent` is the enclosing type as read so far.
    pub(crate) fn structure(
        &mut self,
        name: &str,
        fields: Map<String, Value>,
        at: &Path,
        out: &mut Map<String, Value>,
        parent: Option<&mut Map<String, Value>>,
    ) {
        let known = schema::of(name);
        let mut parent = parent;
        for (key, value) in fields {
            let at = at.child(&key);
            match known.fields.iter().find(|f| f.name(self.version) == Some(&key)) {
                Some(_) if value.is_null() => {}
                Some(field) => self.field(field, value, &at, out, parent.as_deref_mut()),
                None => self.problems.push(FieldError::forbidden(&at, "unknown field")),
            }
        }
    }

    fn field(
        &mut self,
        field: &Field,
        value: Value,
        at: &Path,
        out: &mut Map<String, Value>,
        parent: Option<&mut Map<String, Value>>,
    ) {
        let place = field.hub.as_ref();
        if place.is_some_and(|place| place.path.is_empty()) {
            if let (Shape::Pointer(inner), Value::Object(fields)) = (&field.shape, value)
                && let Shape::Struct(name) = **inner
            {
                self.structure(name, fields, at, out, parent);
            }
            return;
        }
        let Some(mut value) = self.value(&field.shape, value, at, out) else { return };
        if let (true, Value::Bool(flag)) = (field.is_negated(self.version), &mut value) {
            *flag = !*flag;
        }
        let Some(place) = place else { return };
        // Only v1alpha2 has moved fields; in the other versions the path is the name.
        match (place.from_parent, parent) {
            (true, Some(parent)) => merge(parent, &place.path, value),
            (true, None) => {}
            (false, _) => merge(out, &place.path, value),
        }
    }

    /// Returns a value in canonical form. In a list or a map `null` is the type's zero value, as in Go. An invalid
    /// value is reported and returns `None`.
    fn value(
        &mut self,
        shape: &Shape,
        value: Value,
        at: &Path,
        around: &mut Map<String, Value>,
    ) -> Option<Value> {
        match (shape, value) {
            (Shape::Pointer(inner), value) => self.value(inner, value, at, around),
            (Shape::Struct(name) | Shape::Loose(name), Value::Object(fields)) => {
                let mut out = Map::new();
                self.structure(name, fields, at, &mut out, Some(around));
                Some(Value::Object(out))
            }
            (Shape::List(inner), Value::Array(items)) => {
                let items = items.into_iter().enumerate();
                let read = items.map(|(i, v)| match v {
                    Value::Null => Some(zero(inner)),
                    v => self.value(inner, v, &at.index(i), around),
                });
                read.collect::<Option<Vec<_>>>().map(Value::Array)
            }
            (Shape::Map(inner), Value::Object(members)) => {
                let read = members.into_iter().map(|(key, v)| {
                    let value = match v {
                        Value::Null => zero(inner),
                        v => self.value(inner, v, &at.key(&key), around)?,
                    };
                    Some((key, value))
                });
                read.collect::<Option<Map<_, _>>>().map(Value::Object)
            }
            (shape, value) => match scalar(shape, value, self.version, at) {
                Ok(value) => Some(value),
                Err(problem) => {
                    self.problems.push(problem);
                    None
                }
            },
        }
    }

    /// Validates and canonicalizes a scalar of the hub.
    pub(crate) fn scalar(shape: &Shape, value: Value, at: &Path) -> Result<Value, FieldError> {
        scalar(shape, value, Version::Hub, at)
    }
}

fn scalar(shape: &Shape, value: Value, version: Version, at: &Path) -> Result<Value, FieldError> {
    canonical(shape, &value, version).map_err(|wanted| {
        // Shorten a structure in the place of a scalar.
        let shown = match value {
            Value::Array(_) => Value::from("[...]"),
            Value::Object(_) => Value::from("{...}"),
            other => other,
        };
        FieldError::type_invalid(at, shown, wanted)
    })
}

/// Returns a scalar in canonical form, or the expected form as the error.
fn canonical(shape: &Shape, value: &Value, version: Version) -> Result<Value, &'static str> {
    let text = value.as_str();
    match shape {
        Shape::Text => text.map(Value::from).ok_or("must be a string"),
        Shape::Role => match text.ok_or("must be a string")? {
            "Master" if version == Version::V1alpha2 => Ok("ControlPlane".into()),
            role => Ok(role.into()),
        },
        Shape::Bool => value.as_bool().map(Value::from).ok_or("must be true or false"),
        Shape::Int { least, most } => {
            let number = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
            let fits = number.is_some_and(|n| (*least..=*most).contains(&n));
            fits.then(|| value.clone()).ok_or("must be a whole number that fits its field")
        }
        Shape::Quantity => {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return Err("must be a quantity such as 100m or 1Gi"),
            };
            let quantity = Quantity::parse(&text);
            quantity
                .map(|q| q.to_string().into())
                .map_err(|_| "must be a quantity such as 100m or 1Gi")
        }
        Shape::Duration => {
            let duration = text.and_then(|text| text.parse::<GoDuration>().ok());
            duration.map(|d| d.to_string().into()).ok_or("must be a duration such as 1m30s")
        }
        Shape::IntOrString => match value {
            Value::String(_) => Ok(value.clone()),
            Value::Number(n) if n.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => {
                Ok(value.clone())
            }
            _ => Err("must be a whole number or a string"),
        },
        Shape::Time => {
            let time = text.and_then(|text| text.parse::<Timestamp>().ok());
            time.map(|time| time.to_string().into())
                .ok_or("must be a time such as 2026-01-02T03:04:05Z")
        }
        Shape::Bytes => {
            let bytes =
                text.filter(|t| base64::engine::general_purpose::STANDARD.decode(t).is_ok());
            bytes.map(Value::from).ok_or("must be bytes in base64")
        }
        Shape::Object => value.is_object().then(|| value.clone()).ok_or("must be a map"),
        Shape::Struct(_) | Shape::Loose(_) | Shape::Map(_) => Err("must be a map"),
        Shape::List(_) => Err("must be a list"),
        Shape::Pointer(inner) => canonical(inner, value, version),
    }
}

/// Sets a value at a path; maps at the same path are merged.
fn merge(out: &mut Map<String, Value>, path: &[&str], value: Value) {
    let Some((first, rest)) = path.split_first() else { return };
    let slot = out.entry(*first).or_insert(Value::Null);
    if rest.is_empty() {
        join(slot, value);
        return;
    }
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    if let Value::Object(members) = slot {
        merge(members, rest, value);
    }
}

fn join(slot: &mut Value, value: Value) {
    match (slot, value) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in new {
                join(old.entry(key).or_insert(Value::Null), value);
            }
        }
        (slot, value) => *slot = value,
    }
}

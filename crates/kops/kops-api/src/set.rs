//! Sets and unsets fields from text, such as `--set spec.networking.calico.bpfEnabled=true`.

use api_meta::{FieldError, Path, Tree as _};
use serde_json::{Map, Value, json};

use crate::{
    object::Object,
    read::Reader,
    schema::{self, Field, Shape, Version},
    write::zero,
};

/// A step of a path: a field, and optionally an item of its list.
struct Step<'p> {
    name: &'p str,
    item: Option<Item>,
}

#[derive(Clone, Copy)]
enum Item {
    Every,
    Number(usize),
}

/// The longest list that setting an item may create.
const LONGEST: usize = 100;

impl Object {
    /// Sets the field at a path of the hub (`spec.a.b` or `cluster.spec.a.b`). For a list, values separated by commas
    /// are appended. For a map, the text is `key=value`.
    pub fn set_field(&mut self, path: &str, text: &str) -> Result<(), FieldError> {
        self.change(path, &mut |slot, shape, at| assign(slot, shape, text, at))
    }

    /// Unsets the field at a path.
    pub fn unset_field(&mut self, path: &str) -> Result<(), FieldError> {
        self.change(path, &mut |slot, _, _| {
            *slot = Value::Null;
            Ok(())
        })?;
        *self = self.normalized();
        Ok(())
    }

    fn change(&mut self, path: &str, act: &mut Act<'_>) -> Result<(), FieldError> {
        let (kind, at) = (self.kind, Path::new(path));
        let plain = path.strip_prefix("cluster.").unwrap_or(path);
        let steps = steps(plain)
            .ok_or_else(|| FieldError::invalid(&at, path, "is not a path of fields"))?;
        let mut tree = json!({"metadata": self.metadata.take(), "spec": self.spec.take()});
        let outcome = walk(&mut tree, kind.name(), &steps, &at, act);
        self.metadata = tree.at("metadata").clone();
        self.spec = tree.at("spec").clone();
        outcome
    }
}

type Act<'a> = dyn FnMut(&mut Value, &Shape, &Path) -> Result<(), FieldError> + 'a;

fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let step = |part| {
        let (name, item) = match str::split_once(part, '[') {
            Some((name, item)) => (name, Some(item.strip_suffix(']')?)),
            None => (part, None),
        };
        let item = match item {
            None => None,
            Some("*") => Some(Item::Every),
            Some(number) => Some(Item::Number(number.parse().ok().filter(|n| *n < LONGEST)?)),
        };
        Some(Step { name, item })
    };
    path.split('.').map(step).collect()
}

fn walk(
    slot: &mut Value,
    of: &str,
    steps: &[Step<'_>],
    at: &Path,
    act: &mut Act<'_>,
) -> Result<(), FieldError> {
    let Some((step, rest)) = steps.split_first() else { return Ok(()) };
    let known = |field: &&Field| field.name(Version::Hub) == Some(step.name);
    let Some(field) = schema::of(of).fields.iter().find(known) else {
        return Err(FieldError::forbidden(at, format!("unknown field {:?}", step.name)));
    };
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    let Some(members) = slot.as_object_mut() else { return Ok(()) };
    let next = members.entry(step.name).or_insert(Value::Null);
    let mut shape = &field.shape;
    if let Shape::Pointer(inner) = shape {
        shape = inner;
    }
    let Some(item) = step.item else { return into(next, shape, rest, at, act) };
    let Shape::List(inner) = shape else {
        return Err(FieldError::invalid(at, step.name, "is not a list"));
    };
    if next.is_null() {
        *next = json!([]);
    }
    let Some(items) = next.as_array_mut() else { return Ok(()) };
    match item {
        Item::Every => items.iter_mut().try_for_each(|next| into(next, inner, rest, at, act)),
        Item::Number(number) => {
            if items.len() <= number {
                items.resize(number + 1, zero(inner));
            }
            into(&mut items[number], inner, rest, at, act)
        }
    }
}

fn into(
    slot: &mut Value,
    shape: &Shape,
    rest: &[Step<'_>],
    at: &Path,
    act: &mut Act<'_>,
) -> Result<(), FieldError> {
    match shape {
        _ if rest.is_empty() => act(slot, shape, at),
        Shape::Pointer(inner) => into(slot, inner, rest, at, act),
        Shape::Struct(name) | Shape::Loose(name) => walk(slot, name, rest, at, act),
        _ => Err(FieldError::forbidden(at, "the path continues below a scalar")),
    }
}

fn assign(slot: &mut Value, shape: &Shape, text: &str, at: &Path) -> Result<(), FieldError> {
    match shape {
        Shape::Pointer(inner) => return assign(slot, inner, text, at),
        Shape::List(inner) => {
            let mut items = slot.as_array().cloned().unwrap_or_default();
            for part in text.split(',') {
                let mut item = Value::Null;
                assign(&mut item, inner, part, at)?;
                items.push(item);
            }
            *slot = Value::Array(items);
            return Ok(());
        }
        // An empty text creates an empty structure or map.
        Shape::Map(_) | Shape::Struct(_) | Shape::Loose(_) if text.is_empty() => {
            if slot.is_null() {
                *slot = Value::Object(Map::new());
            }
            return Ok(());
        }
        Shape::Map(inner) => {
            let (key, text) = text.split_once('=').unwrap_or((text, ""));
            let mut value = Value::Null;
            assign(&mut value, inner, text, at)?;
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            if let Some(members) = slot.as_object_mut() {
                members.insert(key.to_owned(), value);
            }
            return Ok(());
        }
        Shape::Struct("EnvVar") => {
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            *slot = json!({"name": name, "value": value});
            return Ok(());
        }
        _ => {}
    }
    let written = match shape {
        Shape::Bool => match text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => true.into(),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => false.into(),
            other => other.into(),
        },
        Shape::Int { .. } => text.parse::<i64>().map_or(text.into(), Value::from),
        Shape::IntOrString => text.parse::<i32>().map_or(text.into(), Value::from),
        _ => Value::from(text),
    };
    *slot = Reader::scalar(shape, written, at)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Kind;

    #[test]
    fn sets_fields_by_type() {
        for (path, text, expected) in [
            (
                "cluster.spec.networking.calico.bpfEnabled",
                "true",
                json!({"networking": {"calico": {"bpfEnabled": true}}}),
            ),
            (
                "spec.nodePortAccess",
                "1.2.3.4/32,10.0.0.0/8",
                json!({"nodePortAccess": ["1.2.3.4/32", "10.0.0.0/8"]}),
            ),
            ("spec.addons[1].manifest", "x", json!({"addons": [{}, {"manifest": "x"}]})),
            ("spec.cloudLabels", "a=b=c", json!({"cloudLabels": {"a": "b=c"}})),
            ("spec.kubelet.maxPods", "50", json!({"kubelet": {"maxPods": 50}})),
            ("spec.networking.cilium", "", json!({"networking": {"cilium": {}}})),
            ("spec.etcdClusters[*].version", "3.6.12", json!({"etcdClusters": []})),
        ] {
            let mut object = Object::new(Kind::Cluster, "a");
            object.set_field(path, text).unwrap();
            assert_eq!(object.spec, expected, "{path}");
        }
    }

    #[test]
    fn rejects_wrong_paths_and_values() {
        for (path, text) in [
            ("spec.chanel", "x"),
            ("spec.channel.x", "x"),
            ("spec.channel[0]", "x"),
            ("spec.addons[9999999999].manifest", "x"),
            ("spec.addons[1000].manifest", "x"),
            ("spec.addons[a", "x"),
            ("", "x"),
            ("spec.kubelet.maxPods", "many"),
            ("spec.kubelet.anonymousAuth", "perhaps"),
            ("spec.networking.cilium", "x"),
        ] {
            let mut object = Object::new(Kind::Cluster, "a");
            assert!(object.set_field(path, text).is_err(), "{path}");
        }
    }

    #[test]
    fn unsets_fields() {
        let mut object = Object::new(Kind::Cluster, "a");
        object.set_field("spec.kubelet.maxPods", "50").unwrap();
        object.set_field("spec.channel", "alpha").unwrap();
        object.unset_field("spec.kubelet").unwrap();
        assert_eq!((object.spec.has("kubelet"), object.spec.text("channel")), (false, "alpha"));
    }
}

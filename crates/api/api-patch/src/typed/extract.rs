//! Extracts the set of fields of an object.

use std::collections::HashSet;

use api_schema::{NodeId, Schema, Shape};
use serde_json::{Map, Value};

use super::Form;
use crate::error::{go_print, go_syntax};
use crate::fieldset::{FieldSet, Part, display, field, is_member, kids};

/// Returns the fields of `object`, or an error message in upstream's words per mistake.
pub(crate) fn extract(
    schema: &Schema,
    node: Option<NodeId>,
    object: &Value,
) -> Result<FieldSet, Vec<String>> {
    let mut walk = Walk { schema, path: Vec::new(), errors: Vec::new() };
    let part = walk.value(node, object);
    if walk.errors.is_empty() { Ok(FieldSet(part.kids)) } else { Err(walk.errors) }
}

struct Walk<'a> {
    schema: &'a Schema,
    path: Vec<String>,
    errors: Vec<String>,
}

impl Walk<'_> {
    fn value(&mut self, id: Option<NodeId>, value: &Value) -> Part {
        api_meta::steps::spend(1);
        let form = Form::of(self.schema, id, Some(value));
        match (form, value) {
            (Form::Struct(_) | Form::Map(_), Value::Object(map)) => self.fields(form, map),
            (Form::Set | Form::MapList { .. }, Value::Array(items)) => self.items(id, form, items),
            (_, Value::Null) => Part::leaf(),
            (Form::Leaf, _) => {
                self.fits(id, value);
                Part::leaf()
            }
            // Without a type, a schema with properties accepts values of every type.
            (Form::Struct(_), _) if self.is_untyped(id) => Part::leaf(),
            (Form::Struct(_) | Form::Map(_), other) => self.mismatch("map", other),
            (Form::Set | Form::MapList { .. }, other) => self.mismatch("list", other),
        }
    }

    fn is_untyped(&self, id: Option<NodeId>) -> bool {
        let rules = id.and_then(|id| self.schema.node(id).rules.as_deref());
        rules.is_some_and(|rules| rules.untyped)
    }

    /// Reports errors inside a value that is owned as a whole.
    fn fits(&mut self, id: Option<NodeId>, value: &Value) {
        let Some(id) = id else { return };
        match (&self.schema.node(id).shape, value) {
            (_, Value::Null) => {}
            (Shape::Struct(body), Value::Object(members)) => {
                for (name, value) in members {
                    let known = body.field(name).map(|field| field.node);
                    self.path.push(field(name));
                    match known {
                        None if !body.open => self.error("field not declared in schema"),
                        known => self.fits(known, value),
                    }
                    self.path.pop();
                }
            }
            (Shape::Map { value: node, .. }, Value::Object(members)) => {
                for (name, value) in members {
                    self.path.push(field(name));
                    self.fits(Some(*node), value);
                    self.path.pop();
                }
            }
            (Shape::List { item, .. }, Value::Array(items)) => {
                for (index, value) in items.iter().enumerate() {
                    self.path.push(format!("i:{index}"));
                    self.fits(Some(*item), value);
                    self.path.pop();
                }
            }
            (Shape::Struct(_), _) if self.is_untyped(Some(id)) => {}
            (Shape::Struct(_) | Shape::Map { .. }, other) => drop(self.mismatch("map", other)),
            (Shape::List { .. }, other) => drop(self.mismatch("list", other)),
            (shape, value) => self.scalar(shape, value),
        }
    }

    fn scalar(&mut self, shape: &Shape, value: &Value) {
        let (expected, fits) = match shape {
            Shape::String | Shape::Bytes | Shape::Duration => ("string", value.is_string()),
            Shape::Boolean => ("boolean", value.is_boolean()),
            Shape::Integer { .. } | Shape::Number => ("numeric (int or float)", value.is_number()),
            _ => return,
        };
        if !fits {
            // Go's message shows the type that holds the value.
            let actual = match (expected, value) {
                ("numeric (int or float)", Value::String(_)) => "string".to_owned(),
                ("numeric (int or float)", Value::Bool(_)) => "bool".to_owned(),
                ("numeric (int or float)", Value::Array(_)) => "[]interface {}".to_owned(),
                ("numeric (int or float)", _) => "map[string]interface {}".to_owned(),
                ("boolean", value) => format!("&{{{}}}", go_print(value)),
                (_, value) => format!("&value.valueUnstructured{{Value:{}}}", go_syntax(value)),
            };
            self.error(&format!("expected {expected}, got {actual}"));
        }
    }

    fn fields(&mut self, form: Form, map: &Map<String, Value>) -> Part {
        let mut kids = Map::new();
        for (name, value) in map {
            self.path.push(field(name));
            if let Form::Struct(s) = form
                && s.field(name).is_none()
                && !s.open
            {
                self.error("field not declared in schema");
            } else {
                let mut part = self.value(form.child(name), value);
                let blank = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                part.member |= blank || form.field(name).is_none();
                if let Some(element) = self.path.last() {
                    part.attach(element.clone(), &mut kids);
                }
            }
            self.path.pop();
        }
        Part { member: false, kids }
    }

    fn items(&mut self, id: Option<NodeId>, form: Form, items: &[Value]) -> Part {
        let of_set = match id.map(|id| &self.schema.node(id).shape) {
            Some(Shape::List { item, .. }) => Some(*item),
            _ => None,
        };
        let mut kids = Map::new();
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let element = match unfit_element(form, item) {
                Some(problem) => Err(problem.to_owned()),
                None => form.element(self.schema, item).map_err(no_keys),
            };
            let element = match element {
                Ok(element) => element,
                Err(problem) => {
                    self.error(&format!("element {index}: {problem}"));
                    // Items after one without an identity are not checked.
                    break;
                }
            };
            if !seen.insert(element.clone()) {
                self.error(&format!("duplicate entries for key {}", display(&[&element])));
            }
            self.path.push(element.clone());
            let mut part = match form.item() {
                Some(node) => self.value(Some(node), item),
                None => {
                    self.fits(of_set, item);
                    Part::default()
                }
            };
            part.member = true;
            part.attach(element, &mut kids);
            self.path.pop();
        }
        Part { member: false, kids }
    }

    fn mismatch(&mut self, expected: &str, actual: &Value) -> Part {
        self.error(&format!("expected {expected}, got &{{{}}}", go_print(actual)));
        Part::default()
    }

    fn error(&mut self, text: &str) {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        self.errors.push(format!("{}: {text}", display(&path)));
    }
}

/// Returns the reason why a value cannot be an item of a list with this form.
fn unfit_element(form: Form, item: &Value) -> Option<&'static str> {
    Some(match (form.item().is_some(), item) {
        (true, Value::Object(_)) => return None,
        (true, Value::Null) => "associative list with keys may not have a null element",
        (true, _) => "associative list with keys may not have non-map elements",
        (false, Value::Object(_)) => {
            "associative list without keys has an element that's a map type"
        }
        (false, Value::Array(_)) => "not supported: associative list with lists as elements",
        (false, Value::Null) => {
            "associative list without keys has an element that's an explicit null"
        }
        (false, _) => return None,
    })
}

fn no_keys(keys: &[std::sync::Arc<str>]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
    let keys = keys.join(" ");
    format!(
        "associative list with keys has an element that omits all key fields [{keys}] (and doesn't \
        have default values for any key fields)"
    )
}

/// Adds the declared parent fields of each path to the set. Map keys and list items on the way are not added, because a
/// manager owns them only by setting them.
pub(crate) fn with_named_parents(
    schema: &Schema,
    node: Option<NodeId>,
    set: &FieldSet,
) -> FieldSet {
    FieldSet(name_parents(schema, node, &set.0))
}

fn name_parents(
    schema: &Schema,
    id: Option<NodeId>,
    set: &Map<String, Value>,
) -> Map<String, Value> {
    let form = Form::of(schema, id, None);
    let mut result = Map::new();
    for (element, node) in kids(set) {
        let name = element.strip_prefix("f:");
        let child = match name {
            Some(name) => form.child(name),
            None => form.item(),
        };
        let declared = name.is_some_and(|name| form.field(name).is_some());
        let part =
            Part { member: is_member(node) || declared, kids: name_parents(schema, child, node) };
        part.attach(element.clone(), &mut result);
    }
    result
}

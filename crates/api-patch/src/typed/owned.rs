//! What the creator of an object owns: the difference to nothing, written as text at once.
//!
//! Most writes of a busy cluster are creates, and a tree of paths that is only there to be encoded costs more than all
//! the rest of tracking. [`super::diff`] says the same of an object and nothing, and a test compares the two.

use api_schema::{NodeId, Schema};
use serde_json::{Map, Value};

use super::{
    Form,
    diff::{UNOWNED, UNOWNED_METADATA, always_present},
};
use crate::fieldset::{FieldSet, field, is_member};

/// Writes the fields of a new object, as a `fieldsV1` document. `reset`: those that its endpoint does not set.
pub(crate) fn write(
    out: &mut Vec<u8>,
    schema: &Schema,
    node: Option<NodeId>,
    object: &Value,
    reset: Option<&FieldSet>,
) {
    let form = Form::of(schema, node, Some(object));
    let mut writer = Writer { out, schema };
    let reset = reset.map(|set| &set.0);
    writer.out.push(b'{');
    writer.members(form, object, Parent::There, &UNOWNED, reset, Depth::Object);
    writer.out.push(b'}');
}

/// Whether a member is in the metadata, of which not all is owned.
#[derive(Clone, Copy, PartialEq)]
enum Depth {
    Object,
    Below,
}

/// What stood in the place of a value before it was created.
#[derive(Clone, Copy, PartialEq)]
enum Parent {
    Absent,
    /// There and empty: the object itself, and Go's structs that are never absent.
    There,
}

/// How a node begins whose own path is owned, beside those in it.
const OWNED: &[u8] = br#"{".":{}"#;

type Reset<'a> = Option<&'a Map<String, Value>>;

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    schema: &'a Schema,
}

impl Writer<'_> {
    /// Writes the members of an object that are owned, each with its element.
    fn members(
        &mut self,
        form: Form<'_>,
        object: &Value,
        parent: Parent,
        skip: &[&str],
        reset: Reset<'_>,
        depth: Depth,
    ) {
        for (name, value) in object.as_object().into_iter().flatten() {
            if skip.contains(&name.as_str()) {
                continue;
            }
            let element = reset.map(|_| field(name));
            let reset = element.and_then(|element| reset?.get(&element)?.as_object());
            if reset.is_some_and(is_member) {
                continue;
            }
            let field = form.field(name);
            let before = match field {
                Some(f) if parent == Parent::There && always_present(f) => Parent::There,
                _ => Parent::Absent,
            };
            let child = field.map_or_else(|| form.child(name), |field| Some(field.node));
            let start = self.open("f:", name);
            let owned = if depth == Depth::Object && name == "metadata" {
                let form = Form::of(self.schema, child, Some(&Value::Object(Map::new())));
                self.out.push(b'{');
                self.members(form, value, before, &UNOWNED_METADATA, reset, Depth::Below);
                self.close(false)
            } else {
                self.value(child, value, before, reset)
            };
            if !owned {
                self.out.truncate(start);
            }
        }
    }

    /// Writes the element of a path and gives where it begins, to be cut off if nothing comes of it.
    fn open(&mut self, prefix: &str, name: &str) -> usize {
        let start = self.out.len();
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
        let plain = |b: u8| b >= b' ' && !matches!(b, b'"' | b'\\');
        if name.bytes().all(plain) {
            self.out.push(b'"');
            self.out.extend_from_slice(prefix.as_bytes());
            self.out.extend_from_slice(name.as_bytes());
            self.out.push(b'"');
        } else {
            // The prefix needs no escapes, and writing text to memory cannot fail.
            let quote = self.out.len();
            let _ = serde_json::to_writer(&mut *self.out, name);
            self.out.splice(quote + 1..quote + 1, prefix.bytes());
        }
        self.out.push(b':');
        start
    }

    /// Ends what an opening brace or [`OWNED`] began; false if nothing is in it. `member`: its own path is owned.
    fn close(&mut self, member: bool) -> bool {
        if member && self.out.ends_with(OWNED) {
            self.out.truncate(self.out.len() - OWNED.len() + 1);
        }
        let empty = self.out.last() == Some(&b'{');
        self.out.push(b'}');
        member || !empty
    }

    /// Writes what is owned of a value; false if nothing is.
    fn value(
        &mut self,
        id: Option<NodeId>,
        value: &Value,
        before: Parent,
        reset: Reset<'_>,
    ) -> bool {
        api_meta::steps::spend(1);
        let absent = before == Parent::Absent;
        let form = Form::of(self.schema, id, Some(value).filter(|value| !value.is_null()));
        let fits = match form {
            Form::Leaf => false,
            Form::Set | Form::MapList { .. } => value.is_array(),
            _ => value.is_object(),
        };
        if is_blank(value) || !fits {
            self.out.extend_from_slice(b"{}");
            return absent || value.is_array() || !is_blank(value);
        }
        self.out.extend_from_slice(if absent { OWNED } else { b"{" });
        let inside = self.out.len();
        let odd = match form {
            Form::Set | Form::MapList { .. } => self.items(form, value, reset),
            _ => {
                self.members(form, value, before, &[], reset, Depth::Below);
                false
            }
        };
        if odd && !absent {
            // Only elements without their keys make a list owned that was there before; validation refuses those.
            let comma: &[u8] = if self.out.len() > inside { b"," } else { b"" };
            self.out.splice(inside..inside, [&OWNED[1..], comma].concat());
        }
        self.close(absent || odd)
    }

    /// Writes a list's elements, sorted; true if one lacks a key.
    fn items(&mut self, form: Form<'_>, list: &Value, reset: Reset<'_>) -> bool {
        let mut odd = false;
        let mut elements: Vec<(String, &Value)> = Vec::new();
        for item in list.as_array().into_iter().flatten() {
            match form.element(self.schema, item) {
                Ok(element) => elements.push((element, item)),
                Err(_) => odd = true,
            }
        }
        elements.sort_by(|a, b| a.0.cmp(&b.0));
        for same in elements.chunk_by(|a, b| a.0 == b.0) {
            let [(element, item), rest @ ..] = same else { continue };
            let reset = reset.and_then(|reset| reset.get(element)?.as_object());
            if reset.is_some_and(is_member) {
                continue;
            }
            let start = self.open("", element);
            let owned = match form.item() {
                // Elements that share a key are owned as one.
                Some(node) if rest.is_empty() => {
                    self.value(Some(node), item, Parent::Absent, reset)
                }
                _ => {
                    self.out.extend_from_slice(b"{}");
                    true
                }
            };
            if !owned {
                self.out.truncate(start);
            }
        }
        odd
    }
}

/// What Go cannot tell from nothing.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(true) => false,
    }
}

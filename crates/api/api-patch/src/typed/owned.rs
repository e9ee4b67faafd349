//! Writes the field set of a new object directly as text.
//!
//! Most writes in a busy cluster are creates, and building a tree of paths only to encode it costs more than all other
//! tracking. A test compares the output with [`super::diff`] against an absent object.

use api_meta::is_zero;
use api_schema::{NodeId, Schema};
use serde_json::{Map, Value};

use super::{
    Form,
    diff::{UNOWNED, UNOWNED_METADATA, always_present},
};
use crate::fieldset::{FieldSet, field, is_member};

/// Writes the fields of a new object as a `fieldsV1` document, without those in `reset`.
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
    writer.members(form, object, Parent::Present, &UNOWNED, reset, Depth::Object);
    writer.out.push(b'}');
}

/// The level of a member. Some metadata of the object has no owner.
#[derive(Clone, Copy, PartialEq)]
enum Depth {
    Object,
    Below,
}

/// The state of a parent value before the create.
#[derive(Clone, Copy, PartialEq)]
enum Parent {
    Absent,
    /// Present and empty: the object itself, and Go's structs, which are never absent.
    Present,
}

/// The start of a node whose own path is owned besides its members.
const OWNED: &[u8] = br#"{".":{}"#;

type Reset<'a> = Option<&'a Map<String, Value>>;

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    schema: &'a Schema,
}

impl Writer<'_> {
    /// Writes the owned members of an object, each with its path element.
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
                Some(f) if parent == Parent::Present && always_present(f) => Parent::Present,
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

    /// Writes a path element, and returns its offset for truncation if it stays empty.
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
            // The prefix needs no escapes, and writing to memory cannot fail.
            let quote = self.out.len();
            let _ = serde_json::to_writer(&mut *self.out, name);
            self.out.splice(quote + 1..quote + 1, prefix.bytes());
        }
        self.out.push(b':');
        start
    }

    /// Closes a node. Returns `false` if it is empty. `member` is `true` if its own path is owned.
    fn close(&mut self, member: bool) -> bool {
        if member && self.out.ends_with(OWNED) {
            self.out.truncate(self.out.len() - OWNED.len() + 1);
        }
        let empty = self.out.last() == Some(&b'{');
        self.out.push(b'}');
        member || !empty
    }

    /// Writes the owned fields of a value. Returns `false` if it has no owned fields.
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
        if is_zero(value) || !fits {
            self.out.extend_from_slice(b"{}");
            return absent || value.is_array() || !is_zero(value);
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
            // A list that existed before is owned only if its items lack keys, which validation rejects.
            let comma: &[u8] = if self.out.len() > inside { b"," } else { b"" };
            self.out.splice(inside..inside, [&OWNED[1..], comma].concat());
        }
        self.close(absent || odd)
    }

    /// Writes a list's items in order. Returns `true` if an item lacks its keys.
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
                // Items with the same key are owned as one.
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

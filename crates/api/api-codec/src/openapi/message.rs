//! The tables of messages, and the encoder of JSON documents by these tables.

use serde_json::Value;

use crate::protobuf::wire;

/// The encoding of one member.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Text,
    Flag,
    Integer,
    Double,
    Message(&'static Message),
    /// A repeated field: one field for each item of a list.
    Each(&'static Form),
    /// A message that contains only the value, under this number.
    Within(u32, &'static Form),
    /// A message that contains the value under the number of the first matching case.
    OneOf(&'static [Case]),
    /// A value of any type, as YAML (JSON is valid YAML).
    Any,
}

/// A case of a choice: its condition, its field number and its encoding.
pub(super) type Case = (fn(&Value) -> bool, u32, Form);

/// A message: its members by name.
pub(super) struct Message {
    pub(super) fields: &'static [(&'static str, u32, Form)],
    /// The field of members that begin with `x-`; 0 if they are treated like other members.
    pub(super) extensions: u32,
    /// The field of all other members, each with its name.
    pub(super) rest: Option<(u32, Form)>,
}

impl Message {
    pub(super) const fn new(fields: &'static [(&'static str, u32, Form)], extensions: u32) -> Self {
        Self { fields, extensions, rest: None }
    }

    /// Creates a message of names and their values.
    pub(super) const fn map(value: Form) -> Self {
        Self { fields: &[], extensions: 0, rest: Some((1, value)) }
    }
}

pub(super) fn encode(out: &mut Vec<u8>, value: &Value, message: &Message) {
    let Value::Object(members) = value else { return };
    for (name, value) in members {
        if let Some((_, number, form)) = message.fields.iter().find(|(known, ..)| known == name) {
            put(out, *number, value, form);
        } else if message.extensions != 0 && name.starts_with("x-") {
            put_named(out, message.extensions, name, value, &Form::Any);
        } else if let Some((number, form)) = &message.rest {
            put_named(out, *number, name, value, form);
        }
    }
}

fn put_named(out: &mut Vec<u8>, number: u32, name: &str, value: &Value, form: &Form) {
    wire::nested(out, number, |out| {
        wire::bytes(out, 1, name.as_bytes());
        put(out, 2, value, form);
    });
}

/// Writes one member. A value of the wrong type is omitted, because the format cannot represent it.
fn put(out: &mut Vec<u8>, number: u32, value: &Value, form: &Form) {
    match (form, value) {
        (Form::Text, Value::String(text)) => wire::bytes(out, number, text.as_bytes()),
        (Form::Flag, Value::Bool(flag)) => wire::varint(out, number, u64::from(*flag)),
        (Form::Integer, Value::Number(n)) => {
            if let Some(n) = n.as_i64() {
                wire::varint(out, number, n.cast_unsigned());
            }
        }
        (Form::Double, Value::Number(n)) => {
            wire::double(out, number, n.as_f64().unwrap_or_default());
        }
        (Form::Message(of), Value::Object(_)) => {
            wire::nested(out, number, |out| encode(out, value, of))
        }
        (Form::Each(form), Value::Array(items)) => {
            items.iter().for_each(|item| put(out, number, item, form));
        }
        (Form::Each(form), one) => put(out, number, one, form),
        (Form::Within(below, form), value) => {
            wire::nested(out, number, |out| put(out, *below, value, form));
        }
        (Form::OneOf(cases), value) => {
            if let Some((_, below, form)) = cases.iter().find(|(is, ..)| is(value)) {
                wire::nested(out, number, |out| put(out, *below, value, form));
            }
        }
        (Form::Any, value) => {
            wire::nested(out, number, |out| wire::bytes(out, 2, value.to_string().as_bytes()));
        }
        _ => {}
    }
}

//! What reading one input may cost, however many formats it nests in one another: how deep it goes, and how much memory
//! comes of it.
//!
//! Every decoder of what strangers send takes the same [`Budget`] through all of its nesting, and hands it on to the
//! decoder of another format inside: an envelope in a protobuf message, JSON in a string of bytes. None starts anew.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::steps;

/// How deep an object may nest. JSON readers stop at 127, and an object is read inside of others: by two levels in a list
/// and by three in a review.
pub const MAX_DEPTH: usize = 112;

/// By how much deeper `fieldsV1` may be than the object whose fields they name.
const FIELDS: usize = 6;

/// How much memory an object's tree may take. The densest object that the store takes (a megabyte and a half) and that
/// people write stays below a half of it; text that is made to be dense comes to a hundred times its length.
const MAX_TREE: usize = 64 << 20;

/// An input that costs more than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    #[error("exceeded max depth of {0}")]
    Depth(usize),
    #[error("limit is {0} bytes of memory, which the object exceeds once it is read")]
    Memory(usize),
}

/// Why JSON was not read.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
}

/// What is left for the rest of an input.
#[derive(Debug)]
pub struct Budget {
    max_depth: usize,
    max_memory: usize,
    depth: usize,
    memory: usize,
    exceeded: Option<Exceeded>,
}

impl Budget {
    /// For one object that somebody sent.
    pub fn object() -> Self {
        Self::new(MAX_DEPTH, MAX_TREE)
    }

    /// For what holds `count` whole objects, `depth` levels below its root.
    pub fn objects(count: usize, depth: usize) -> Self {
        // More than a few are not all as large as one may be.
        Self::new(MAX_DEPTH + FIELDS + depth, MAX_TREE * count.clamp(1, 4))
    }

    /// So many levels, and so many bytes of memory.
    pub fn new(depth: usize, memory: usize) -> Self {
        Self { max_depth: depth, max_memory: memory, depth, memory, exceeded: None }
    }

    /// The limit that was met, if one was.
    pub fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded
    }

    /// Goes one level down, until the matching [`Budget::leave`].
    pub fn enter(&mut self) -> Result<(), Exceeded> {
        match self.depth.checked_sub(1) {
            Some(depth) => {
                self.depth = depth;
                Ok(())
            }
            None => self.exceed(Exceeded::Depth(self.max_depth)),
        }
    }

    /// Comes back up one level.
    pub fn leave(&mut self) {
        self.depth += 1;
    }

    /// Reads something one level down.
    pub fn nested<T, E: From<Exceeded>>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        self.enter()?;
        let result = read(self);
        self.leave();
        result
    }

    /// Makes room for a document of `fieldsV1`, which has a level for each of its object's and lies within that object,
    /// until the matching [`Budget::lower`].
    pub fn raise(&mut self) {
        self.depth += FIELDS;
    }

    /// Takes the room back that [`Budget::raise`] made.
    pub fn lower(&mut self) {
        self.depth = self.depth.saturating_sub(FIELDS);
    }

    /// Takes memory for so many bytes; an error once there is none left.
    pub fn spend(&mut self, bytes: usize) -> Result<(), Exceeded> {
        steps::spend(1);
        match self.memory.checked_sub(bytes) {
            Some(memory) => {
                self.memory = memory;
                Ok(())
            }
            None => self.exceed(Exceeded::Memory(self.max_memory)),
        }
    }

    /// A list's next item, besides what the item itself holds.
    pub fn item(&mut self) -> Result<(), Exceeded> {
        self.spend(2 * size_of::<Value>())
    }

    /// A map's next member, besides its value. The first one makes a node with room for eleven.
    pub fn member(&mut self, key: &str, first: bool) -> Result<(), Exceeded> {
        let slot = size_of::<Value>() + size_of::<String>();
        self.text(key)?;
        self.spend(if first { 11 * slot } else { slot })
    }

    /// A string, with what it costs beside its bytes.
    pub fn text(&mut self, text: &str) -> Result<(), Exceeded> {
        self.spend(text.len() + 16)
    }

    /// A whole tree, which is copied to where the budget stands.
    pub fn tree(&mut self, value: &Value) -> Result<(), Exceeded> {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => self.nested(|budget| {
                items.iter().try_for_each(|value| {
                    budget.item()?;
                    budget.tree(value)
                })
            }),
            Value::Object(members) => self.nested(|budget| {
                members.iter().enumerate().try_for_each(|(at, (key, value))| {
                    budget.member(key, at == 0)?;
                    budget.tree(value)
                })
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        }
    }

    /// Reads JSON.
    pub fn json(&mut self, json: &[u8]) -> Result<Value, JsonError> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let value = Tree(self).deserialize(&mut deserializer);
        let value = value.and_then(|value| deserializer.end().map(|()| value));
        value.map_err(|error| match self.exceeded {
            Some(exceeded) => JsonError::Exceeded(exceeded),
            // The parser's own limit, which is met first where not much is left above.
            None if error.to_string().starts_with("recursion limit") => {
                JsonError::Exceeded(Exceeded::Depth(self.max_depth))
            }
            None => JsonError::Syntax(error),
        })
    }

    fn exceed(&mut self, exceeded: Exceeded) -> Result<(), Exceeded> {
        self.exceeded.get_or_insert(exceeded);
        Err(exceeded)
    }
}

/// Reads a tree of any format within a budget.
pub struct Tree<'b>(pub &'b mut Budget);

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Value, E> {
        self.0.text(v).map_err(E::custom)?;
        Ok(v.into())
    }

    fn visit_string<E: serde::de::Error>(self, v: String) -> Result<Value, E> {
        self.0.text(&v).map_err(E::custom)?;
        Ok(v.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.0.enter().map_err(A::Error::custom)?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(Tree(self.0))? {
            self.0.item().map_err(A::Error::custom)?;
            items.push(item);
        }
        self.0.leave();
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.0.enter().map_err(A::Error::custom)?;
        let mut members = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            self.0.member(&key, members.is_empty()).map_err(A::Error::custom)?;
            members.insert(key, access.next_value_seed(Tree(self.0))?);
        }
        self.0.leave();
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nested(depth: usize) -> Value {
        (0..depth).fold(json!("x"), |inner, _| json!({"a": inner}))
    }

    #[test]
    fn what_json_says_is_read_as_it_is_elsewhere() {
        let text = r#"{"a":[1,-2,1.5,1e99,true,null,"é",[],{}],"b":{"c":{"d":""}},"b":2,"$serde_json::private::RawValue":"1"}"#;
        let read = Budget::object().json(text.as_bytes()).unwrap();
        let plain = text.replace(",\"$serde_json::private::RawValue\":\"1\"", "");
        let mut expected: Value = serde_json::from_str(&plain).unwrap();
        let token = "$serde_json::private::RawValue".to_owned();
        expected.as_object_mut().unwrap().insert(token, "1".into());
        assert_eq!(read, expected);
        for wrong in ["", "{", "[1,]", "{}x", "\"\u{1}\""] {
            let error = Budget::object().json(wrong.as_bytes()).unwrap_err();
            assert!(matches!(error, JsonError::Syntax(_)), "{wrong}: {error}");
        }
    }

    #[test]
    fn depth_ends_where_it_says() {
        for (depth, fits) in [(MAX_DEPTH, true), (MAX_DEPTH + 1, false), (5000, false)] {
            let text = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
            let read = Budget::object().json(text.as_bytes());
            assert_eq!(read.is_ok(), fits, "{depth}: {:?}", read.err());
        }
        for (depth, fits) in [(MAX_DEPTH, true), (MAX_DEPTH + 1, false)] {
            assert_eq!(Budget::object().tree(&nested(depth)).is_ok(), fits);
        }
        // What is left and right of a deep member has all of the depth again.
        let wide = json!([nested(MAX_DEPTH - 1), nested(MAX_DEPTH - 1)]);
        let mut budget = Budget::object();
        budget.json(wide.to_string().as_bytes()).unwrap();
        budget.tree(&wide).unwrap();
    }

    #[test]
    fn memory_that_text_comes_to_is_bounded() {
        for piece in ["{\"a\":0},", "[],", "{},", "0,", "\"\",", "[[[]]],"] {
            let count = (3 << 20) / piece.len();
            let text = format!("[{}0]", piece.repeat(count));
            let mut budget = Budget::object();
            if budget.json(text.as_bytes()).is_ok() {
                assert!(count * 2 * size_of::<Value>() < MAX_TREE, "{piece}");
            } else {
                assert_eq!(budget.exceeded(), Some(Exceeded::Memory(MAX_TREE)), "{piece}");
            }
        }
    }
}

//! Limits the cost of decoding one input: its nesting depth and the memory of its tree, across nested formats.
//!
//! Every decoder of untrusted input passes the same [`Budget`] through all its nesting. It also passes it to the
//! decoder of an embedded format: an envelope in a protobuf message, JSON in a string of bytes. No decoder starts a new
//! budget.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::steps;

/// The maximum depth of an object. JSON readers stop at 127, and an object is nested two levels deep in a list and
/// three levels deep in a review.
pub const MAX_DEPTH: usize = 112;

/// The number of levels by which `fieldsV1` may be deeper than the object that it describes.
const FIELDS: usize = 6;

/// The maximum memory of an object's tree, in bytes. The densest real object of the store's size limit (1.5 MiB) needs
/// less than half of it. Text that is built to be dense needs a hundred times its length.
const MAX_TREE: usize = 64 << 20;

/// The error of an input that exceeds its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetExceeded {
    #[error("exceeded max depth of {0}")]
    Depth(usize),
    #[error("limit is {0} bytes of memory, which the object exceeds once it is read")]
    Memory(usize),
}

/// The error of reading JSON.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
    #[error(transparent)]
    Exceeded(#[from] BudgetExceeded),
}

/// The remaining budget of an input.
#[derive(Debug)]
pub struct Budget {
    max_depth: usize,
    max_memory: usize,
    depth: usize,
    memory: usize,
    exceeded: Option<BudgetExceeded>,
}

impl Budget {
    /// Returns the budget of one untrusted object.
    pub fn object() -> Self {
        Self::new(MAX_DEPTH, MAX_TREE)
    }

    /// Returns the budget of an input with `count` whole objects, `depth` levels below its root.
    pub fn objects(count: usize, depth: usize) -> Self {
        // At most a few objects of an input have the maximum size.
        Self::new(MAX_DEPTH + FIELDS + depth, MAX_TREE * count.clamp(1, 4))
    }

    /// Returns a budget of `depth` levels and `memory` bytes.
    pub fn new(depth: usize, memory: usize) -> Self {
        Self { max_depth: depth, max_memory: memory, depth, memory, exceeded: None }
    }

    /// Returns the limit that was exceeded, if any.
    pub fn exceeded(&self) -> Option<BudgetExceeded> {
        self.exceeded
    }

    /// Descends one level, until the matching [`Budget::leave`].
    pub fn enter(&mut self) -> Result<(), BudgetExceeded> {
        match self.depth.checked_sub(1) {
            Some(depth) => {
                self.depth = depth;
                Ok(())
            }
            None => self.exceed(BudgetExceeded::Depth(self.max_depth)),
        }
    }

    /// Ascends one level.
    pub fn leave(&mut self) {
        self.depth += 1;
    }

    /// Calls `read` one level deeper.
    pub fn nested<T, E: From<BudgetExceeded>>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        self.enter()?;
        let result = read(self);
        self.leave();
        result
    }

    /// Adds levels for a `fieldsV1` document until the matching [`Budget::lower`]. Such a document lies within an
    /// object and has a level for each level of that object.
    pub fn raise(&mut self) {
        self.depth += FIELDS;
    }

    /// Removes the levels that [`Budget::raise`] added.
    pub fn lower(&mut self) {
        self.depth = self.depth.saturating_sub(FIELDS);
    }

    /// Spends memory, in bytes. Returns an error if none is left.
    pub fn spend(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        steps::spend(1);
        match self.memory.checked_sub(bytes) {
            Some(memory) => {
                self.memory = memory;
                Ok(())
            }
            None => self.exceed(BudgetExceeded::Memory(self.max_memory)),
        }
    }

    /// Spends the memory of a list's next item, without the item's own contents.
    pub fn item(&mut self) -> Result<(), BudgetExceeded> {
        self.spend(2 * size_of::<Value>())
    }

    /// Spends the memory of a map's next member, without its value. The first member allocates a node with room for
    /// eleven.
    pub fn member(&mut self, key: &str, first: bool) -> Result<(), BudgetExceeded> {
        let slot = size_of::<Value>() + size_of::<String>();
        self.text(key)?;
        self.spend(if first { 11 * slot } else { slot })
    }

    /// Spends the memory of a string, including its overhead.
    pub fn text(&mut self, text: &str) -> Result<(), BudgetExceeded> {
        self.spend(text.len() + 16)
    }

    /// Spends the memory of a whole tree that is copied to the current level.
    pub fn tree(&mut self, value: &Value) -> Result<(), BudgetExceeded> {
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

    /// Parses JSON within the budget.
    pub fn json(&mut self, json: &[u8]) -> Result<Value, JsonError> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let value = Tree(self).deserialize(&mut deserializer);
        let value = value.and_then(|value| deserializer.end().map(|()| value));
        value.map_err(|error| match self.exceeded {
            Some(exceeded) => JsonError::Exceeded(exceeded),
            // The parser's own limit is reached first if the budget started deep in the input.
            None if error.to_string().starts_with("recursion limit") => {
                JsonError::Exceeded(BudgetExceeded::Depth(self.max_depth))
            }
            None => JsonError::Syntax(error),
        })
    }

    fn exceed(&mut self, exceeded: BudgetExceeded) -> Result<(), BudgetExceeded> {
        self.exceeded.get_or_insert(exceeded);
        Err(exceeded)
    }
}

/// Reads a JSON tree within a budget.
struct Tree<'b>(&'b mut Budget);

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
    fn reads_json_like_serde_json() {
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
    fn rejects_input_beyond_depth() {
        for (depth, fits) in [(MAX_DEPTH, true), (MAX_DEPTH + 1, false), (5000, false)] {
            let text = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
            let read = Budget::object().json(text.as_bytes());
            assert_eq!(read.is_ok(), fits, "{depth}: {:?}", read.err());
        }
        for (depth, fits) in [(MAX_DEPTH, true), (MAX_DEPTH + 1, false)] {
            assert_eq!(Budget::object().tree(&nested(depth)).is_ok(), fits);
        }
        // The members beside a deep member have the full depth again.
        let wide = json!([nested(MAX_DEPTH - 1), nested(MAX_DEPTH - 1)]);
        let mut budget = Budget::object();
        budget.json(wide.to_string().as_bytes()).unwrap();
        budget.tree(&wide).unwrap();
    }

    #[test]
    fn bounds_memory_of_dense_text() {
        for piece in ["{\"a\":0},", "[],", "{},", "0,", "\"\",", "[[[]]],"] {
            let count = (3 << 20) / piece.len();
            let text = format!("[{}0]", piece.repeat(count));
            let mut budget = Budget::object();
            if budget.json(text.as_bytes()).is_ok() {
                assert!(count * 2 * size_of::<Value>() < MAX_TREE, "{piece}");
            } else {
                assert_eq!(budget.exceeded(), Some(BudgetExceeded::Memory(MAX_TREE)), "{piece}");
            }
        }
    }
}

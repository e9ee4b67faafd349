//! Decodes JSON into a tree that conforms to the schema, in one pass.
//!
//! Built-in types are decoded as Go decodes its structs. A wrong JSON type is an error in Go's words, an unknown member
//! is dropped and reported, and `null` means absent. Scalars get their canonical text. Members that Go would omit or
//! fill in when it writes the struct are omitted or filled in here. Lists that Go would write as `null` are omitted.
//!
//! Custom resources keep their values, including those of wrong types, for [`crate::validate`]. Unknown members are
//! dropped. With [`Fill::Zeroes`] and [`Fill::Defaults`], a `null` is dropped if its member is not nullable and has no
//! default.
//!
//! A single [`Budget`] bounds depth and memory, including filled-in values. The caller bounds the length of the text.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::sync::LazyLock;

use api_meta::{Budget, BudgetExceeded, is_zero};
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

use crate::{
    fill::{Fill, whole_default},
    gowords::{conversion_error, go_type, syntax_message},
    node::{Field, Node, NodeId, Presence, Shape, Struct},
    scalar::{self, Scalar},
    schema::Schema,
};

/// The maximum number of findings, as in upstream.
const MAX_FINDINGS: usize = 100;

/// The node of values without a schema.
static ANY: Node = undescribed(true);
/// The node of values where the schema expects another type, such as the items of a list instead of an object. Objects
/// in them have no members.
static UNKNOWN: Node = undescribed(false);

static NO_MEMBERS: LazyLock<Struct> = LazyLock::new(Struct::default);

const fn undescribed(preserve_unknown: bool) -> Node {
    Node {
        shape: Shape::Any,
        name: None,
        nullable: true,
        preserve_unknown,
        default: None,
        rules: None,
    }
}

/// A decoded object, and the findings that did not prevent decoding.
#[derive(Clone, Debug, Default)]
pub struct Decoded {
    /// The decoded object.
    pub value: Value,
    /// The unknown and duplicate members.
    pub findings: Vec<Finding>,
}

/// An unknown member, which was dropped, or a duplicate member, whose last value was kept. The string is the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    Unknown(String),
    Duplicate(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Unknown(path) => write!(f, "unknown field \"{path}\""),
            Finding::Duplicate(path) => write!(f, "duplicate field \"{path}\""),
        }
    }
}

impl Decoded {
    /// Returns the findings in upstream's words, for strict field validation or warnings.
    pub fn findings(&self) -> Vec<String> {
        self.findings.iter().map(ToString::to_string).collect()
    }

    /// Returns the paths of unknown members.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.findings.iter().filter_map(|finding| match finding {
            Finding::Unknown(path) => Some(path.as_str()),
            Finding::Duplicate(_) => None,
        })
    }
}

/// An error of decoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The text is not valid JSON.
    #[error("{0}")]
    Syntax(String),
    /// A member has a type that the schema does not allow.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// The object exceeds the limits on depth or memory, including defaults.
    #[error(transparent)]
    Exceeded(#[from] BudgetExceeded),
}

/// A value of a type that the schema does not allow. Its text is that of Go's JSON decoder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{json}")]
pub struct TypeError {
    json: String,
    conversion: String,
}

impl TypeError {
    /// Returns the text of upstream's converter of trees, which strategic merge patches use. It names no field.
    pub fn conversion(&self) -> &str {
        &self.conversion
    }
}

/// Decodes an object of the type at `node`.
pub fn decode(
    schema: &Schema,
    node: NodeId,
    json: &[u8],
    fill: Fill,
) -> Result<Decoded, DecodeError> {
    let mut cx = Cx::new(schema, fill);
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = cx.seed(node, false).deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    cx.finish(node, value, |error| DecodeError::Syntax(syntax_message(error, json)))
}

/// Decodes an object from a tree, such as parsed YAML or a patched object.
pub fn decode_value(
    schema: &Schema,
    node: NodeId,
    value: Value,
    fill: Fill,
) -> Result<Decoded, DecodeError> {
    let mut cx = Cx::new(schema, fill);
    let value = cx.seed(node, false).deserialize(value);
    cx.finish(node, value, |error| DecodeError::Syntax(error.to_string()))
}

/// Decodes JSON without a schema. The findings are the duplicate members.
pub fn decode_untyped(json: &[u8]) -> Result<Decoded, DecodeError> {
    let mut cx = Cx::new(Schema::builtin(), Fill::Given);
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let seed = Seed { cx: &mut cx, node: &ANY, typed: false };
    let value = seed.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    if let Some(exceeded) = cx.budget.exceeded() {
        return Err(exceeded.into());
    }
    let value = value.map_err(|error| DecodeError::Syntax(syntax_message(&error, json)))?;
    Ok(Decoded { value: value.unwrap_or_default(), findings: cx.findings })
}

/// Drops unknown members and returns their paths.
pub fn prune(schema: &Schema, node: NodeId, value: &mut Value) -> Result<Vec<String>, DecodeError> {
    let decoded = decode_value(schema, node, value.take(), Fill::Given)?;
    let unknown = decoded.unknown().map(str::to_owned).collect();
    *value = decoded.value;
    Ok(unknown)
}

struct Cx<'s> {
    schema: &'s Schema,
    fill: Fill,
    findings: Vec<Finding>,
    fault: Option<Fault>,
    budget: Budget,
}

/// A type error that collects the path for Go's message while it propagates.
struct Fault {
    message: String,
    /// The expected Go type; `None` if the message is complete (scalars with their own decoders).
    go_type: Option<String>,
    /// The name of the innermost struct.
    owner: Option<String>,
    /// The field names, innermost first.
    fields: Vec<String>,
}

struct Seed<'c, 's> {
    cx: &'c mut Cx<'s>,
    node: &'s Node,
    typed: bool,
}

impl<'s> Cx<'s> {
    fn new(schema: &'s Schema, fill: Fill) -> Self {
        Cx { schema, fill, findings: Vec::new(), fault: None, budget: Budget::object() }
    }

    fn seed(&mut self, node: NodeId, typed: bool) -> Seed<'_, 's> {
        let node = self.schema.node(node);
        let typed = typed || is_go_struct(node);
        Seed { cx: self, node, typed }
    }

    /// Returns the seed for a list's items or a map's values. Without a node, `preserve` decides whether members of
    /// objects in them are kept.
    fn below(&mut self, node: Option<NodeId>, preserve: bool, typed: bool) -> Seed<'_, 's> {
        match node {
            Some(node) => self.seed(node, typed),
            None => Seed { cx: self, node: if preserve { &ANY } else { &UNKNOWN }, typed: false },
        }
    }

    fn zero<E: serde::de::Error>(&mut self, node: Option<NodeId>) -> Result<Value, E> {
        let Some(node) = node else { return Ok(Value::Null) };
        self.schema.zero(node, self.fill, &mut self.budget).map_err(E::custom)
    }

    /// Reports whether a `null` in a custom resource is dropped.
    fn is_null_dropped(&self, node: NodeId) -> bool {
        let node = self.schema.node(node);
        let drops = matches!(self.fill, Fill::Zeroes | Fill::Defaults);
        drops && !node.nullable && node.default.is_none() && !is_go_struct(node)
    }

    /// Returns the replacement for a `null` in a custom map or list: the default, if the schema does not allow `null`.
    fn instead_of_null(&mut self, id: NodeId) -> Result<Value, BudgetExceeded> {
        let node = self.schema.node(id);
        let default = node.default.as_ref();
        match default.filter(|_| self.fill.has_defaults() && !node.nullable) {
            Some(default) => whole_default(self.schema, id, default, &mut self.budget),
            None => Ok(Value::Null),
        }
    }

    fn finish(
        mut self,
        node: NodeId,
        value: Result<Option<Value>, serde_json::Error>,
        syntax: impl FnOnce(&serde_json::Error) -> DecodeError,
    ) -> Result<Decoded, DecodeError> {
        if let Some(exceeded) = self.budget.exceeded() {
            return Err(exceeded.into());
        }
        match (value, self.fault) {
            (Ok(value), _) => {
                let value = match value {
                    Some(value) => value,
                    None => self.schema.zero(node, self.fill, &mut self.budget)?,
                };
                let mut findings = self.findings;
                if !is_go_struct(self.schema.node(node)) {
                    // Upstream decodes a custom resource first, and then drops unknown fields in the order of names,
                    // those of the metadata first.
                    findings.sort_by(|a, b| match (a, b) {
                        (Finding::Unknown(a), Finding::Unknown(b)) => {
                            let metadata = |path: &str| path.starts_with("metadata.");
                            metadata(b).cmp(&metadata(a)).then_with(|| a.cmp(b))
                        }
                        (Finding::Duplicate(_), Finding::Duplicate(_)) => Ordering::Equal,
                        (Finding::Duplicate(_), Finding::Unknown(_)) => Ordering::Less,
                        (Finding::Unknown(_), Finding::Duplicate(_)) => Ordering::Greater,
                    });
                }
                Ok(Decoded { value, findings })
            }
            (Err(_), Some(fault)) => Err(DecodeError::Type(fault.error())),
            (Err(error), None) => Err(syntax(&error)),
        }
    }

    fn report(&mut self, finding: Finding) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        }
    }

    /// Prefixes the paths of findings since `mark` with a step.
    fn prefix(&mut self, mark: usize, step: impl Fn() -> String) {
        for Finding::Unknown(path) | Finding::Duplicate(path) in &mut self.findings[mark..] {
            let dot = if path.starts_with('[') { "" } else { "." };
            *path = format!("{}{dot}{path}", step());
        }
    }

    /// Adds the member to a type error and, for the innermost one, the struct.
    fn blame(&mut self, owner: &Node, field: &str) {
        if let Some(fault) = self.fault.as_mut() {
            fault.owner.get_or_insert_with(|| {
                let name = owner.name.as_deref().unwrap_or_default();
                name.rsplit('.').next().unwrap_or_default().to_owned()
            });
            fault.fields.push(field.to_owned());
        }
    }
}

fn is_go_struct(node: &Node) -> bool {
    matches!(&node.shape, Shape::Struct(body) if body.message.is_some())
}

impl Fault {
    fn error(self) -> TypeError {
        let Some(go_type) = self.go_type else {
            return TypeError { conversion: self.message.clone(), json: self.message };
        };
        let conversion = conversion_error(&self.message, &go_type);
        let json = match self.owner {
            None => {
                format!("json: cannot unmarshal {} into Go value of type {go_type}", self.message)
            }
            Some(mut path) => {
                for field in self.fields.iter().rev() {
                    let _ = write!(path, ".{field}");
                }
                format!(
                    "json: cannot unmarshal {} into Go struct field {path} of type {go_type}",
                    self.message
                )
            }
        };
        TypeError { json, conversion }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    /// The value; `None` for a `null` that means absent.
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'s> Seed<'_, 's> {
    /// Fails with Go's message for a mismatch. `what` is the JSON type, such as `string`, `number 1.5` or `object`.
    fn mismatch<E: serde::de::Error, T>(self, word: &str) -> Result<T, E> {
        let go_type = Some(go_type(self.cx.schema, self.node));
        self.fail(word.to_owned(), go_type)
    }

    fn fail<E: serde::de::Error, T>(
        self,
        message: String,
        go_type: Option<String>,
    ) -> Result<T, E> {
        self.cx.fault = Some(Fault { message, go_type, owner: None, fields: Vec::new() });
        Err(E::custom("type error"))
    }

    fn scalar<E: serde::de::Error>(self, value: Scalar<'_>) -> Result<Option<Value>, E> {
        if !self.typed {
            return Ok(Some(value.into_value()));
        }
        match scalar::read(&self.node.shape, value) {
            Ok(value) => Ok(value),
            Err(scalar::Refusal::Mismatch(word)) => self.mismatch(&word),
            Err(scalar::Refusal::Message(message)) => self.fail(message, None),
        }
    }

    fn members<'de, A: MapAccess<'de>>(
        self,
        body: &'s Struct,
        mut access: A,
    ) -> Result<Map<String, Value>, A::Error> {
        let Seed { cx, node, typed } = self;
        cx.budget.enter().map_err(A::Error::custom)?;
        let zeroes = typed && cx.fill != Fill::Given;
        let mut out = Map::new();
        let mut unknown: HashSet<String> = HashSet::new();
        while let Some(key) = access.next_key_seed(KeySeed(body))? {
            let mark = cx.findings.len();
            let field = match key {
                Key::Field(field) => field,
                Key::Unknown(name) if node.preserve_unknown => {
                    cx.budget.member(&name, out.is_empty()).map_err(A::Error::custom)?;
                    let value = access.next_value_seed(cx.below(None, true, false))?;
                    cx.prefix(mark, || name.clone());
                    if out.insert(name.clone(), value.unwrap_or_default()).is_some() {
                        cx.report(Finding::Duplicate(name));
                    }
                    continue;
                }
                Key::Unknown(name) => {
                    access.next_value::<IgnoredAny>()?;
                    if !unknown.contains(&name) {
                        cx.report(Finding::Unknown(name.clone()));
                        unknown.insert(name);
                    } else if !typed {
                        cx.report(Finding::Duplicate(name));
                    }
                    continue;
                }
            };
            cx.budget.member(&field.name, out.is_empty()).map_err(A::Error::custom)?;
            let value = match access.next_value_seed(cx.seed(field.node, typed)) {
                Ok(value) => value,
                Err(error) => {
                    cx.blame(node, &field.name);
                    return Err(error);
                }
            };
            cx.prefix(mark, || field.name.as_ref().to_owned());
            let Some(value) = value else { continue };
            if value.is_null() && cx.is_null_dropped(field.node) {
                continue;
            }
            let omits = matches!(field.presence, Presence::OmitZero | Presence::Always);
            let dropped = zeroes && omits && is_zero(&value);
            let previous = if dropped {
                out.remove(&*field.name)
            } else {
                out.insert(field.name.as_ref().to_owned(), value)
            };
            if previous.is_some() {
                cx.report(Finding::Duplicate(field.name.as_ref().to_owned()));
            }
        }
        if cx.fill != Fill::Given {
            let filled = cx.schema.fill(body, &mut out, cx.fill, typed, &mut cx.budget);
            filled.map_err(A::Error::custom)?;
        }
        cx.budget.leave();
        Ok(out)
    }

    /// Returns the node of a JSON schema that `items` and similar keywords may contain.
    fn schema_below(&self) -> Option<NodeId> {
        self.node.schema_or().and(self.cx.schema.json_schema())
    }

    /// Upstream's decoder for these drops unknown members without reporting them. Lists of schemas are kept, because
    /// validation rejects them.
    fn nested_schema<'de, A: MapAccess<'de>>(
        self,
        schema: NodeId,
        access: A,
    ) -> Result<Option<Value>, A::Error> {
        let mark = self.cx.findings.len();
        let read = self.cx.seed(schema, true).visit_map(access);
        self.cx.findings.truncate(mark);
        read
    }

    fn entries<'de, A: MapAccess<'de>>(
        self,
        values: Option<NodeId>,
        mut access: A,
    ) -> Result<Map<String, Value>, A::Error> {
        let Seed { cx, node, typed } = self;
        cx.budget.enter().map_err(A::Error::custom)?;
        let mut out = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let mark = cx.findings.len();
            cx.budget.member(&key, out.is_empty()).map_err(A::Error::custom)?;
            let value = access.next_value_seed(cx.below(values, node.preserve_unknown, typed))?;
            cx.prefix(mark, || key.clone());
            let mut value = value.map_or_else(|| cx.zero(values), Ok)?;
            if value.is_null()
                && let Some(values) = values.filter(|_| !typed)
            {
                if cx.is_null_dropped(values) {
                    continue;
                }
                value = cx.instead_of_null(values).map_err(A::Error::custom)?;
            }
            if out.contains_key(&key) {
                cx.report(Finding::Duplicate(key.clone()));
            }
            out.insert(key, value);
        }
        cx.budget.leave();
        Ok(out)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        Ok(if self.typed { None } else { Some(Value::Null) })
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        self.visit_unit()
    }

    fn visit_bool<E: serde::de::Error>(self, v: bool) -> Result<Self::Value, E> {
        self.scalar(Scalar::Bool(v))
    }

    fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<Self::Value, E> {
        self.scalar(Scalar::Number(v.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<Self::Value, E> {
        self.scalar(Scalar::Number(v.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Self::Value, E> {
        match serde_json::Number::from_f64(v) {
            Some(number) => self.scalar(Scalar::Number(number)),
            None => Err(E::custom("a number must be finite")),
        }
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Self::Value, E> {
        self.cx.budget.text(v).map_err(E::custom)?;
        self.scalar(Scalar::Str(v))
    }

    fn visit_string<E: serde::de::Error>(self, v: String) -> Result<Self::Value, E> {
        self.cx.budget.text(&v).map_err(E::custom)?;
        self.scalar(Scalar::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let item = match &self.node.shape {
            Shape::List { item, .. } => Some(*item),
            Shape::Any => None,
            _ if self.typed => return self.mismatch("array"),
            _ => None,
        };
        let mut out = Vec::with_capacity(access.size_hint().unwrap_or(0).min(64));
        let Seed { cx, node, typed } = self;
        cx.budget.enter().map_err(A::Error::custom)?;
        loop {
            let mark = cx.findings.len();
            let Some(value) =
                access.next_element_seed(cx.below(item, node.preserve_unknown, typed))?
            else {
                break;
            };
            let at = out.len();
            cx.prefix(mark, || format!("[{at}]"));
            cx.budget.item().map_err(A::Error::custom)?;
            let mut value = value.map_or_else(|| cx.zero(item), Ok)?;
            if value.is_null()
                && let Some(item) = item.filter(|_| !typed)
            {
                value = cx.instead_of_null(item).map_err(A::Error::custom)?;
            }
            out.push(value);
        }
        cx.budget.leave();
        Ok(Some(Value::Array(out)))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        let members = match &self.node.shape {
            Shape::Struct(body) => self.members(body, access)?,
            Shape::Map { value, .. } => self.entries(Some(*value), access)?,
            shape if self.typed && !matches!(shape, Shape::Any) => {
                return match scalar::read(shape, Scalar::Object) {
                    Err(scalar::Refusal::Message(message)) => self.fail(message, None),
                    _ => self.mismatch("object"),
                };
            }
            _ if !self.node.preserve_unknown => self.members(&NO_MEMBERS, access)?,
            Shape::Any if self.node.is_fields() => {
                self.cx.budget.raise();
                let Seed { cx, node, typed } = self;
                let entries = Seed { cx: &mut *cx, node, typed }.entries(None, access);
                cx.budget.lower();
                entries?
            }
            Shape::Any => match self.schema_below() {
                Some(schema) => return self.nested_schema(schema, access),
                None => self.entries(None, access)?,
            },
            _ => self.entries(None, access)?,
        };
        Ok(Some(Value::Object(members)))
    }
}

/// A seed that finds a struct's field by its JSON key without copying the key.
struct KeySeed<'s>(&'s Struct);

enum Key<'s> {
    Field(&'s Field),
    Unknown(String),
}

impl<'de, 's> DeserializeSeed<'de> for KeySeed<'s> {
    type Value = Key<'s>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key<'s>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'s> Visitor<'_> for KeySeed<'s> {
    type Value = Key<'s>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key<'s>, E> {
        Ok(self.0.field(key).map_or_else(|| Key::Unknown(key.to_owned()), Key::Field))
    }
}

#[cfg(test)]
mod tests;

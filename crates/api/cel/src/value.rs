//! Values of expressions. Values from a JSON tree borrow it, and are converted lazily by their schema.

use std::{cmp::Ordering, collections::HashMap, fmt, ops::Deref, sync::Arc};

use api_meta::{GoDuration, Timestamp};
use base64::Engine as _;
use serde_json::{Map as JsonMap, Value as Json};

use crate::{
    error::EvalError,
    opaque::Opaque,
    time,
    types::{Decl, ListKind, Object, Shape, Type},
};

/// A value, which is cheap to clone.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    Timestamp(Timestamp),
    /// A duration in nanoseconds.
    Duration(i64),
    List(List<'a>),
    Map(Map<'a>),
    Object(Record<'a>),
    Optional(Option<Arc<Value<'a>>>),
    Type(Type),
    Opaque(Arc<Opaque>),
}

/// A string that is borrowed from the data or shared.
#[derive(Clone)]
pub enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// A list. JSON items are converted when they are read.
#[derive(Clone, Debug)]
pub enum List<'a> {
    Json {
        items: &'a [Json],
        item: &'a Decl,
        kind: &'a ListKind,
    },
    Items(Arc<Vec<Value<'a>>>),
    /// The items of a set or keyed list that resulted from a concatenation.
    Kind(Arc<Vec<Value<'a>>>, ListKind),
    /// Two concatenated lists and their total length. Concatenation must not copy, because it costs one unit.
    Joined(Arc<(List<'a>, List<'a>)>, usize),
}

/// A map. JSON members are converted when they are read.
#[derive(Clone, Debug)]
pub enum Map<'a> {
    Json { members: &'a JsonMap<String, Json>, value: &'a Decl },
    Entries(Arc<Entries<'a>>),
}

/// A map that an expression built, in insertion order.
#[derive(Clone, Debug, Default)]
pub struct Entries<'a> {
    pub(crate) items: Vec<(Value<'a>, Value<'a>)>,
    index: HashMap<Key, usize>,
    /// The value of all other keys for lookups. `in` and loops ignore it.
    missing: Option<Value<'a>>,
}

/// A map key. Integers are equal whatever their type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Bool(bool),
    Number(i128),
    String(Arc<str>),
}

/// A value with declared fields.
#[derive(Clone, Debug)]
pub enum Record<'a> {
    Json {
        members: &'a JsonMap<String, Json>,
        object: &'a Arc<Object>,
    },
    /// An object that an expression built. Unset fields are absent.
    Made {
        object: Arc<Object>,
        fields: Arc<Vec<Option<Value<'a>>>>,
    },
    /// `variables`, whose fields the activation evaluates on use.
    Composed(Arc<Object>),
}

pub(crate) type Eval<'a> = Result<Value<'a>, EvalError>;

static ANY: Decl = Decl::ANY;
static ATOMIC: ListKind = ListKind::Atomic;

impl<'a> Value<'a> {
    /// Converts a JSON value by its schema. Without a schema, its JSON type decides.
    pub fn from_json(json: &'a Json, decl: &'a Decl) -> Result<Self, EvalError> {
        Ok(match (json, &decl.shape) {
            (Json::Null, _) => Self::Null,
            (Json::Bool(value), Shape::Any | Shape::Bool) => Self::Bool(*value),
            (Json::Number(number), Shape::Double) => {
                Self::Double(number.as_f64().unwrap_or(f64::NAN))
            }
            (Json::Number(number), Shape::Any | Shape::Int) => match number.as_i64() {
                Some(value) => Self::Int(value),
                None => match number.as_f64() {
                    Some(value) if decl.shape == Shape::Int && value.fract() == 0.0 => {
                        Self::Int(value as i64)
                    }
                    value => Self::Double(value.unwrap_or(f64::NAN)),
                },
            },
            (Json::String(text), Shape::Any | Shape::String) => Self::String(Text::Borrowed(text)),
            (Json::String(text), shape) => text_of(text, shape)?,
            (Json::Array(items), Shape::List { item, kind }) => {
                Self::List(List::Json { items, item, kind })
            }
            (Json::Array(items), Shape::Any) => {
                Self::List(List::Json { items, item: &ANY, kind: &ATOMIC })
            }
            (Json::Object(members), Shape::Object(object)) => {
                Self::Object(Record::Json { members, object })
            }
            (Json::Object(members), Shape::Map(value)) => Self::Map(Map::Json { members, value }),
            (Json::Object(members), Shape::Any) => Self::Map(Map::Json { members, value: &ANY }),
            (other, shape) => return Err(mistyped(other, shape)),
        })
    }

    /// Converts data without a schema.
    pub fn dynamic(json: &'a Json) -> Self {
        // Without a schema no value is invalid.
        Self::from_json(json, &ANY).unwrap_or(Self::Null)
    }

    /// Creates a string.
    pub fn string(text: impl Into<Arc<str>>) -> Self {
        Self::String(Text::Shared(text.into()))
    }

    /// Creates a list.
    pub fn list(items: Vec<Value<'a>>) -> Self {
        Self::List(List::Items(Arc::new(items)))
    }

    /// Creates a map. Keys must be distinct and of a key type.
    pub fn map(
        entries: impl IntoIterator<Item = (Value<'a>, Value<'a>)>,
    ) -> Result<Self, EvalError> {
        let mut made = Entries::default();
        for (key, value) in entries {
            made.insert(key, value)?;
        }
        Ok(Self::Map(Map::Entries(Arc::new(made))))
    }

    /// Creates a map with a default value for lookups of other keys.
    pub fn map_or(
        entries: impl IntoIterator<Item = (Value<'a>, Value<'a>)>,
        missing: Value<'a>,
    ) -> Result<Self, EvalError> {
        let mut made = Entries { missing: Some(missing), ..Entries::default() };
        for (key, value) in entries {
            made.insert(key, value)?;
        }
        Ok(Self::Map(Map::Entries(Arc::new(made))))
    }

    /// Creates a record of a declared type. Fields that are not given are absent.
    pub fn record(object: &Arc<Object>, given: Vec<(&str, Value<'a>)>) -> Self {
        let mut fields = vec![None; object.fields.len()];
        for (name, value) in given {
            if let Some(at) = object.position(name) {
                fields[at] = Some(value);
            }
        }
        Self::Object(Record::Made { object: Arc::clone(object), fields: Arc::new(fields) })
    }

    /// Parses a semantic version, `kubernetes.Semver`.
    pub fn semver(text: &str) -> Result<Self, EvalError> {
        let version = crate::semver::Version::parse(text).map_err(EvalError::Failed)?;
        Ok(Self::opaque(Opaque::Semver(version)))
    }

    /// Creates an optional.
    pub fn optional(value: Option<Value<'a>>) -> Self {
        Self::Optional(value.map(Arc::new))
    }

    /// Creates an opaque value.
    pub fn opaque(value: Opaque) -> Self {
        Self::Opaque(Arc::new(value))
    }

    /// Returns the type that `type(x)` returns.
    pub fn type_of(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::String(_) => Type::String,
            Self::Bytes(_) => Type::Bytes,
            Self::Timestamp(_) => Type::Timestamp,
            Self::Duration(_) => Type::Duration,
            Self::List(_) => Type::list(Type::Dyn),
            Self::Map(_) => Type::map(Type::Dyn, Type::Dyn),
            Self::Object(record) => Type::Object(Arc::clone(record.object())),
            Self::Optional(_) => Type::optional(Type::Dyn),
            Self::Type(_) => Type::type_of(Type::Dyn),
            Self::Opaque(opaque) => Type::Opaque(opaque.type_name()),
        }
    }

    /// Returns the size for costs. Scalars have size one.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::String(text) => text.chars().count() as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::List(list) => list.len() as u64,
            Self::Map(map) => map.len() as u64,
            Self::Object(Record::Json { members, .. }) => members.len() as u64,
            Self::Optional(Some(value)) => value.size(),
            Self::Opaque(opaque) => opaque.size(),
            _ => 1,
        }
    }

    /// Converts the value to JSON.
    pub fn to_json(&self) -> Result<Json, EvalError> {
        Ok(match self {
            Self::Null | Self::Optional(None) => Json::Null,
            Self::Bool(value) => Json::from(*value),
            Self::Int(value) => Json::from(*value),
            Self::Uint(value) => Json::from(*value),
            Self::Double(value) => Json::from(*value),
            Self::String(text) => Json::from(&**text),
            Self::Bytes(bytes) => {
                Json::from(base64::engine::general_purpose::STANDARD.encode(bytes))
            }
            Self::Timestamp(time) => Json::from(time.exact()),
            Self::Duration(nanos) => Json::from(time::show_duration(*nanos)),
            Self::List(list) => {
                let items: Result<Vec<Json>, EvalError> =
                    (0..list.len()).map(|at| list.get(at)?.to_json()).collect();
                Json::from(items?)
            }
            Self::Map(map) => {
                let mut members = JsonMap::new();
                for at in 0..map.len() {
                    let (key, value) = map.entry(at)?;
                    let Self::String(key) = key else {
                        return Err(EvalError::new("keys of JSON objects must be strings"));
                    };
                    members.insert(key.to_string(), value.to_json()?);
                }
                Json::Object(members)
            }
            Self::Object(record) => record.to_json()?,
            Self::Optional(Some(value)) => value.to_json()?,
            Self::Type(ty) => Json::from(ty.name()),
            Self::Opaque(opaque) => Json::from(opaque.to_string()),
        })
    }

    /// Returns errors for built objects whose type name is not their field path: `Object.spec` is only valid for the
    /// field `spec` of `Object`.
    pub fn misnamed(&self) -> Vec<String> {
        let mut found = Vec::new();
        if let Self::Object(record) = self {
            self.misnamed_at(&record.object().name, &mut found);
        }
        found
    }

    fn misnamed_at(&self, wanted: &str, found: &mut Vec<String>) {
        match self {
            Self::Object(Record::Made { object, fields }) => {
                let given = &object.name;
                if **given != *wanted {
                    found.push(format!(
                        "unexpected type name \"{given}\", expected \"{wanted}\", which matches \
                        field name path from root Object type"
                    ));
                }
                for (field, value) in object.fields.iter().zip(fields.iter()) {
                    let Some(value) = value else { continue };
                    value.misnamed_at(&format!("{wanted}.{}", field.name), found);
                }
            }
            // Elements of lists and maps have the type name of their container.
            Self::List(List::Items(items)) => {
                items.iter().for_each(|item| item.misnamed_at(wanted, found));
            }
            Self::Map(Map::Entries(entries)) => {
                entries.items.iter().for_each(|(_, value)| value.misnamed_at(wanted, found));
            }
            _ => {}
        }
    }

    /// Returns the items of a list.
    pub fn items(&self) -> Result<Vec<Value<'a>>, EvalError> {
        self.as_list()?.iter().collect()
    }

    /// Returns a field of an object, if it is set.
    pub fn member(&self, name: &str) -> Result<Option<Value<'a>>, EvalError> {
        match self {
            Self::Object(record) => match record.object().position(name) {
                Some(at) => record.field(at),
                None => Ok(None),
            },
            _ => Err(EvalError::no_such_overload()),
        }
    }

    pub(crate) fn as_str(&self) -> Result<&str, EvalError> {
        match self {
            Self::String(text) => Ok(text),
            _ => Err(EvalError::no_such_overload()),
        }
    }

    pub(crate) fn as_int(&self) -> Result<i64, EvalError> {
        match self {
            Self::Int(value) => Ok(*value),
            _ => Err(EvalError::no_such_overload()),
        }
    }

    pub(crate) fn as_list(&self) -> Result<&List<'a>, EvalError> {
        match self {
            Self::List(list) => Ok(list),
            _ => Err(EvalError::no_such_overload()),
        }
    }
}

fn mistyped(json: &Json, shape: &Shape) -> EvalError {
    let given = match json {
        Json::Array(_) => "array",
        Json::Object(_) => "object",
        Json::String(_) => "string",
        Json::Number(_) => "number",
        Json::Bool(_) => "boolean",
        Json::Null => "null",
    };
    EvalError::Failed(format!("invalid data, expected {} but got {given}", shape.word()))
}

impl Shape {
    fn word(&self) -> &'static str {
        match self {
            Self::Any => "any value",
            Self::Bool => "a boolean",
            Self::Int => "an integer",
            Self::Double => "a number",
            Self::String => "a string",
            Self::Bytes => "base64",
            Self::Timestamp => "a date and time",
            Self::Date => "a date",
            Self::Duration => "a duration",
            Self::List { .. } => "an array",
            Self::Map(_) | Self::Object(_) => "an object",
            Self::Computed(_) => "what is computed",
        }
    }
}

/// Converts a string by the format of its schema.
fn text_of<'a>(text: &str, shape: &Shape) -> Eval<'a> {
    let invalid =
        || EvalError::Failed(format!("invalid data, expected {} but got {text:?}", shape.word()));
    match shape {
        Shape::Bytes => {
            let engine = base64::engine::general_purpose::STANDARD;
            engine.decode(text).map(|bytes| Value::Bytes(bytes.into())).map_err(|_| invalid())
        }
        Shape::Timestamp => text.parse().map(Value::Timestamp).map_err(|_| invalid()),
        Shape::Date => {
            format!("{text}T00:00:00Z").parse().map(Value::Timestamp).map_err(|_| invalid())
        }
        Shape::Duration => {
            text.parse::<GoDuration>().map(|d| Value::Duration(d.nanos())).map_err(|_| invalid())
        }
        _ => Err(invalid()),
    }
}

impl<'a> List<'a> {
    /// Returns the number of items.
    pub fn len(&self) -> usize {
        match self {
            Self::Json { items, .. } => items.len(),
            Self::Items(items) | Self::Kind(items, _) => items.len(),
            Self::Joined(_, length) => *length,
        }
    }

    /// Reports whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the item at an index within the list.
    pub fn get(&self, at: usize) -> Result<Value<'a>, EvalError> {
        let outside = || EvalError::Failed(format!("index out of bounds: {at}"));
        match self {
            Self::Json { items, item, .. } => {
                Value::from_json(items.get(at).ok_or_else(outside)?, item)
            }
            Self::Items(items) | Self::Kind(items, _) => items.get(at).cloned().ok_or_else(outside),
            Self::Joined(both, _) => {
                let first = both.0.len();
                if at < first { both.0.get(at) } else { both.1.get(at - first) }
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, EvalError>> + '_ {
        (0..self.len()).map(|at| self.get(at))
    }

    fn kind(&self) -> &ListKind {
        match self {
            Self::Json { kind, .. } => kind,
            Self::Kind(_, kind) => kind,
            _ => &ATOMIC,
        }
    }

    pub(crate) fn join(&self, other: &List<'a>) -> Result<List<'a>, EvalError> {
        if *self.kind() != ListKind::Atomic {
            return self.merged(other);
        }
        if self.is_empty() {
            return Ok(other.clone());
        }
        if other.is_empty() {
            return Ok(self.clone());
        }
        let length = self.len().checked_add(other.len()).ok_or(EvalError::CostLimit)?;
        Ok(Self::Joined(Arc::new((self.clone(), other.clone())), length))
    }

    /// Concatenates sets to their union. In keyed lists, items of `other` replace items with the same keys.
    fn merged(&self, other: &List<'a>) -> Result<List<'a>, EvalError> {
        let kind = self.kind().clone();
        let mut items: Vec<Value<'a>> = self.iter().collect::<Result<_, _>>()?;
        let mut places: HashMap<String, usize> = HashMap::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            places.insert(identity(item, &kind)?, at);
        }
        for item in other.iter() {
            let item = item?;
            match places.get(&identity(&item, &kind)?) {
                Some(at) => items[*at] = item,
                None => {
                    places.insert(identity(&item, &kind)?, items.len());
                    items.push(item);
                }
            }
        }
        Ok(Self::Kind(Arc::new(items), kind))
    }

    pub(crate) fn contains(&self, wanted: &Value<'a>, work: &mut Work) -> Result<bool, EvalError> {
        for item in self.iter() {
            if equal(&item?, wanted, work)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the identity of an item in a set or keyed list.
fn identity(item: &Value<'_>, kind: &ListKind) -> Result<String, EvalError> {
    match (kind, item) {
        (ListKind::Map(keys), Value::Object(Record::Json { members, .. })) => {
            let key =
                |key: &Arc<str>| members.get(&**key).map_or_else(String::new, Json::to_string);
            Ok(keys.iter().map(key).collect::<Vec<_>>().join("\0"))
        }
        _ => Ok(item.to_json()?.to_string()),
    }
}

impl<'a> Map<'a> {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        match self {
            Self::Json { members, .. } => members.len(),
            Self::Entries(entries) => entries.items.len(),
        }
    }

    /// Reports whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of a key, or an error if the value does not match its schema. JSON keys are strings.
    pub fn get(&self, key: &Value<'_>) -> Result<Option<Value<'a>>, EvalError> {
        match (self, key) {
            (Self::Json { members, value }, Value::String(key)) => {
                members.get(&**key).map(|json| Value::from_json(json, value)).transpose()
            }
            (Self::Json { .. }, _) => Ok(None),
            (Self::Entries(entries), key) => {
                Ok(entries.get(key).or(entries.missing.as_ref()).cloned())
            }
        }
    }

    /// Reports whether the map has the key, for `in`.
    pub(crate) fn contains(&self, key: &Value<'_>) -> Result<bool, EvalError> {
        match self {
            Self::Json { .. } => Ok(self.get(key)?.is_some()),
            Self::Entries(entries) => Ok(entries.get(key).is_some()),
        }
    }

    /// Returns all entries.
    pub fn entries(
        &self,
    ) -> Box<dyn Iterator<Item = Result<(Value<'a>, Value<'a>), EvalError>> + '_> {
        match self {
            Self::Json { members, value } => Box::new(members.iter().map(|(key, json)| {
                Ok((Value::String(Text::Borrowed(key)), Value::from_json(json, value)?))
            })),
            Self::Entries(entries) => Box::new(entries.items.iter().cloned().map(Ok)),
        }
    }

    fn entry(&self, at: usize) -> Result<(Value<'a>, Value<'a>), EvalError> {
        self.entries().nth(at).unwrap_or_else(|| Err(EvalError::no_such_key(at)))
    }

    pub(crate) fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Self::Json { members, .. } => {
                members.keys().map(|key| Value::String(Text::Borrowed(key))).collect()
            }
            Self::Entries(entries) => entries.items.iter().map(|(key, _)| key.clone()).collect(),
        }
    }
}

impl Key {
    fn of(value: &Value<'_>) -> Option<Self> {
        Some(match value {
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Number((*value).into()),
            Value::Uint(value) => Self::Number((*value).into()),
            Value::Double(value) if value.fract() == 0.0 && value.abs() < 1e19 => {
                Self::Number(*value as i128)
            }
            Value::String(Text::Shared(text)) => Self::String(Arc::clone(text)),
            Value::String(text) => Self::String(Arc::from(&**text)),
            _ => return None,
        })
    }
}

impl<'a> Entries<'a> {
    pub(crate) fn get(&self, key: &Value<'_>) -> Option<&Value<'a>> {
        let at = self.index.get(&Key::of(key)?)?;
        Some(&self.items[*at].1)
    }

    /// Adds a new key of a key type.
    pub(crate) fn insert(&mut self, key: Value<'a>, value: Value<'a>) -> Result<(), EvalError> {
        let Some(at) = Key::of(&key).filter(|_| !matches!(key, Value::Double(_))) else {
            return Err(EvalError::Failed(format!(
                "unsupported key type: {}",
                key.type_of().name()
            )));
        };
        if self.index.insert(at, self.items.len()).is_some() {
            let shown = crate::format::show(&key);
            return Err(EvalError::Failed(format!("insert failed: key {shown} already exists")));
        }
        self.items.push((key, value));
        Ok(())
    }
}

impl<'a> Record<'a> {
    /// Returns the object's type.
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Self::Json { object, .. } => object,
            Self::Made { object, .. } => object,
            Self::Composed(object) => object,
        }
    }

    /// Returns the field at an index of the type's fields, if it is set.
    pub(crate) fn field(&self, at: usize) -> Result<Option<Value<'a>>, EvalError> {
        match self {
            Self::Json { members, object } => {
                let field = &object.fields[at];
                let json = members.get(&*field.key).filter(|json| !json.is_null());
                json.map(|json| Value::from_json(json, &field.decl)).transpose()
            }
            Self::Made { fields, .. } => Ok(fields[at].clone()),
            Self::Composed(_) => Err(EvalError::no_such_overload()),
        }
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        match self {
            // A null field is absent, unlike a null item or entry.
            Self::Json { members, object } => {
                members.get(&*object.fields[at].key).is_some_and(|json| !json.is_null())
            }
            Self::Made { fields, .. } => fields[at].is_some(),
            Self::Composed(_) => true,
        }
    }

    fn to_json(&self) -> Result<Json, EvalError> {
        match self {
            Self::Json { members, .. } => Ok(Json::Object((*members).clone())),
            Self::Made { object, fields } => {
                let mut members = JsonMap::new();
                for (field, value) in object.fields.iter().zip(fields.iter()) {
                    if let Some(value) = value {
                        members.insert(field.key.to_string(), value.to_json()?);
                    }
                }
                Ok(Json::Object(members))
            }
            Self::Composed(_) => Err(EvalError::no_such_overload()),
        }
    }
}

/// The remaining work of functions: steps through lists and copied bytes. Upstream's costs do not bound this work.
#[derive(Debug)]
pub(crate) struct Work(pub(crate) u64);

impl Work {
    pub(crate) fn spend(&mut self, steps: u64) -> Result<(), EvalError> {
        self.0 = self.0.checked_sub(steps).ok_or(EvalError::CostLimit)?;
        Ok(())
    }
}

/// Reports whether two values are equal. Values of different types are not, except numbers.
pub(crate) fn equal(a: &Value<'_>, b: &Value<'_>, work: &mut Work) -> Result<bool, EvalError> {
    work.spend(1)?;
    Ok(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::String(a), Value::String(b)) => {
            work.spend(a.len().min(b.len()) as u64 / 16)?;
            **a == **b
        }
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a.name() == b.name(),
        (Value::Opaque(a), Value::Opaque(b)) => a == b,
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(a)), Value::Optional(Some(b))) => equal(a, b, work)?,
        (Value::List(a), Value::List(b)) => lists_equal(a, b, work)?,
        (Value::Map(a), Value::Map(b)) => maps_equal(a, b, work)?,
        (Value::Object(a), Value::Object(b)) => records_equal(a, b, work)?,
        _ => numbers(a, b) == Some(Ordering::Equal),
    })
}

fn lists_equal(a: &List<'_>, b: &List<'_>, work: &mut Work) -> Result<bool, EvalError> {
    if a.len() != b.len() {
        return Ok(false);
    }
    if *a.kind() != ListKind::Atomic {
        return unordered_equal(a, b, work);
    }
    for (a, b) in a.iter().zip(b.iter()) {
        if !equal(&a?, &b?, work)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Compares sets and keyed lists in any order.
fn unordered_equal(a: &List<'_>, b: &List<'_>, work: &mut Work) -> Result<bool, EvalError> {
    let kind = a.kind().clone();
    let mut others = HashMap::with_capacity(b.len());
    for item in b.iter() {
        let item = item?;
        others.insert(identity(&item, &kind)?, item);
    }
    for item in a.iter() {
        let item = item?;
        match others.get(&identity(&item, &kind)?) {
            Some(other) if equal(&item, other, work)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn maps_equal(a: &Map<'_>, b: &Map<'_>, work: &mut Work) -> Result<bool, EvalError> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for entry in a.entries() {
        let (key, value) = entry?;
        match b.get(&key)? {
            Some(other) if equal(&value, &other, work)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn records_equal(a: &Record<'_>, b: &Record<'_>, work: &mut Work) -> Result<bool, EvalError> {
    if a.object() != b.object() {
        return Ok(false);
    }
    if let (Record::Composed(_), Record::Composed(_)) = (a, b) {
        return Ok(true);
    }
    for at in 0..a.object().fields.len() {
        match (a.field(at)?, b.field(at)?) {
            (None, None) => {}
            (Some(a), Some(b)) if equal(&a, &b, work)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Compares numbers of any type. Returns `None` for NaN and for other types.
pub(crate) fn numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    match (a, b) {
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Double(a), b) => with_double(whole(b)?, *a).map(Ordering::reverse),
        (a, Value::Double(b)) => with_double(whole(a)?, *b),
        (a, b) => Some(whole(a)?.cmp(&whole(b)?)),
    }
}

fn whole(value: &Value<'_>) -> Option<i128> {
    match value {
        Value::Int(value) => Some((*value).into()),
        Value::Uint(value) => Some((*value).into()),
        _ => None,
    }
}

/// Compares as doubles, as upstream does for a double within the integer ranges.
fn with_double(whole: i128, double: f64) -> Option<Ordering> {
    if double < i64::MIN as f64 {
        return Some(Ordering::Greater);
    }
    if double > u64::MAX as f64 {
        return Some(Ordering::Less);
    }
    (whole as f64).partial_cmp(&double)
}

/// Compares two values of an ordered type.
pub(crate) fn compare(a: &Value<'_>, b: &Value<'_>) -> Result<Option<Ordering>, EvalError> {
    Ok(match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Some((**a).cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Some(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Some(a.cmp(b)),
        (
            Value::Int(_) | Value::Uint(_) | Value::Double(_),
            Value::Int(_) | Value::Uint(_) | Value::Double(_),
        ) => numbers(a, b),
        _ => return Err(EvalError::no_such_overload()),
    })
}

//! Values of expressions. Values from a JSON tree borrow it, and are converted lazily by their schema. Read [`Value`]
//! first.

use std::{
    collections::{HashMap, hash_map},
    fmt,
    ops::{Deref, Range},
    sync::Arc,
};

use api_meta::Timestamp;
use serde_json::{Map as JsonMap, Value as Json};

use crate::{
    error::EvalError,
    opaque::Opaque,
    types::{Decl, ListKind, Object, Type},
};

pub(crate) mod compare;
mod json;

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

impl<'a> Text<'a> {
    /// Returns a part of a string, without a copy if the string is borrowed.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::Borrowed(text) => Self::Borrowed(&text[range]),
            Self::Shared(text) => Self::Shared(text[range].into()),
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
    Literal {
        object: Arc<Object>,
        fields: Arc<Vec<Option<Value<'a>>>>,
    },
    /// `variables`, whose fields the activation evaluates on use.
    Composed(Arc<Object>),
}

pub(crate) type Eval<'a> = Result<Value<'a>, EvalError>;

static ATOMIC: ListKind = ListKind::Atomic;

impl<'a> Value<'a> {
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
        let mut map = Entries::default();
        for (key, value) in entries {
            map.insert(key, value)?;
        }
        Ok(Self::Map(Map::Entries(Arc::new(map))))
    }

    /// Creates a map with a default value for lookups of other keys.
    pub fn map_or(
        entries: impl IntoIterator<Item = (Value<'a>, Value<'a>)>,
        missing: Value<'a>,
    ) -> Result<Self, EvalError> {
        let mut map = Entries { missing: Some(missing), ..Entries::default() };
        for (key, value) in entries {
            map.insert(key, value)?;
        }
        Ok(Self::Map(Map::Entries(Arc::new(map))))
    }

    /// Creates a record of a declared type. Fields that are not given are absent.
    pub fn record(object: &Arc<Object>, values: Vec<(&str, Value<'a>)>) -> Self {
        let mut fields = vec![None; object.fields.len()];
        for (name, value) in values {
            if let Some(at) = object.position(name) {
                fields[at] = Some(value);
            }
        }
        Self::Object(Record::Literal { object: Arc::clone(object), fields: Arc::new(fields) })
    }

    /// Parses a semantic version, `kubernetes.Semver`.
    pub fn semver(text: &str) -> Result<Self, EvalError> {
        let version = crate::semver::Version::parse(text)?;
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

    /// Reports whether the value has a type, regardless of the types of items.
    pub(crate) fn is_kind_of(&self, ty: &Type) -> bool {
        matches!(ty, Type::Dyn | Type::Param(_))
            || std::mem::discriminant(&self.type_of()) == std::mem::discriminant(ty)
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

    /// Returns errors for built objects whose type name is not their field path: `Object.spec` is only valid for the
    /// field `spec` of `Object`.
    pub fn misnamed(&self) -> Vec<String> {
        let mut found = Vec::new();
        if let Self::Object(record) = self {
            self.misnamed_at(&record.object().name, &mut found);
        }
        found
    }

    fn misnamed_at(&self, expected: &str, found: &mut Vec<String>) {
        match self {
            Self::Object(Record::Literal { object, fields }) => {
                let actual = &object.name;
                if **actual != *expected {
                    found.push(format!(
                        "unexpected type name \"{actual}\", expected \"{expected}\", which matches \
                        field name path from root Object type"
                    ));
                }
                for (field, value) in object.fields.iter().zip(fields.iter()) {
                    let Some(value) = value else { continue };
                    value.misnamed_at(&format!("{expected}.{}", field.name), found);
                }
            }
            // Elements of lists and maps have the type name of their container.
            Self::List(List::Items(items)) => {
                items.iter().for_each(|item| item.misnamed_at(expected, found));
            }
            Self::Map(Map::Entries(entries)) => {
                entries.items.iter().for_each(|(_, value)| value.misnamed_at(expected, found));
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

    pub(crate) fn as_opaque(&self) -> Result<&Opaque, EvalError> {
        match self {
            Self::Opaque(opaque) => Ok(opaque),
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

    pub(crate) fn kind(&self) -> &ListKind {
        match self {
            Self::Json { kind, .. } => kind,
            Self::Kind(_, kind) => kind,
            _ => &ATOMIC,
        }
    }

    pub(crate) fn join(&self, other: &List<'a>) -> Result<List<'a>, EvalError> {
        if *self.kind() != ListKind::Atomic {
            return self.merge(other);
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
    fn merge(&self, other: &List<'a>) -> Result<List<'a>, EvalError> {
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
}

/// Returns the identity of an item in a set or keyed list.
pub(crate) fn identity(item: &Value<'_>, kind: &ListKind) -> Result<String, EvalError> {
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

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::String(text) => text.fmt(f),
        }
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
        match self.index.entry(at) {
            hash_map::Entry::Occupied(entry) => {
                let key = entry.key();
                Err(EvalError::Failed(format!("insert failed: key {key} already exists")))
            }
            hash_map::Entry::Vacant(entry) => {
                entry.insert(self.items.len());
                self.items.push((key, value));
                Ok(())
            }
        }
    }
}

impl<'a> Record<'a> {
    /// Returns the object's type.
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Self::Json { object, .. } => object,
            Self::Literal { object, .. } => object,
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
            Self::Literal { fields, .. } => Ok(fields[at].clone()),
            Self::Composed(_) => Err(EvalError::no_such_overload()),
        }
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        match self {
            // A null field is absent, unlike a null item or entry.
            Self::Json { members, object } => {
                members.get(&*object.fields[at].key).is_some_and(|json| !json.is_null())
            }
            Self::Literal { fields, .. } => fields[at].is_some(),
            Self::Composed(_) => true,
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

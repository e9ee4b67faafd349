//! The types of expressions, and schema declarations of values: type, maximum size and fields.

use std::{fmt, sync::Arc};

/// The type of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// Any type, which is only checked at evaluation.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    Optional(Arc<Type>),
    /// The type of a type.
    Type(Arc<Type>),
    /// An opaque type of a library, such as `net.IP` or `kubernetes.Quantity`.
    Opaque(&'static str),
    Object(Arc<Object>),
    /// A type parameter of a declaration, or a type variable during type checking.
    Param(u32),
    /// The type of an invalid expression, which suppresses further errors.
    Error,
}

impl Type {
    /// Returns the type of lists of `of`.
    pub fn list(of: Type) -> Self {
        Self::List(Arc::new(of))
    }

    /// Returns the type of maps. Keys are bool, int, uint or string.
    pub fn map(key: Type, value: Type) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    /// Returns the type of `optional.of` and `optional.none`.
    pub fn optional(of: Type) -> Self {
        Self::Optional(Arc::new(of))
    }

    /// Returns the type of the value of `type(x)`.
    pub fn type_of(of: Type) -> Self {
        Self::Type(Arc::new(of))
    }

    /// Returns a type of the language by its name in expressions.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => Self::Bool,
            "int" => Self::Int,
            "uint" => Self::Uint,
            "double" => Self::Double,
            "string" => Self::String,
            "bytes" => Self::Bytes,
            "null_type" => Self::Null,
            "dyn" => Self::Dyn,
            "timestamp" | "google.protobuf.Timestamp" => Self::Timestamp,
            "duration" | "google.protobuf.Duration" => Self::Duration,
            "list" => Self::list(Self::Dyn),
            "map" => Self::map(Self::Dyn, Self::Dyn),
            "type" => Self::type_of(Self::Dyn),
            "optional_type" => Self::optional(Self::Dyn),
            _ => return None,
        })
    }

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
    }

    /// Returns the type arguments.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Type> {
        let (first, second) = match self {
            Self::List(of) | Self::Optional(of) | Self::Type(of) => (Some(&**of), None),
            Self::Map(entry) => (Some(&entry.0), Some(&entry.1)),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Returns the type with replaced type arguments.
    pub(crate) fn rebuilt(&self, with: &mut dyn FnMut(&Type) -> Type) -> Type {
        match self {
            Self::List(of) => Self::list(with(of)),
            Self::Optional(of) => Self::optional(with(of)),
            Self::Type(of) => Self::type_of(with(of)),
            Self::Map(entry) => {
                let key = with(&entry.0);
                Self::map(key, with(&entry.1))
            }
            other => other.clone(),
        }
    }

    /// Reports whether all values of the type have the same size.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Self::Optional(of) => of.is_scalar(),
            Self::Bool
            | Self::Double
            | Self::Duration
            | Self::Int
            | Self::Timestamp
            | Self::Uint => true,
            _ => false,
        }
    }

    /// Formats the type as in declarations, such as `list(string)` or `google.protobuf.Timestamp`.
    pub fn declared(&self) -> String {
        let parameters: Vec<String> = self.parameters().map(Self::declared).collect();
        match parameters.as_slice() {
            [] => self.name().to_owned(),
            parameters => format!("{}({})", self.name(), parameters.join(", ")),
        }
    }

    /// Returns the name that `type(x)` prints.
    pub fn name(&self) -> &str {
        match self {
            Self::Dyn | Self::Error => "dyn",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Duration => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
            Self::Opaque(name) => name,
            Self::Object(object) => &object.name,
            Self::Param(_) => "param",
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::Error => f.write_str("!error!"),
            Self::List(of) => write!(f, "list({of})"),
            Self::Map(entry) => write!(f, "map({}, {})", entry.0, entry.1),
            Self::Optional(of) => write!(f, "optional_type({of})"),
            Self::Type(of) => write!(f, "type({of})"),
            Self::Param(_) => f.write_str("dyn"),
            other => f.write_str(other.name()),
        }
    }
}

/// The schema declaration of a value in a JSON tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Decl {
    /// The type of the JSON value.
    pub shape: Shape,
    /// The maximum size: characters of a string, elements of a list or map.
    pub max_size: u64,
    /// The minimum number of bytes in JSON. It bounds how often the value fits into a request.
    pub min_serialized: u64,
}

/// The interpretation of a JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Any value: `x-kubernetes-int-or-string`, or data without a schema.
    Any,
    Bool,
    Int,
    Double,
    String,
    /// A string in base64.
    Bytes,
    /// A string in RFC 3339 format.
    Timestamp,
    /// A date without a time.
    Date,
    /// A string in Go's duration format.
    Duration,
    List {
        item: Arc<Decl>,
        kind: ListKind,
    },
    Map(Arc<Decl>),
    Object(Arc<Object>),
    /// The result of an expression, which is never read from JSON.
    Computed(Type),
}

/// The `x-kubernetes-list-type`, which determines comparison and concatenation of lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListKind {
    #[default]
    Atomic,
    Set,
    /// A list with these keys, by their JSON names.
    Map(Arc<[Arc<str>]>),
}

/// A type with fields.
#[derive(Debug)]
pub struct Object {
    /// The type's name in messages.
    pub name: Arc<str>,
    /// The fields, sorted by their names in expressions.
    pub fields: Vec<Field>,
}

/// Object types are compared by name.
impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Object {}

/// A field of an object, as its schema declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The escaped name in expressions.
    pub name: Arc<str>,
    /// The name in JSON.
    pub key: Arc<str>,
    /// The declaration of the field's value.
    pub decl: Decl,
}

impl Object {
    /// Creates an object type and sorts its fields by name.
    pub fn new(name: impl Into<Arc<str>>, mut fields: Vec<Field>) -> Arc<Self> {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        Arc::new(Self { name: name.into(), fields })
    }

    /// Returns the index of a field. The name may be a reserved word, which needs no escape after a dot:
    /// `metadata.namespace` is the field `__namespace__`.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        let find = |name: &str| self.fields.binary_search_by(|field| (*field.name).cmp(name)).ok();
        find(name).or_else(|| is_reserved(name).then(|| find(&format!("__{name}__"))).flatten())
    }
}

impl Decl {
    /// The declaration of data without a schema.
    pub const ANY: Decl = Decl { shape: Shape::Any, max_size: u64::MAX, min_serialized: 1 };

    /// Creates a declaration. `max_size` counts items, entries or characters, and `min_serialized` bytes of JSON. Both
    /// bound the estimated costs.
    pub fn new(shape: Shape, max_size: u64, min_serialized: u64) -> Self {
        Self { shape, max_size, min_serialized }
    }

    /// Returns the type of an expression with such a value.
    pub fn cel_type(&self) -> Type {
        match &self.shape {
            Shape::Any => Type::Dyn,
            Shape::Bool => Type::Bool,
            Shape::Int => Type::Int,
            Shape::Double => Type::Double,
            Shape::String => Type::String,
            Shape::Bytes => Type::Bytes,
            Shape::Timestamp | Shape::Date => Type::Timestamp,
            Shape::Duration => Type::Duration,
            Shape::List { item, .. } => Type::list(item.cel_type()),
            Shape::Map(value) => Type::map(Type::String, value.cel_type()),
            Shape::Object(object) => Type::Object(Arc::clone(object)),
            Shape::Computed(ty) => ty.clone(),
        }
    }

    /// Returns the declaration below, by a step of a path: a field's name in expressions, `@items`, `@values`, or
    /// `@keys`.
    pub fn below(&self, step: &str) -> Option<&Decl> {
        match (&self.shape, step) {
            (Shape::List { item, .. }, "@items") => Some(item),
            (Shape::Map(value), "@values") => Some(value),
            (Shape::Map(_), "@keys") => Some(&KEY),
            (Shape::Object(object), name) => {
                object.position(name).map(|at| &object.fields[at].decl)
            }
            _ => None,
        }
    }
}

/// The declaration of map keys. Upstream does not bound their size, and counts it as zero.
static KEY: Decl = Decl { shape: Shape::String, max_size: 0, min_serialized: 2 };

/// The reserved identifiers. The last four are keywords.
const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
    "true",
    "false",
    "null",
    "in",
];

/// Reports whether a name is reserved, so that no variable may have it.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// Escapes a property's name for expressions, such as `__namespace__` or `x__dash__y`. Returns `None` for a name that
/// cannot be written at all.
pub fn escape(name: &str) -> Option<String> {
    let first = name.chars().next()?;
    let legal = |c: char| c.is_ascii_alphanumeric() || "_.-/".contains(c);
    if first.is_ascii_digit() || !name.chars().all(legal) {
        return None;
    }
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let escaped = name.replace("__", "__underscores__");
    Some(escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}

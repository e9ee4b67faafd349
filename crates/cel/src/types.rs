//! Types of expressions, and what a schema says of a value: its type, its greatest size, its fields.

use std::{fmt, sync::Arc};

/// The type of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// Any type; nothing is checked before the value is there.
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
    /// A type of a library, without fields: `net.IP`, `kubernetes.Quantity`.
    Opaque(&'static str),
    Object(Arc<Object>),
    /// A type to be found out: a parameter of a declaration, or, while an expression is checked, a variable.
    Param(u32),
    /// Of an expression that is wrong, so that it is complained about once.
    Error,
}

impl Type {
    /// The type of lists of one type.
    pub fn list(of: Type) -> Self {
        Self::List(Arc::new(of))
    }

    /// The type of maps; keys are bool, int, uint or string.
    pub fn map(key: Type, value: Type) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    /// The type of `optional.of` and `optional.none`.
    pub fn optional(of: Type) -> Self {
        Self::Optional(Arc::new(of))
    }

    /// The type of what `type(x)` gives.
    pub fn type_of(of: Type) -> Self {
        Self::Type(Arc::new(of))
    }

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
    }

    /// The types that this one is made with.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Type> {
        let (first, second) = match self {
            Self::List(of) | Self::Optional(of) | Self::Type(of) => (Some(&**of), None),
            Self::Map(entry) => (Some(&entry.0), Some(&entry.1)),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// The type with its parameters replaced.
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

    /// Values of these types have one size.
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

    /// The type as a declaration has it: `list(string)`, `google.protobuf.Timestamp`.
    pub fn declared(&self) -> String {
        let parameters: Vec<String> = self.parameters().map(Self::declared).collect();
        match parameters.as_slice() {
            [] => self.name().to_owned(),
            parameters => format!("{}({})", self.name(), parameters.join(", ")),
        }
    }

    /// What `type(x)` prints as.
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

/// What a schema says of a value in a JSON tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Decl {
    pub shape: Shape,
    /// The greatest size: of a text in characters, of a list or map in elements.
    pub max_size: u64,
    /// The least number of bytes that it takes in JSON, from which it follows how often it fits into a request.
    pub min_serialized: u64,
}

/// How JSON is read.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// As it is: `x-kubernetes-int-or-string`, or data without a schema.
    Any,
    Bool,
    Int,
    Double,
    String,
    /// base64.
    Bytes,
    /// RFC 3339.
    Timestamp,
    /// A date without a time.
    Date,
    /// Go's duration text.
    Duration,
    List {
        item: Arc<Decl>,
        kind: ListKind,
    },
    Map(Arc<Decl>),
    Object(Arc<Object>),
    /// What an expression makes. It is never read from JSON.
    Computed(Type),
}

/// `x-kubernetes-list-type`: how lists are compared and joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListKind {
    #[default]
    Atomic,
    Set,
    /// By the JSON names of its keys.
    Map(Arc<[Arc<str>]>),
}

/// A type with fields.
#[derive(Debug)]
pub struct Object {
    pub name: Arc<str>,
    /// Sorted by the name in expressions.
    pub fields: Vec<Field>,
}

/// Types with fields are told apart by their names.
impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Object {}

/// A field of an object, as its schema declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The name in expressions, escaped.
    pub name: Arc<str>,
    /// The name in JSON.
    pub key: Arc<str>,
    pub decl: Decl,
}

impl Object {
    /// An object type by its name in messages; fields are found by their names in expressions.
    pub fn new(name: impl Into<Arc<str>>, mut fields: Vec<Field>) -> Arc<Self> {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        Arc::new(Self { name: name.into(), fields })
    }

    /// Returns the place of a field. The name may be a reserved word, which needs no escape behind a dot:
    /// `metadata.namespace` is the field `__namespace__`.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        let find = |name: &str| self.fields.binary_search_by(|field| (*field.name).cmp(name)).ok();
        find(name).or_else(|| is_reserved(name).then(|| find(&format!("__{name}__"))).flatten())
    }
}

impl Decl {
    /// Data of which nothing is known.
    pub const ANY: Decl = Decl { shape: Shape::Any, max_size: u64::MAX, min_serialized: 1 };

    /// A declaration. `max_size` counts items, entries or characters, `min_serialized` bytes of JSON: costs are
    /// estimated by them.
    pub fn new(shape: Shape, max_size: u64, min_serialized: u64) -> Self {
        Self { shape, max_size, min_serialized }
    }

    /// The type of an expression that has such a value.
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

    /// What is below, by a step of a path: a field's name in expressions, `@items`, `@values`, `@keys`.
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

/// Keys of a map: upstream bounds their size by nothing at all, which counts as zero.
static KEY: Decl = Decl { shape: Shape::String, max_size: 0, min_serialized: 2 };

/// Words that name no variable, beside those that the lexer knows.
pub(crate) const RESERVED: [&str; 17] = [
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
];

/// Reports whether a name is a word of the language, which names no variable.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || matches!(name, "true" | "false" | "null" | "in")
}

/// A property's name as expressions write it, where CEL cannot have it as it is: `__namespace__`, `x__dash__y`.
/// Nothing for a name that cannot be written at all.
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

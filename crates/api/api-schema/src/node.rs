//! The nodes of schemas: shapes, members and keywords.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

/// An index into the arena of a [`Schema`](crate::Schema). Recursive types (JSONSchemaProps) are cycles of IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// The name of the schemas in CustomResourceDefinitions.
pub(crate) const JSON_SCHEMA: &str =
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// A type, or one use of a type, in a schema's arena.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The shape of the values.
    pub shape: Shape,
    /// The OpenAPI name of a named type, such as `io.k8s.api.core.v1.Pod`.
    pub name: Option<Arc<str>>,
    /// `true` if a custom resource's value may be `null`.
    pub nullable: bool,
    /// `true` if undeclared members are kept: `x-kubernetes-preserve-unknown-fields` of the node or of a list that
    /// contains it. Values of other types than the node's are treated in the same way.
    pub preserve_unknown: bool,
    /// The default of an absent value.
    pub default: Option<Value>,
    /// JSON schema keywords besides the shape, mostly of custom resources.
    pub rules: Option<Box<Rules>>,
}

impl Node {
    /// Reports whether the node is a field set (`fieldsV1`), which is as deep as the object that it describes.
    pub fn is_fields(&self) -> bool {
        self.name.as_deref().is_some_and(|name| name.ends_with(".FieldsV1"))
    }

    /// Returns the alternative of a type that is a JSON schema or something else (`items`, `additionalProperties`,
    /// `dependencies`): `Array`, `Bool` or `StringArray`.
    pub fn schema_or(&self) -> Option<&str> {
        self.name.as_deref()?.strip_prefix(JSON_SCHEMA)?.strip_prefix("Or")
    }
}

/// The shape of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Struct(Struct),
    Map {
        value: NodeId,
        atomic: bool,
    },
    /// A list. A named list (`ExtraValue`) is a protobuf message with its items in field 1.
    List {
        item: NodeId,
        list: ListType,
    },
    String,
    Integer {
        bits: u8,
        unsigned: bool,
    },
    Number,
    Boolean,
    /// Bytes, in base64 in JSON.
    Bytes,
    Quantity,
    IntOrString,
    /// RFC 3339 with seconds; `null` if zero.
    Time,
    /// RFC 3339 with microseconds.
    MicroTime,
    /// A duration in Go's format, such as `1h30m`.
    Duration,
    /// Any value, without pruning: RawExtension, JSON, FieldsV1, and `x-kubernetes-preserve-unknown-fields` without a
    /// type.
    Any,
}

/// An object with declared members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Struct {
    /// The members, sorted by JSON name.
    pub fields: Vec<Field>,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic: bool,
    /// `true` if server-side apply accepts undeclared members: below any `x-kubernetes-preserve-unknown-fields`, and in
    /// objects without declared members.
    pub open: bool,
    /// `x-kubernetes-embedded-resource`.
    pub embedded_resource: bool,
    /// The protobuf message of a built-in type, such as `k8s.io.api.core.v1.PodSpec`.
    pub message: Option<Arc<str>>,
    /// The prepared lookup tables.
    pub lookup: Lookup,
}

/// The lookup table of a complete struct.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lookup {
    /// The first bytes of each field name as a number, in field order. Most names differ in them, and comparing
    /// adjacent numbers is faster than comparing strings on the heap.
    pub(crate) prefixes: Box<[u64]>,
    /// The fields with a default.
    pub(crate) defaulted: Box<[u32]>,
    /// The fields whose zero value, or `null`, is written.
    pub(crate) always: Box<[u32]>,
}

/// A member of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The JSON name.
    pub name: Arc<str>,
    /// The node of the member's values.
    pub node: NodeId,
    /// `true` if the member must be present.
    pub required: bool,
    /// The default of this member, which wins over the node's.
    pub default: Option<Value>,
    /// The treatment of zero values.
    pub presence: Presence,
    /// The strategic merge patch settings: `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key`.
    pub patch: Patch,
    /// The path of protobuf field numbers: one number, two if protobuf nests a struct that JSON inlines (`VolumeSource`
    /// in `Volume`), or none if protobuf lacks the field.
    pub proto: ProtoPath,
}

/// Go's treatment of a member's zero value (`""`, `0`, `false`, `{}`, an empty list).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// Zero differs from absent (Go pointers). Both are kept.
    #[default]
    Distinct,
    /// Zero means absent, and is omitted (Go values with `omitempty`).
    OmitZero,
    /// Absent means zero, and is written (Go values without `omitempty`), such as `resources: {}`.
    Always,
    /// Absent means nil, and is written as `null`, such as `rules: null`. An empty list is kept. These are Go slices
    /// and maps without `omitempty`, and times that are values.
    Null,
}

/// A path of protobuf field numbers. See [`Field::proto`].
pub type ProtoPath = Box<[u32]>;

/// The merge of a list or map by a strategic merge patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// `true` if items are merged by `merge_key` or, without one, as a set. Otherwise the list is replaced.
    pub merge: bool,
    /// `true` if members that the patch does not name are removed.
    pub retain_keys: bool,
    /// The member that identifies a list item.
    pub merge_key: Option<Arc<str>>,
}

/// The `x-kubernetes-list-type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    Map(Box<[Arc<str>]>),
}

/// JSON schema keywords of custom resources, and enums of built-in types.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// The string format.
    pub format: Option<Box<str>>,
    /// The allowed values; empty for all.
    pub enumeration: Vec<Value>,
    /// The regular expression of a string.
    pub pattern: Option<Pattern>,
    /// The minimum of a number.
    pub minimum: Option<f64>,
    /// `true` if the minimum itself is not allowed.
    pub exclusive_minimum: bool,
    /// The maximum of a number.
    pub maximum: Option<f64>,
    /// `true` if the maximum itself is not allowed.
    pub exclusive_maximum: bool,
    /// The divisor of a number.
    pub multiple_of: Option<f64>,
    /// The minimum number of characters of a string.
    pub min_length: Option<u64>,
    /// The maximum number of characters of a string.
    pub max_length: Option<u64>,
    /// The minimum number of items of a list.
    pub min_items: Option<u64>,
    /// The maximum number of items of a list.
    pub max_items: Option<u64>,
    /// `true` if items must be distinct.
    pub unique_items: bool,
    /// The minimum number of members of an object.
    pub min_properties: Option<u64>,
    /// The maximum number of members of an object.
    pub max_properties: Option<u64>,
    /// Conditions that must all hold.
    pub all_of: Vec<NodeId>,
    /// Conditions, at least one of them true.
    pub any_of: Vec<NodeId>,
    /// Conditions, exactly one of them true.
    pub one_of: Vec<NodeId>,
    /// A condition that must not hold.
    pub not: Option<NodeId>,
    /// The required members, including undeclared ones. Declared ones also have `Field::required`.
    pub required: Vec<Box<str>>,
    /// `true` if the schema has no `type`. The shape then determines the rules, but values of other types are valid.
    pub untyped: bool,
    /// `x-kubernetes-embedded-resource`: `apiVersion` and `kind` are mandatory.
    pub embedded: bool,
}

/// A regular expression in Go's dialect. It is compiled when the first value is matched: compiled expressions are
/// large, and most kinds of a cluster have few objects.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Box<str>,
    compiled: OnceLock<Option<regex::Regex>>,
}

impl Pattern {
    /// Creates a pattern from an expression that has been validated.
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), compiled: OnceLock::new() }
    }

    /// Returns the expression as its author wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Reports whether a value matches. An invalid expression matches everything.
    pub fn matches(&self, value: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| api_meta::goregex::compile(&self.text).ok());
        compiled.as_ref().is_none_or(|regex| regex.is_match(value))
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Struct {
    /// Returns the member with this JSON name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.lookup.position(&self.fields, name).map(|i| &self.fields[i])
    }
}

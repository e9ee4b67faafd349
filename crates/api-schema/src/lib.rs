//! The one schema table: what every built-in and custom kind looks like, on the wire and in memory.
//!
//! Pruning, defaulting, structural validation, strategic merge, server-side apply, protobuf, OpenAPI and
//! `explain` all read it. Objects are `serde_json::Value` trees. Built-in kinds share one arena
//! ([`Schema::builtin`]); every version of a custom kind has an arena of its own, made from its
//! `openAPIV3Schema`, with the same node types.
//!
//! Invariants: a tree that has been through [`decode`] holds no `null` outside of free-form values, no
//! member the schema does not know (unless it preserves them), and scalars in upstream's canonical text.
//! Nothing here knows a clock, a socket or a task.

use std::sync::Arc;

use serde_json::Value;

mod builtin;
mod crd;
mod decode;
mod fill;
mod formats;
#[cfg(test)]
mod fuzzed;
mod gowords;
mod lookup;
pub mod openapi;
mod resources;
mod rules;
mod scalar;
mod structural;
mod validate;

pub use decode::{DecodeError, Decoded, Finding, decode, decode_value, prune};
pub use fill::{Fill, apply_defaults, write_nulls};
pub use lookup::Lookup;
pub use resources::{ApiResource, Subresource, resource, resources, returns_deleted};
pub use rules::declared;
pub use validate::{validate, validate_update};

/// An index into [`Schema`]'s arena. Recursive types (JSONSchemaProps) are cycles of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// An arena of nodes and the kinds that start in it.
#[derive(Debug, Default)]
pub struct Schema {
    pub nodes: Vec<Node>,
    /// Sorted by group, version and kind.
    pub kinds: Vec<Kind>,
    /// The type of the schemas in definitions of custom kinds.
    json_schema: Option<NodeId>,
    below: lookup::Below,
    /// A custom kind's `x-kubernetes-validations`.
    rules: Option<rules::Rules>,
    rule_errors: api_meta::ErrorList,
}

/// A kind's entry into the arena.
#[derive(Clone, Debug)]
pub struct Kind {
    pub group: Box<str>,
    pub version: Box<str>,
    pub kind: Box<str>,
    pub node: NodeId,
}

const JSON_SCHEMA: &str =
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// One type, or one use of it, in a schema's arena.
#[derive(Clone, Debug)]
pub struct Node {
    pub shape: Shape,
    /// For a named type, its OpenAPI name (`io.k8s.api.core.v1.Pod`).
    pub name: Option<Arc<str>>,
    pub nullable: bool,
    /// `true` if members that the schema does not declare are kept: `x-kubernetes-preserve-unknown-fields`, of the node
    /// or of a list whose items it describes. Values of another type than the node's are treated alike.
    pub preserve_unknown: bool,
    pub default: Option<Value>,
    /// JSON-schema keywords beyond the shape; custom kinds mostly.
    pub rules: Option<Box<Rules>>,
}

impl Node {
    /// Whether it stands for sets of fields (`fieldsV1`), which are as deep as the object that they are of.
    pub fn is_fields(&self) -> bool {
        self.name.as_deref().is_some_and(|name| name.ends_with(".FieldsV1"))
    }

    /// For what is a JSON schema or something else (`items`, `additionalProperties`, `dependencies`): what else it may
    /// be, `Array`, `Bool` or `StringArray`.
    pub fn schema_or(&self) -> Option<&str> {
        self.name.as_deref()?.strip_prefix(JSON_SCHEMA)?.strip_prefix("Or")
    }
}

/// What a value looks like.
#[derive(Clone, Debug)]
pub enum Shape {
    Struct(Struct),
    Map {
        value: NodeId,
        atomic: bool,
    },
    /// A list whose node has a name (`ExtraValue`) is a message of its own in protobuf, its items in field 1.
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
    /// base64 in JSON.
    Bytes,
    Quantity,
    IntOrString,
    /// RFC 3339 with seconds; `null` when zero.
    Time,
    /// RFC 3339 with microseconds.
    MicroTime,
    /// Go's duration text, `1h30m`.
    Duration,
    /// Anything goes, nothing is pruned: RawExtension, JSON, FieldsV1, `x-kubernetes-preserve-unknown-fields`
    /// without a type.
    Any,
}

/// An object with known members.
#[derive(Clone, Debug, Default)]
pub struct Struct {
    /// Sorted by JSON name.
    pub fields: Vec<Field>,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic: bool,
    /// `true` if server-side apply takes members that are not declared. It does below every
    /// `x-kubernetes-preserve-unknown-fields`, and in objects that declare no members.
    pub open: bool,
    /// `x-kubernetes-embedded-resource`.
    pub embedded_resource: bool,
    /// The protobuf message (`k8s.io.api.core.v1.PodSpec`), for built-in types.
    pub message: Option<Arc<str>>,
    pub lookup: Lookup,
}

/// A member of an object.
#[derive(Clone, Debug)]
pub struct Field {
    pub name: Arc<str>,
    pub node: NodeId,
    pub required: bool,
    pub default: Option<Value>,
    pub presence: Presence,
    /// Strategic merge: `x-kubernetes-patch-strategy` and `-merge-key`.
    pub patch: Patch,
    /// The protobuf field number path: one number, or two where protobuf nests what JSON inlines
    /// (`VolumeSource` in `Volume`…); empty where the field has no protobuf form.
    pub proto: ProtoPath,
}

/// What Go makes of a member's zero value (`""`, `0`, `false`, `{}`, an empty list).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// Zero and absent differ (Go's pointers): kept as given.
    #[default]
    Distinct,
    /// Zero means absent, and is left out (Go's values with `omitempty`).
    OmitZero,
    /// Absent means zero, and is written out (Go's values without `omitempty`): `resources: {}`.
    Always,
    /// Absent means nil, and is written as `null`, while an empty list stays (Go's slices and maps without
    /// `omitempty`, times that are values): `rules: null`.
    Null,
}

/// See [`Field::proto`].
pub type ProtoPath = Box<[u32]>;

/// How a strategic merge patch changes a list or map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// Items are merged by `merge_key` or, without one, as a set; otherwise the list is replaced.
    pub merge: bool,
    /// Members that the patch does not name are taken away.
    pub retain_keys: bool,
    pub merge_key: Option<Arc<str>>,
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    Map(Box<[Arc<str>]>),
}

/// JSON-schema keywords of custom kinds, and enums of built-in ones.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub format: Option<Box<str>>,
    pub enumeration: Vec<Value>,
    pub pattern: Option<Box<str>>,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub multiple_of: Option<f64>,
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub min_items: Option<u64>,
    pub max_items: Option<u64>,
    pub unique_items: bool,
    pub min_properties: Option<u64>,
    pub max_properties: Option<u64>,
    pub all_of: Vec<NodeId>,
    pub any_of: Vec<NodeId>,
    pub one_of: Vec<NodeId>,
    pub not: Option<NodeId>,
    /// Names of members that must be there. (`Field::required` tells the same of the declared ones.)
    pub required: Vec<Box<str>>,
    /// `pattern`, translated from Go's dialect.
    pub regex: Option<regex::Regex>,
    /// The type keyword was absent: the shape says which rules are below, and a value of another type is no error.
    pub untyped: bool,
    /// `x-kubernetes-embedded-resource`: apiVersion and kind must be given.
    pub embedded: bool,
}

impl Schema {
    /// An arena that is complete: what every write asks of it is looked up here once.
    pub fn new(mut nodes: Vec<Node>, kinds: Vec<Kind>) -> Self {
        let below = lookup::prepare(&mut nodes);
        let mut schema = Self {
            nodes,
            kinds,
            json_schema: None,
            below,
            rules: None,
            rule_errors: api_meta::ErrorList::new(),
        };
        schema.json_schema = schema.type_named(JSON_SCHEMA);
        schema
    }

    /// The type of the schemas in definitions of custom kinds, where this schema has it.
    pub fn json_schema(&self) -> Option<NodeId> {
        self.json_schema
    }

    /// The rules of whole objects of a kind.
    fn rules_of(&self, node: NodeId) -> Option<&rules::Rules> {
        self.rules.as_ref().filter(|_| self.kinds.first().is_some_and(|kind| kind.node == node))
    }

    /// What is wrong with the schema's `x-kubernetes-validations`: a rule that does not compile, or that may cost too
    /// much. A definition with such a rule is refused; one that is stored already is served, and says so of its objects.
    pub fn rule_errors(&self) -> &[api_meta::FieldError] {
        &self.rule_errors
    }

    /// The schema of all built-in kinds, read once from the facts.
    pub fn builtin() -> &'static Arc<Schema> {
        builtin::schema()
    }

    /// The node of an ID, which must be of this schema.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The node of a kind's root object.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<NodeId> {
        let wanted = (group, version, kind);
        let at = self
            .kinds
            .binary_search_by(|k| (&*k.group, &*k.version, &*k.kind).cmp(&wanted))
            .ok()?;
        Some(self.kinds[at].node)
    }

    /// The node of a named type (`io.k8s.api.core.v1.PodSpec`). Slow: it looks at every node.
    pub fn type_named(&self, name: &str) -> Option<NodeId> {
        let at = self.nodes.iter().position(|n| n.name.as_deref() == Some(name))?;
        Some(NodeId(at as u32))
    }

    /// Follows one JSON member name from a struct or map node.
    pub fn member(&self, id: NodeId, name: &str) -> Option<NodeId> {
        match &self.node(id).shape {
            Shape::Struct(s) => s.field(name).map(|f| f.node),
            Shape::Map { value, .. } => Some(*value),
            _ => None,
        }
    }
}

impl Struct {
    /// The member of this JSON name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.lookup.position(&self.fields, name).map(|i| &self.fields[i])
    }
}

//! The schema of the built-in kinds, loaded lazily from the facts (`facts/*.tsv`).
//!
//! `xtask codegen` writes the facts and documents their format. The reader trusts them, because they are compiled in
//! and a test reads all of them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::{
    node::{Field, ListType, Node, NodeId, Patch, Presence, Shape, Struct},
    schema::{Kind, Schema},
};

const TYPES: [&str; 2] = [include_str!("../facts/types.tsv"), include_str!("../facts/extra.tsv")];
const PRESENCE: &str = include_str!("../facts/presence.tsv");
const DEFAULTS: &str = include_str!("../facts/defaults.tsv");

impl Schema {
    /// Returns the schema of all built-in kinds, which is loaded once.
    pub fn builtin() -> &'static Arc<Self> {
        static SCHEMA: LazyLock<Arc<Schema>> = LazyLock::new(|| Arc::new(Reader::default().read()));
        &SCHEMA
    }
}

/// Returns the lines of a facts file without comments.
pub(crate) fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|l| !l.starts_with('#') && !l.is_empty())
}

/// Returns the lines of all types: a header `@ name…` and its members, in order.
pub(crate) fn type_lines() -> impl Iterator<Item = &'static str> {
    TYPES.into_iter().flat_map(lines)
}

/// Returns an attribute at the end of a line: a word, or the value of `key=value`. `default=` and `unions=` extend to
/// the end of the line.
pub(crate) fn attribute(attributes: &'static str, key: &str) -> Option<&'static str> {
    let mut rest = attributes;
    while !rest.is_empty() {
        let greedy = rest.starts_with("default=") || rest.starts_with("unions=");
        let (word, tail) =
            if greedy { (rest, "") } else { rest.split_once(' ').unwrap_or((rest, "")) };
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        if name == key {
            return Some(value);
        }
        rest = tail;
    }
    None
}

/// Returns the shape of a type with its own encoding in JSON, text or protobuf.
fn special(name: &str) -> Option<Shape> {
    let bare = name.strip_prefix("io.k8s.")?;
    Some(match bare {
        "apimachinery.pkg.api.resource.Quantity" => Shape::Quantity,
        "apimachinery.pkg.util.intstr.IntOrString" => Shape::IntOrString,
        "apimachinery.pkg.apis.meta.v1.Time" => Shape::Time,
        "apimachinery.pkg.apis.meta.v1.MicroTime" => Shape::MicroTime,
        "apimachinery.pkg.apis.meta.v1.FieldsV1"
        | "apimachinery.pkg.apis.meta.v1.Patch"
        | "apimachinery.pkg.runtime.RawExtension" => Shape::Any,
        _ if bare.starts_with("apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON")
            && !bare.ends_with(".JSONSchemaProps") =>
        {
            Shape::Any
        }
        _ => return None,
    })
}

type Flags = (&'static str, &'static str);

/// The use of a type by an unnamed node: the type, and the attributes that determine the shape of the node.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct TypeUse {
    package: &'static str,
    text: &'static str,
    /// The list type.
    list: &'static str,
    /// The keys of a list, or the type of a map.
    grain: &'static str,
}

#[derive(Default)]
struct Reader {
    nodes: Vec<Node>,
    kinds: Vec<Kind>,
    named: HashMap<&'static str, NodeId>,
    unnamed: HashMap<TypeUse, NodeId>,
    names: HashMap<&'static str, Arc<str>>,
    presence: HashMap<&'static str, Flags>,
}

impl Reader {
    fn read(mut self) -> Schema {
        for line in lines(PRESENCE) {
            let mut cells = line.split('\t');
            let mut cell = || cells.next().unwrap_or_default();
            self.presence.insert(cell(), (cell(), cell()));
        }
        for header in type_lines().filter_map(|l| l.strip_prefix("@ ")) {
            self.header(header);
        }
        let mut current = "";
        let mut fields = Vec::new();
        for line in type_lines() {
            match line.strip_prefix("@ ") {
                Some(header) => {
                    self.finish(current, std::mem::take(&mut fields));
                    current = header.split('\t').next().unwrap_or_default();
                }
                None => fields.push(self.field(current, line)),
            }
        }
        self.finish(current, fields);
        self.kinds
            .sort_by(|a, b| (&a.group, &a.version, &a.kind).cmp(&(&b.group, &b.version, &b.kind)));
        regrain(&mut self.nodes);
        Schema::new(self.nodes, self.kinds)
    }

    fn push(&mut self, shape: Shape, name: Option<Arc<str>>) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        let preserve_unknown = matches!(shape, Shape::Any);
        self.nodes.push(Node {
            shape,
            name,
            nullable: false,
            preserve_unknown,
            default: None,
            rules: None,
        });
        id
    }

    /// Creates the node of a type before any member refers to it.
    fn header(&mut self, header: &'static str) {
        let mut cells = header.split('\t');
        let mut cell = || cells.next().unwrap_or_default();
        let (name, kinds, attributes) = (cell(), cell(), cell());
        let shape = special(name).unwrap_or_else(|| {
            let message = name.strip_prefix("io.").unwrap_or(name);
            Shape::Struct(Struct {
                atomic: attribute(attributes, "map") == Some("atomic"),
                message: Some(message.replacen("k8s.", "k8s.io.", 1).replace('-', "_").into()),
                ..Struct::default()
            })
        });
        let node = self.push(shape, Some(name.into()));
        self.named.insert(name, node);
        for kind in kinds.split(' ').filter(|k| !k.is_empty()) {
            let mut parts = kind.split('/');
            let mut part = || parts.next().unwrap_or_default().into();
            self.kinds.push(Kind { group: part(), version: part(), kind: part(), node });
        }
    }

    fn finish(&mut self, name: &str, mut fields: Vec<Field>) {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let Some(NodeId(id)) = self.named.get(name) else { return };
        if let Shape::Struct(body) = &mut self.nodes[*id as usize].shape {
            body.fields = fields;
        }
    }

    fn field(&mut self, owner: &'static str, line: &'static str) -> Field {
        let mut cells = line.splitn(4, '\t');
        let mut cell = || cells.next().unwrap_or_default();
        let (json, text, proto, attributes) = (cell(), cell(), cell(), cell());
        let package = owner.rsplit_once('.').map_or("", |(package, _)| package);
        let node = self.type_node(package, text, attributes);
        let default = attribute(attributes, "default").or_else(|| constant_default(owner, json));
        let strategy = attribute(attributes, "patch").unwrap_or_default();
        Field {
            name: self.intern(json),
            node,
            required: attribute(attributes, "req").is_some(),
            default: default.and_then(|text| serde_json::from_str(text).ok()),
            presence: self.presence(owner, json, node, attributes),
            patch: Patch {
                merge: strategy.split(',').any(|s| s == "merge"),
                retain_keys: strategy.split(',').any(|s| s == "retainKeys"),
                merge_key: attribute(attributes, "key").map(|key| self.intern(key)),
            },
            proto: proto.split('.').filter_map(|n| n.parse().ok()).collect(),
        }
    }

    fn intern(&mut self, name: &'static str) -> Arc<str> {
        self.names.entry(name).or_insert_with(|| name.into()).clone()
    }

    fn presence(
        &self,
        owner: &str,
        json: &str,
        node: NodeId,
        attributes: &'static str,
    ) -> Presence {
        let (omitted, null) = self.presence.get(owner).copied().unwrap_or_default();
        let listed = |words: &str| words.split(' ').any(|w| w == json);
        match &self.nodes[node.0 as usize].shape {
            _ if listed(null) => Presence::Null,
            Shape::List { .. } | Shape::Map { .. } | Shape::Bytes => Presence::OmitZero,
            _ if listed(omitted) => Presence::OmitZero,
            _ if attribute(attributes, "zero").is_some() => Presence::Always,
            _ => Presence::Distinct,
        }
    }

    /// Returns the node of a type text: `string`, `[]Container`, `map[]io.k8s…Quantity`.
    fn type_node(
        &mut self,
        package: &'static str,
        text: &'static str,
        attributes: &'static str,
    ) -> NodeId {
        let list = attribute(attributes, "list").unwrap_or_default();
        let map = attribute(attributes, "map").unwrap_or_default();
        let grain =
            if list.is_empty() { map } else { attribute(attributes, "keys").unwrap_or(list) };
        let key = TypeUse { package, text, list, grain };
        if let Some(id) = self.unnamed.get(&key) {
            return *id;
        }
        let id = self.new_node(key, attributes);
        self.unnamed.insert(key, id);
        id
    }

    fn new_node(&mut self, type_use: TypeUse, attributes: &'static str) -> NodeId {
        let TypeUse { package, text, list, grain } = type_use;
        if let Some(item) = text.strip_prefix("wrapped[]") {
            let item = self.type_node(package, item, "");
            return self.push(Shape::List { item, list: ListType::Atomic }, Some("list".into()));
        }
        if let Some(item) = text.strip_prefix("[]") {
            let item = self.type_node(package, item, "");
            let list = match list {
                "map" => ListType::Map(grain.split(',').map(|key| self.intern(key)).collect()),
                "set" => ListType::Set,
                _ => ListType::Atomic,
            };
            return self.push(Shape::List { item, list }, None);
        }
        if let Some(value) = text.strip_prefix("map[]") {
            let value = self.type_node(package, value, "");
            return self.push(Shape::Map { value, atomic: grain == "atomic" }, None);
        }
        if let Some(shape) = scalar(text) {
            return self.push(shape, None);
        }
        let full = if text.contains('.') { text.to_owned() } else { format!("{package}.{text}") };
        let Some(&id) = self.named.get(full.as_str()) else { return self.push(Shape::Any, None) };
        match attribute(attributes, "map") {
            // A copy of the type with another granularity. Its fields are not known yet; `regrain` copies them.
            Some(grain) => {
                let body = Struct { atomic: grain == "atomic", ..Struct::default() };
                self.push(Shape::Struct(body), Some(full.into()))
            }
            None => id,
        }
    }
}

fn scalar(text: &str) -> Option<Shape> {
    Some(match text {
        "string" => Shape::String,
        "bytes" => Shape::Bytes,
        "bool" => Shape::Boolean,
        "double" => Shape::Number,
        "int32" => Shape::Integer { bits: 32, unsigned: false },
        "int64" => Shape::Integer { bits: 64, unsigned: false },
        "any" | "object" => Shape::Any,
        _ => return None,
    })
}

/// Copies the fields of a named type into the nodes that override only its granularity.
fn regrain(nodes: &mut [Node]) {
    let mut first: HashMap<Arc<str>, usize> = HashMap::new();
    for at in 0..nodes.len() {
        let Some(name) = nodes[at].name.clone() else { continue };
        let original = *first.entry(name).or_insert(at);
        let Shape::Struct(body) = &nodes[original].shape else { continue };
        if original != at {
            let (fields, message) = (body.fields.clone(), body.message.clone());
            if let Shape::Struct(copy) = &mut nodes[at].shape {
                (copy.fields, copy.message) = (fields, message);
            }
        }
    }
}

/// Returns the manually maintained default of a member. A beta or alpha type has the default of the stable type.
fn constant_default(owner: &str, json: &str) -> Option<&'static str> {
    if let Some(text) = defaults().get(&(owner, json)) {
        return Some(text);
    }
    let (package, name) = owner.rsplit_once('.')?;
    let (group, version) = package.rsplit_once('.')?;
    if !version.contains("alpha") && !version.contains("beta") {
        return None;
    }
    defaults().get(&(format!("{group}.v1.{name}").as_str(), json)).copied()
}

/// Returns the manually maintained constant defaults as JSON text, by type and member.
pub(crate) fn defaults() -> &'static HashMap<(&'static str, &'static str), &'static str> {
    static DEFAULTS_BY_MEMBER: LazyLock<HashMap<(&'static str, &'static str), &'static str>> =
        LazyLock::new(|| {
            lines(DEFAULTS)
                .map(|line| {
                    let mut cells = line.splitn(3, '\t');
                    let mut cell = || cells.next().unwrap_or_default();
                    ((cell(), cell()), cell())
                })
                .collect()
        });
    &DEFAULTS_BY_MEMBER
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field<'a>(schema: &'a Schema, kind: NodeId, path: &[&str]) -> &'a Field {
        let mut node = kind;
        let mut found = None;
        for name in path {
            while let Shape::List { item, .. } | Shape::Map { value: item, .. } =
                &schema.node(node).shape
            {
                node = *item;
            }
            let Shape::Struct(body) = &schema.node(node).shape else {
                panic!("{path:?}: no struct at {name}")
            };
            let field = body.field(name).unwrap_or_else(|| panic!("{path:?}: no member {name}"));
            node = field.node;
            found = Some(field);
        }
        found.unwrap()
    }

    #[test]
    fn facts_equal_upstreams() {
        let schema = Schema::builtin();
        let pod = schema.kind("", "v1", "Pod").unwrap();
        let ports = field(schema, pod, &["spec", "containers", "ports"]);
        assert_eq!(*ports.proto, [6]);
        assert_eq!(
            ports.patch,
            Patch { merge: true, retain_keys: false, merge_key: Some("containerPort".into()) }
        );
        let Shape::List { list: ListType::Map(keys), .. } = &schema.node(ports.node).shape else {
            panic!()
        };
        assert_eq!(keys.iter().map(|k| &**k).collect::<Vec<_>>(), ["containerPort", "protocol"]);
        assert_eq!(*field(schema, pod, &["spec", "volumes", "emptyDir"]).proto, [2, 2]);
        let port = |name| field(schema, pod, &["spec", "containers", "ports", name]).presence;
        assert_eq!(
            (port("containerPort"), port("hostPort")),
            (Presence::Always, Presence::OmitZero)
        );
        assert_eq!(
            field(schema, pod, &["spec", "containers", "resources"]).presence,
            Presence::Always
        );
        let deployment = schema.kind("apps", "v1", "Deployment").unwrap();
        assert_eq!(field(schema, deployment, &["spec", "replicas"]).presence, Presence::Distinct);
        let pv = schema.kind("", "v1", "PersistentVolume").unwrap();
        let claim = field(schema, pv, &["spec", "claimRef"]);
        let Shape::Struct(claim) = &schema.node(claim.node).shape else { panic!() };
        assert!(!claim.atomic && claim.field("name").is_some());
    }

    #[test]
    fn every_type_of_a_member_exists() {
        let schema = Schema::builtin();
        let nameless_any = schema
            .nodes
            .iter()
            .filter(|n| n.name.is_none() && matches!(n.shape, Shape::Any))
            .count();
        assert_eq!(nameless_any, 0, "a member names a type that the facts do not have");
        for ((name, json), text) in defaults() {
            let value: Result<serde_json::Value, _> = serde_json::from_str(text);
            assert!(value.is_ok(), "{name}.{json}: the default is no JSON");
            let node = schema.nodes.iter().find(|n| n.name.as_deref() == Some(*name));
            let Some(Node { shape: Shape::Struct(body), .. }) = node else {
                panic!("no type {name}")
            };
            assert!(body.field(json).is_some(), "{name} has no member {json}");
        }
    }

    #[test]
    fn every_resource_has_a_kind() {
        let schema = Schema::builtin();
        for resource in crate::resources() {
            let found = schema.kind(resource.group, resource.version, resource.kind);
            assert!(found.is_some(), "{}/{} {}", resource.group, resource.version, resource.kind);
        }
        assert!(crate::resources().len() > 60);
    }
}

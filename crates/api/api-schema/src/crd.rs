//! Builds the schema of a custom resource from its `openAPIV3Schema` and the built-in metadata types.

use std::{
    collections::{HashMap, HashSet},
    fmt::{self, Write as _},
    hash::{BuildHasher as _, Hasher},
    sync::Arc,
};

use api_meta::{ErrorList, FieldError, GroupVersionKind, Path, Tree as _};
use serde_json::{Map, Value, json};

use crate::{
    node::{Field, ListType, Node, NodeId, Patch, Pattern, Presence, Rules, Shape, Struct},
    schema::{Kind, Schema},
    structural,
};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

impl Schema {
    /// Builds the schema of one version of a custom resource, with its compiled rules. `path` is the path of the schema
    /// in its definition.
    ///
    /// # Errors
    ///
    /// Returns the errors of an invalid or non-structural schema.
    pub fn from_crd(
        open_api_v3: &Value,
        gvk: &GroupVersionKind,
        path: &Path,
    ) -> Result<Schema, ErrorList> {
        let mut schema = Self::without_rules(open_api_v3, gvk, path)?;
        schema.compile_rules(open_api_v3, path);
        Ok(schema)
    }

    /// Builds the schema of one version of a custom resource without its rules.
    ///
    /// # Errors
    ///
    /// Returns the errors of an invalid or non-structural schema.
    pub fn without_rules(
        open_api_v3: &Value,
        gvk: &GroupVersionKind,
        path: &Path,
    ) -> Result<Schema, ErrorList> {
        let errors = structural::errors(open_api_v3, path);
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut builder = Builder::default();
        let node = builder.structural(open_api_v3, SchemaContext::ROOT);
        let schema = Schema::new(builder.nodes, vec![Kind::new(gvk, node)]);
        let mut errors = ErrorList::new();
        default_errors(&schema, node, open_api_v3, path, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(schema)
    }

    /// Compiles the `x-kubernetes-validations` of the definition's schema. [`Schema::rule_errors`] are the errors.
    pub fn compile_rules(&mut self, open_api_v3: &Value, path: &Path) {
        (self.rules, self.rule_errors) = crate::rules::compile(open_api_v3, path);
    }

    /// Builds the schema of a custom resource that preserves everything (`preserveUnknownFields`, or no schema).
    pub fn free_form(gvk: &GroupVersionKind) -> Schema {
        let mut builder = Builder::default();
        let open_api_v3 = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let node = builder.structural(&open_api_v3, SchemaContext::ROOT);
        Schema::new(builder.nodes, vec![Kind::new(gvk, node)])
    }
}

/// Validates the defaults in a schema: they contain no unknown fields and are valid.
fn default_errors(
    schema: &Schema,
    node: NodeId,
    source: &Value,
    path: &Path,
    errors: &mut ErrorList,
) {
    if let Some(default) = source.get("default").filter(|d| !d.is_null()) {
        let at = path.child("default");
        match crate::decode::decode_value(
            schema,
            node,
            default.clone(),
            crate::fill::Fill::Defaults,
        ) {
            Ok(decoded) if decoded.unknown().next().is_some() => {
                errors.push(FieldError::invalid(
                    &at,
                    default.clone(),
                    "must not have unknown fields",
                ));
            }
            Ok(decoded) => {
                errors.extend(crate::validate::validate_at(schema, node, &decoded.value, &at))
            }
            Err(error) => errors.push(FieldError::invalid(&at, default.clone(), error.to_string())),
        }
    }
    match &schema.node(node).shape {
        Shape::Struct(body) => {
            for (name, property) in source.pairs("properties") {
                if let Some(field) = body.field(name).filter(|_| name != "metadata") {
                    default_errors(
                        schema,
                        field.node,
                        property,
                        &path.child("properties").key(name),
                        errors,
                    );
                }
            }
        }
        Shape::Map { value, .. } => {
            let below = &source["additionalProperties"];
            default_errors(schema, *value, below, &path.child("additionalProperties"), errors);
        }
        Shape::List { item, .. } => {
            default_errors(schema, *item, &source["items"], &path.child("items"), errors)
        }
        _ => {}
    }
}

/// The position of a schema, and properties that enclosing schemas give its values.
#[derive(Clone, Copy, Default)]
struct SchemaContext {
    root: bool,
    /// `true` if an enclosing list preserves unknown fields.
    preserves: bool,
    /// `true` if any enclosing schema preserves unknown fields.
    open: bool,
}

impl SchemaContext {
    const ROOT: Self = Self { root: true, preserves: false, open: false };
}

#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
    /// The nodes by the hash of their content. Equal nodes are stored once: most leaves of a schema are plain strings,
    /// and large types, such as Pod templates, occur several times.
    known: HashMap<u64, NodeId>,
    /// The names of members. Equal names share their memory.
    names: HashSet<Arc<str>>,
    /// The copies of built-in nodes.
    grafted: HashMap<NodeId, NodeId>,
}

/// Hashes what is formatted.
struct HashWriter<H>(H);

impl<H: Hasher> fmt::Write for HashWriter<H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Builder {
    /// Adds a node, or returns an equal one.
    fn add(&mut self, node: Node) -> NodeId {
        // The debug form covers the whole content, and differs for numbers that are equal but print differently.
        let mut hash = HashWriter(self.known.hasher().build_hasher());
        let hashed = write!(hash, "{node:?}").map(|()| hash.0.finish());
        let id = NodeId(self.nodes.len() as u32);
        if let Ok(hash) = hashed {
            let known = *self.known.entry(hash).or_insert(id);
            if self.nodes.get(known.0 as usize) == Some(&node) {
                return known;
            }
        }
        self.nodes.push(node);
        id
    }

    fn push(&mut self, shape: Shape, source: &Value, preserve_unknown: bool) -> NodeId {
        let rules = self.rules(source);
        let default = source.get("default").filter(|d| !d.is_null()).cloned();
        let nullable = source["nullable"] == true;
        self.add(Node { shape, name: None, nullable, preserve_unknown, default, rules })
    }

    fn field(&mut self, name: &str, node: NodeId, required: bool) -> Field {
        let known = self.names.get(name).cloned();
        let name = known.unwrap_or_else(|| {
            let name: Arc<str> = name.into();
            self.names.insert(name.clone());
            name
        });
        Field {
            name,
            node,
            required,
            default: None,
            presence: Presence::Distinct,
            patch: Patch::default(),
            proto: Box::default(),
        }
    }

    fn structural(&mut self, source: &Value, around: SchemaContext) -> NodeId {
        let own = source["x-kubernetes-preserve-unknown-fields"] == true;
        let preserves = own || around.preserves;
        let shape =
            self.shape(source, SchemaContext { preserves, open: own || around.open, ..around });
        self.push(shape, source, preserves)
    }

    /// Returns the shape of a schema at `here`.
    fn shape(&mut self, source: &Value, here: SchemaContext) -> Shape {
        let set = |key: &str| source[key] == true;
        // A list's setting applies only to its own items.
        let below = SchemaContext { root: false, preserves: false, open: here.open };
        if set("x-kubernetes-int-or-string") {
            return Shape::IntOrString;
        }
        match source.text("type") {
            "string" => Shape::String,
            "integer" => Shape::Integer { bits: 64, unsigned: false },
            "number" => Shape::Number,
            "boolean" => Shape::Boolean,
            "array" => {
                let item = self.structural(&source["items"], SchemaContext { root: false, ..here });
                Shape::List { item, list: list_type(source) }
            }
            _ => {
                let atomic = source["x-kubernetes-map-type"] == "atomic";
                let values = &source["additionalProperties"];
                if values.is_object() {
                    let value = self.structural(values, below);
                    return Shape::Map { value, atomic };
                }
                if *values == true && source["properties"].is_null() && !here.root {
                    // Values may have any type, but objects among them have no members.
                    let value = self.push(Shape::Any, &json!({"nullable": true}), false);
                    return Shape::Map { value, atomic };
                }
                let untyped = source.text("type").is_empty();
                if untyped && source["properties"].is_null() {
                    return Shape::Any;
                }
                let resource = here.root || set("x-kubernetes-embedded-resource");
                let fields = self.fields(source, resource, below);
                let free = fields.is_empty() && values.is_null() || *values == true;
                Shape::Struct(Struct {
                    fields,
                    atomic,
                    open: here.open || free,
                    embedded_resource: resource && !here.root,
                    ..Struct::default()
                })
            }
        }
    }

    fn fields(&mut self, source: &Value, resource: bool, below: SchemaContext) -> Vec<Field> {
        let none = Map::new();
        let properties = source["properties"].as_object().unwrap_or(&none);
        let mut fields = Vec::with_capacity(properties.len() + 3);
        for (name, property) in properties {
            if resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            let node = self.structural(property, below);
            fields.push(self.field(name, node, is_required(source, name)));
        }
        if resource {
            for name in ["apiVersion", "kind"] {
                let declared = properties.get(name).unwrap_or(&Value::Null);
                let node = self.push(Shape::String, declared, false);
                fields.push(self.field(name, node, false));
            }
            let node = self.metadata(properties.get("metadata").unwrap_or(&Value::Null));
            fields.push(self.field("metadata", node, false));
        }
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        fields.shrink_to_fit();
        fields
    }

    /// Returns ObjectMeta with the schema's restrictions on the name.
    fn metadata(&mut self, source: &Value) -> NodeId {
        let builtin = Schema::builtin();
        let Some(object_meta) = builtin.type_named(OBJECT_META) else {
            return self.push(Shape::Any, source, true);
        };
        let node = self.graft(builtin, object_meta);
        let mut restricted = self.nodes[node.0 as usize].clone();
        for name in ["name", "generateName"] {
            if source["properties"][name].is_object() {
                let member = self.push(Shape::String, &source["properties"][name], false);
                if let Shape::Struct(body) = &mut restricted.shape
                    && let Some(field) = body.fields.iter_mut().find(|f| *f.name == *name)
                {
                    field.node = member;
                }
            }
        }
        if restricted == self.nodes[node.0 as usize] { node } else { self.add(restricted) }
    }

    /// Copies a built-in node and its descendants.
    fn graft(&mut self, from: &Schema, id: NodeId) -> NodeId {
        if let Some(known) = self.grafted.get(&id) {
            return *known;
        }
        let copy = NodeId(self.nodes.len() as u32);
        self.grafted.insert(id, copy);
        self.nodes.push(from.node(id).clone());
        let mut shape = from.node(id).shape.clone();
        match &mut shape {
            Shape::Struct(body) => {
                body.fields.iter_mut().for_each(|field| field.node = self.graft(from, field.node));
            }
            Shape::List { item: below, .. } | Shape::Map { value: below, .. } => {
                *below = self.graft(from, *below)
            }
            _ => {}
        }
        self.nodes[copy.0 as usize].shape = shape;
        copy
    }

    /// Builds a branch of `allOf`, `anyOf`, `oneOf` or `not`, which has conditions but no types of its own.
    fn condition(&mut self, source: &Value) -> NodeId {
        let shape = match source["type"].as_str() {
            Some("integer") => Shape::Integer { bits: 64, unsigned: false },
            Some("string") => Shape::String,
            _ if source["properties"].is_object() => {
                let mut fields = Vec::new();
                for (name, property) in source.pairs("properties") {
                    let node = self.condition(property);
                    fields.push(self.field(name, node, is_required(source, name)));
                }
                Shape::Struct(Struct { fields, ..Struct::default() })
            }
            _ if source["items"].is_object() => {
                let item = self.condition(&source["items"]);
                Shape::List { item, list: ListType::Atomic }
            }
            _ => Shape::Any,
        };
        self.push(shape, source, true)
    }

    fn rules(&mut self, source: &Value) -> Option<Box<Rules>> {
        let text = |key: &str| source.opt_text(key).map(Box::from);
        let float = |key: &str| source[key].as_f64();
        let count = |key: &str| source[key].as_u64();
        let list = |key: &str| source.items(key).to_vec();
        let branches = |this: &mut Self, key: &str| -> Vec<NodeId> {
            list(key).iter().map(|branch| this.condition(branch)).collect()
        };
        let object = source.as_object()?;
        let ignored = |key: &str| {
            matches!(key, "type" | "properties" | "items" | "description" | "default" | "nullable")
        };
        let untyped = source.text("type").is_empty();
        if !untyped && object.keys().all(|key| ignored(key)) {
            return None;
        }
        Some(Box::new(Rules {
            format: text("format"),
            enumeration: list("enum"),
            pattern: source.opt_text("pattern").map(Pattern::new),
            minimum: float("minimum"),
            exclusive_minimum: source["exclusiveMinimum"] == true,
            maximum: float("maximum"),
            exclusive_maximum: source["exclusiveMaximum"] == true,
            multiple_of: float("multipleOf"),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            unique_items: source["uniqueItems"] == true,
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            all_of: branches(self, "allOf"),
            any_of: branches(self, "anyOf"),
            one_of: branches(self, "oneOf"),
            not: source["not"].is_object().then(|| self.condition(&source["not"])),
            required: list("required").iter().filter_map(Value::as_str).map(Box::from).collect(),
            untyped,
            embedded: source["x-kubernetes-embedded-resource"] == true,
        }))
    }
}

fn is_required(source: &Value, name: &str) -> bool {
    source["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name))
}

fn list_type(source: &Value) -> ListType {
    match source["x-kubernetes-list-type"].as_str() {
        Some("set") => ListType::Set,
        Some("map") => {
            let keys = source["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
            ListType::Map(keys.filter_map(Value::as_str).map(Arc::from).collect())
        }
        _ => ListType::Atomic,
    }
}

#[cfg(test)]
mod tests;

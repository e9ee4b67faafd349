//! The lists and maps of a kind, found in its schema, and objects that fill one of them.

use api_schema::{NodeId, Schema, Shape};
use serde_json::{Map, Value, json};

/// A step from an object to a value inside of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Field(String),
    /// The first item of a list.
    Item,
    /// The first entry of a map.
    Entry,
}

/// A list, map or text of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) steps: Vec<Step>,
    pub(crate) node: NodeId,
    /// The type that has the field, and the field.
    pub(crate) owner: String,
}

impl Target {
    /// The path as field errors have it: `spec.containers[].ports`.
    pub(crate) fn shown(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            match step {
                Step::Field(name) if text.is_empty() => text.push_str(name),
                Step::Field(name) => text.extend([".", name]),
                Step::Item => text.push_str("[]"),
                Step::Entry => text.push_str("{}"),
            }
        }
        text
    }
}

/// Returns every list and map below a kind's root, those of recursive types once more inside of themselves.
pub(crate) fn places(schema: &Schema, root: NodeId) -> Vec<Target> {
    let mut found = Vec::new();
    let mut walk = Walk { schema, steps: Vec::new(), types: Vec::new(), found: &mut found };
    walk.visit(root, String::new());
    found
}

struct Walk<'a> {
    schema: &'a Schema,
    steps: Vec<Step>,
    /// The named types on the way.
    types: Vec<String>,
    found: &'a mut Vec<Target>,
}

impl Walk<'_> {
    fn visit(&mut self, id: NodeId, owner: String) {
        let node = self.schema.node(id);
        let named = node.name.as_deref().unwrap_or_default().to_owned();
        if !named.is_empty() && self.types.iter().filter(|name| **name == named).count() > 1 {
            return;
        }
        self.types.push(named.clone());
        match &node.shape {
            Shape::Struct(body) => {
                for field in &body.fields {
                    self.steps.push(Step::Field(field.name.to_string()));
                    self.visit(field.node, format!("{named}.{}", field.name));
                    self.steps.pop();
                }
            }
            Shape::List { item, .. } => self.container(id, *item, Step::Item, owner),
            Shape::Map { value, .. } => self.container(id, *value, Step::Entry, owner),
            Shape::Any => self.add(id, owner),
            _ => {}
        }
        self.types.pop();
    }

    fn container(&mut self, id: NodeId, inside: NodeId, step: Step, owner: String) {
        self.add(id, owner.clone());
        self.steps.push(step);
        self.visit(inside, owner);
        self.steps.pop();
    }

    fn add(&mut self, node: NodeId, owner: String) {
        self.found.push(Target { steps: self.steps.clone(), node, owner });
    }
}

/// The items that fill a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Items {
    /// Equal ones, of required fields alone.
    Same,
    /// Different items, with the required fields and those that distinguish items.
    Distinct,
    /// Different ones with all their scalars.
    Full,
}

pub(crate) struct Generator<'s> {
    pub(crate) schema: &'s Schema,
    pub(crate) items: Items,
}

impl Generator<'_> {
    /// Returns an object of a kind with its required fields.
    pub(crate) fn base(&self, root: NodeId) -> Value {
        let mut object = self.value(root, "", 0, 0);
        object["metadata"] = json!({"name": "a0", "uid": "u", "namespace": "ns"});
        object
    }

    /// Puts items `from..to` into a place of an object, and what the place lies in around it.
    pub(crate) fn fill(
        &self,
        object: &mut Value,
        root: NodeId,
        place: &Target,
        from: usize,
        to: usize,
    ) {
        let (mut here, mut node) = (object, root);
        let mut name = String::new();
        for step in &place.steps {
            (here, node) = match (step, &self.schema.node(node).shape) {
                (Step::Field(field), Shape::Struct(body)) => {
                    let known = body.field(field).unwrap_or_else(|| panic!("no field {field}"));
                    name.clone_from(field);
                    let made = || self.value(known.node, field, 0, 0);
                    let members = as_object(here);
                    (members.entry(field.clone()).or_insert_with(made), known.node)
                }
                (Step::Item, Shape::List { item, .. }) => {
                    let items = as_array(here);
                    if items.is_empty() {
                        items.push(self.value(*item, &name, 0, 0));
                    }
                    (&mut items[0], *item)
                }
                (Step::Entry, Shape::Map { value, .. }) => {
                    let members = as_object(here);
                    if members.is_empty() {
                        members.insert(text("key", 0), self.value(*value, &name, 0, 0));
                    }
                    let first = members.values_mut().next();
                    (first.unwrap_or_else(|| panic!("an empty map")), *value)
                }
                (step, shape) => panic!("{step:?} from {shape:?}"),
            };
        }
        *here = self.container(node, &name, from, to);
    }

    /// Returns the items `from..to` of a place as its list or map.
    pub(crate) fn container(&self, node: NodeId, name: &str, from: usize, to: usize) -> Value {
        match &self.schema.node(node).shape {
            Shape::List { item, .. } => {
                (from..to).map(|i| self.value(*item, name, self.number(i), 0)).collect()
            }
            Shape::Map { value, .. } => {
                let entry = |i| (text("key", i), self.value(*value, name, self.number(i), 0));
                Value::Object((from..to).map(entry).collect())
            }
            // Field sets and free-form values.
            _ => Value::Object((from..to).map(|i| (format!("f:a{i}"), json!({}))).collect()),
        }
    }

    /// A number that distinguishes an item from others, if items must differ.
    fn number(&self, i: usize) -> usize {
        if self.items == Items::Same { 0 } else { i }
    }

    fn value(&self, id: NodeId, name: &str, i: usize, depth: usize) -> Value {
        match &self.schema.node(id).shape {
            Shape::Struct(body) => {
                let mut members = Map::new();
                for field in body.fields.iter().filter(|_| depth < 6) {
                    let tells_apart = ["name", "key", "ip", "uid", "type", "topologyKey"];
                    let scalar = !matches!(
                        self.schema.node(field.node).shape,
                        Shape::Struct(_) | Shape::List { .. } | Shape::Map { .. } | Shape::Any
                    );
                    let wanted = match self.items {
                        Items::Same => false,
                        Items::Distinct => scalar && tells_apart.contains(&&*field.name),
                        Items::Full => scalar,
                    };
                    if field.required || wanted {
                        let value = self.value(field.node, &field.name, i, depth + 1);
                        members.insert(field.name.to_string(), value);
                    }
                }
                Value::Object(members)
            }
            Shape::List { item, .. } => json!([self.value(*item, name, i, depth + 1)]),
            Shape::Map { value, .. } => {
                json!({text("key", i): self.value(*value, name, i, depth + 1)})
            }
            Shape::String => text(name, i).into(),
            Shape::Integer { .. } => (1 + i % 60_000).into(),
            Shape::Number => 0.5.into(),
            Shape::Boolean => true.into(),
            Shape::Bytes => "YQ==".into(),
            Shape::Quantity => "1".into(),
            Shape::IntOrString => (1 + i % 60_000).into(),
            Shape::Time => "2026-01-02T03:04:05Z".into(),
            Shape::MicroTime => "2026-01-02T03:04:05.000000Z".into(),
            Shape::Duration => "1s".into(),
            Shape::Any => json!({}),
        }
    }
}

fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().unwrap_or_else(|| panic!("an object"))
}

fn as_array(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = json!([]);
    }
    value.as_array_mut().unwrap_or_else(|| panic!("a list"))
}

/// Returns the `i`th text that a field of this name may have.
fn text(name: &str, i: usize) -> String {
    match name {
        "ip" | "hostIP" | "podIP" | "podIPs" | "hostIPs" | "clusterIP" | "clusterIPs"
        | "externalIPs" | "loadBalancerIP" | "addresses" | "nameservers" => {
            format!("10.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255)
        }
        "cidr" | "podCIDR" | "podCIDRs" | "cidrs" | "except" | "loadBalancerSourceRanges" => {
            format!("10.{}.{}.0/24", i >> 8 & 255, i & 255)
        }
        "protocol" => "TCP".to_owned(),
        "operator" => "In".to_owned(),
        "effect" => "NoSchedule".to_owned(),
        "whenUnsatisfiable" => "DoNotSchedule".to_owned(),
        "operation" => "Update".to_owned(),
        "fieldsType" => "FieldsV1".to_owned(),
        "apiVersion" => "v1".to_owned(),
        "key" | "topologyKey" | "finalizers" => format!("example.com/k{i}"),
        "path" | "mountPath" | "devicePath" => format!("/p{i}"),
        "expression" => "true".to_owned(),
        _ => format!("a{i}"),
    }
}

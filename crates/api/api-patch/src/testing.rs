//! A small schema for tests, based on Pod and Deployment, with every type of list and map.

use std::sync::Arc;

use api_schema::{Field, ListType, Node, NodeId, Patch, Presence, Schema, Shape, Struct};
use serde_json::{Value, json};

/// A builder for the nodes of a schema.
#[derive(Default)]
struct Arena(Vec<Node>);

impl Arena {
    fn node(&mut self, shape: Shape) -> NodeId {
        let preserve_unknown = matches!(shape, Shape::Any);
        self.0.push(Node {
            shape,
            name: None,
            nullable: false,
            preserve_unknown,
            default: None,
            rules: None,
        });
        NodeId(self.0.len() as u32 - 1)
    }

    fn object(&mut self, mut fields: Vec<Field>, atomic: bool) -> NodeId {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        self.node(Shape::Struct(Struct { fields, atomic, ..Struct::default() }))
    }

    fn list(&mut self, item: NodeId, list: ListType) -> NodeId {
        self.node(Shape::List { item, list })
    }

    fn map_list(&mut self, item: NodeId, keys: &[&str]) -> NodeId {
        self.list(item, ListType::Map(keys.iter().map(|k| Arc::from(*k)).collect()))
    }
}

fn field(name: &str, node: NodeId) -> Field {
    Field {
        name: name.into(),
        node,
        required: false,
        default: None,
        presence: Presence::Distinct,
        patch: Patch::default(),
        proto: Box::default(),
    }
}

fn merging(name: &str, node: NodeId, key: Option<&str>) -> Field {
    let patch = Patch { merge: true, retain_keys: false, merge_key: key.map(Into::into) };
    Field { patch, ..field(name, node) }
}

fn required(field: Field) -> Field {
    Field { required: true, ..field }
}

fn always(field: Field) -> Field {
    Field { presence: Presence::Always, ..field }
}

fn null(field: Field) -> Field {
    Field { presence: Presence::Null, ..field }
}

fn defaulted(field: Field, default: Value) -> Field {
    Field { default: Some(default), ..field }
}

fn metadata(a: &mut Arena, string: NodeId, int: NodeId, labels: NodeId) -> NodeId {
    let set = a.list(string, ListType::Set);
    let owner = a.object(vec![field("uid", string), field("name", string)], true);
    let owners = a.map_list(owner, &["uid"]);
    let any = a.node(Shape::Any);
    let managed = a.list(any, ListType::Atomic);
    a.object(
        vec![
            field("name", string),
            field("namespace", string),
            field("uid", string),
            field("resourceVersion", string),
            field("generation", int),
            field("labels", labels),
            field("annotations", labels),
            merging("finalizers", set, None),
            merging("ownerReferences", owners, Some("uid")),
            field("managedFields", managed),
        ],
        false,
    )
}

pub(crate) fn pod_schema() -> (Schema, NodeId) {
    let mut a = Arena::default();
    let string = a.node(Shape::String);
    let int = a.node(Shape::Integer { bits: 32, unsigned: false });
    let boolean = a.node(Shape::Boolean);
    let labels = a.node(Shape::Map { value: string, atomic: false });
    let strings = a.list(string, ListType::Atomic);
    let meta = metadata(&mut a, string, int, labels);
    let port = a.object(
        vec![
            required(field("containerPort", int)),
            defaulted(field("protocol", string), json!("TCP")),
            field("name", string),
        ],
        false,
    );
    let ports = a.map_list(port, &["containerPort", "protocol"]);
    let resources = a.object(vec![field("limits", labels)], false);
    let container = a.object(
        vec![
            required(field("name", string)),
            field("image", string),
            field("tty", boolean),
            merging("ports", ports, Some("containerPort")),
            always(field("resources", resources)),
        ],
        false,
    );
    let containers = a.map_list(container, &["name"]);
    let rolling = a.object(vec![field("maxSurge", int), field("maxUnavailable", int)], false);
    let strategy = a.object(vec![field("type", string), field("rollingUpdate", rolling)], false);
    let selector = a.object(vec![field("matchLabels", labels)], true);
    let limits = a.node(Shape::Map { value: resources, atomic: false });
    let spec = a.object(
        vec![
            null(required(merging("containers", containers, Some("name")))),
            field("args", strings),
            field("replicas", int),
            field("count", int),
            always(field("strategy", strategy)),
            field("selector", selector),
            field("nodeName", string),
            field("named", limits),
        ],
        false,
    );
    let status = a.object(vec![field("phase", string), field("replicas", int)], false);
    let root = a.object(
        vec![
            field("apiVersion", string),
            field("kind", string),
            always(field("metadata", meta)),
            always(field("spec", spec)),
            always(field("status", status)),
        ],
        false,
    );
    (Schema::new(a.0, Vec::new()), root)
}

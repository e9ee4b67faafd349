//! A schema: an arena of nodes with the kinds in it.

use api_meta::{ErrorList, FieldError, GroupVersionKind};

use crate::{
    lookup::{DescendantFlags, prepare},
    node::{JSON_SCHEMA, Node, NodeId, Shape},
    rules::Rules,
};

/// An arena of nodes, and the kinds whose root nodes are in it.
#[derive(Debug, Default)]
pub struct Schema {
    /// The nodes, indexed by [`NodeId`].
    pub nodes: Vec<Node>,
    /// The kinds, sorted by group, version and kind.
    pub kinds: Vec<Kind>,
    /// The node of JSONSchemaProps, the schemas in CustomResourceDefinitions.
    json_schema: Option<NodeId>,
    pub(crate) below: DescendantFlags,
    /// The `x-kubernetes-validations` of a custom resource.
    pub(crate) rules: Option<Rules>,
    pub(crate) rule_errors: ErrorList,
}

/// A kind and its root node.
#[derive(Clone, Debug)]
pub struct Kind {
    /// The API group; empty for the core group.
    pub group: Box<str>,
    /// The API version.
    pub version: Box<str>,
    /// The kind.
    pub kind: Box<str>,
    /// The root node.
    pub node: NodeId,
}

impl Kind {
    /// Creates a kind with a root node.
    pub(crate) fn new(gvk: &GroupVersionKind, node: NodeId) -> Self {
        let GroupVersionKind { group, version, kind } = gvk;
        let [group, version, kind] = [group, version, kind].map(|text| text.clone().into());
        Self { group, version, kind, node }
    }
}

impl Schema {
    /// Creates a schema from a complete arena and prepares its lookup tables.
    pub fn new(mut nodes: Vec<Node>, kinds: Vec<Kind>) -> Self {
        nodes.shrink_to_fit();
        let below = prepare(&mut nodes);
        let mut schema = Self {
            nodes,
            kinds,
            json_schema: None,
            below,
            rules: None,
            rule_errors: ErrorList::new(),
        };
        schema.json_schema = schema.type_named(JSON_SCHEMA);
        schema
    }

    /// Returns the node of JSONSchemaProps, if the schema has it.
    pub fn json_schema(&self) -> Option<NodeId> {
        self.json_schema
    }

    /// Returns the validation rules of a kind's root node.
    pub(crate) fn rules_of(&self, node: NodeId) -> Option<&Rules> {
        self.rules.as_ref().filter(|_| self.kinds.first().is_some_and(|kind| kind.node == node))
    }

    /// Reports whether objects have to obey `x-kubernetes-validations`.
    pub fn has_rules(&self) -> bool {
        self.rules.is_some()
    }

    /// Returns the errors of the schema's `x-kubernetes-validations`: rules that do not compile or may cost too much. A
    /// new definition with such a rule is rejected. A stored one is served, and its objects fail validation.
    pub fn rule_errors(&self) -> &[FieldError] {
        &self.rule_errors
    }

    /// Returns the node of an ID, which must belong to this schema.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Returns the root node of a kind.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<NodeId> {
        let key = (group, version, kind);
        let at =
            self.kinds.binary_search_by(|k| (&*k.group, &*k.version, &*k.kind).cmp(&key)).ok()?;
        Some(self.kinds[at].node)
    }

    /// Returns the node of a named type, such as `io.k8s.api.core.v1.PodSpec`. This is slow, because it scans all
    /// nodes.
    pub fn type_named(&self, name: &str) -> Option<NodeId> {
        let at = self.nodes.iter().position(|n| n.name.as_deref() == Some(name))?;
        Some(NodeId(at as u32))
    }

    /// Returns the node of a member of a struct or map node.
    pub fn member(&self, id: NodeId, name: &str) -> Option<NodeId> {
        match &self.node(id).shape {
            Shape::Struct(s) => s.field(name).map(|f| f.node),
            Shape::Map { value, .. } => Some(*value),
            _ => None,
        }
    }
}

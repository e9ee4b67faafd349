//! The schema of a member of a map.

use api_schema::{NodeId, Patch, Schema, Shape};

/// The schema of one member: its node and its merge strategy.
pub(super) struct Member {
    pub(super) node: Option<NodeId>,
    /// `true` if the schema does not declare the contents. Such objects are replaced.
    pub(super) opaque: bool,
    pub(super) item: Option<NodeId>,
    pub(super) patch: Patch,
}

pub(super) fn member(schema: &Schema, parent: Option<NodeId>, name: &str) -> Member {
    let (node, patch) = match parent.map(|id| &schema.node(id).shape) {
        Some(Shape::Struct(s)) => match s.field(name) {
            Some(field) => (Some(field.node), field.patch.clone()),
            None => (None, Patch::default()),
        },
        Some(Shape::Map { value, .. }) => (Some(*value), Patch::default()),
        _ => (None, Patch::default()),
    };
    let item = match node.map(|id| &schema.node(id).shape) {
        Some(Shape::List { item, .. }) => Some(*item),
        _ => None,
    };
    let opaque = node.is_some_and(|id| matches!(schema.node(id).shape, Shape::Any));
    Member { node, opaque, item, patch }
}

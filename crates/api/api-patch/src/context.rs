//! The context of a write, and the interface to the versions of a kind.

use api_schema::{NodeId, Schema};
use serde_json::Value;

use crate::{
    fieldset::FieldSet,
    managed::{Entry, Operation},
    typed::diff,
};

/// The context of a write.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The schema of the object's kind.
    pub schema: &'a Schema,
    /// The root node of the object's kind; `None` for objects without a schema.
    pub node: Option<NodeId>,
    /// The field manager: from the request, or the first word of the user agent.
    pub manager: &'a str,
    /// The API version of the request, such as `apps/v1`.
    pub api_version: &'a str,
    /// The kind's other versions, in which other managers may have written; `None` treats every version as the
    /// request's.
    pub versions: Option<&'a dyn Versions>,
    /// The subresource that is written; empty for the main endpoint.
    pub subresource: &'a str,
    /// The time of the write, in RFC 3339 format with seconds.
    pub now: &'a str,
    /// The fields that this endpoint cannot change and therefore not own, such as `status` on the main one.
    pub reset: Option<&'a FieldSet>,
    /// `true` if apply takes over the fields of other managers.
    pub force: bool,
}

impl Context<'_> {
    pub(crate) fn entry(&self, operation: Operation) -> Entry {
        Entry {
            manager: self.manager.to_owned(),
            operation,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
            time: None,
            fields: FieldSet::default(),
        }
    }

    /// Returns the fields that differ between two objects, without the reset fields.
    pub(crate) fn diff(&self, old: Option<&Value>, new: &Value) -> diff::Diff {
        let mut diff = diff::objects(self.schema, self.node, old, new);
        if let Some(reset) = self.reset {
            diff.changed.difference_recursive(reset);
            diff.removed.difference_recursive(reset);
        }
        diff
    }
}

/// The versions of a kind.
pub trait Versions: Sync {
    /// Returns the schema of a version, or `None` if the kind does not have the version.
    fn types(&self, api_version: &str) -> Option<(&Schema, NodeId)>;

    /// Converts an object between versions that [`Versions::types`] returns.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Value;
}

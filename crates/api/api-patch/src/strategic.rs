//! Strategic merge patch: a merge patch that merges lists by the merge keys in the schema.
//!
//! Directives: `$patch: replace | delete | merge` in a map, `$patch: replace | delete` in an item of a merged list,
//! `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>` and `$retainKeys`.

mod directive;
mod member;
mod merge;
mod order;
#[cfg(test)]
mod tests;

use api_schema::{NodeId, Schema};
use serde_json::Value;

use crate::error::PatchError;

/// Applies a strategic merge patch. `node` is the schema of `object`; without it, lists are replaced. After an error,
/// `object` is unspecified.
pub fn strategic(
    schema: &Schema,
    node: Option<NodeId>,
    object: &mut Value,
    patch: &Value,
) -> Result<(), PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (object, patch) else {
        return Err(PatchError::InvalidDocument);
    };
    merge::merge_map(schema, node, original, patch)
}

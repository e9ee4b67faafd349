//! Strategic merge patch: a merge patch that merges lists by the merge keys in the schema.
//!
//! Directives: `$patch: replace | delete` in a map, `$patch: replace | delete` in an item of a merged list,
//! `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>` and `$retainKeys`.

mod directive;
mod member;
mod merge;
mod order;
#[cfg(test)]
mod tests;

use api_schema::{NodeId, Schema};
use serde_json::Value;

use crate::error::{PatchError, json_word};

/// Applies a strategic merge patch. `node` is the schema of `object`; without it, lists are replaced. After an error,
/// `object` is unspecified.
pub fn strategic(
    schema: &Schema,
    node: Option<NodeId>,
    object: &mut Value,
    patch: &Value,
) -> Result<(), PatchError> {
    match (object, patch) {
        (Value::Object(original), Value::Object(patch)) => {
            merge::merge_map(schema, node, original, patch)
        }
        (_, Value::Null) => Ok(()),
        (_, patch) => Err(PatchError::NotMap(json_word(patch))),
    }
}

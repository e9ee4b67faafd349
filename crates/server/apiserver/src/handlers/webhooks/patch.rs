//! Applies the patch of a webhook. The result is decoded like a body, so that a webhook can set only what a client can.

use admission::webhook::{Failure, Webhook};
use api_meta::{GroupVersionKind, Status, Tree as _, go_quote};
use api_patch::PatchError;
use api_schema::{Fill, Finding, NodeId, Schema};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::{
    handlers::{call::Call, decode},
    registry::{ServedVersion, definition::api_version},
};

/// Returns the patched object, or `None` if the patch has changed nothing.
pub(super) fn apply(
    call: &Call,
    webhook: &Webhook,
    kind: &GroupVersionKind,
    object: &Value,
    patch: &[u8],
) -> Result<Option<Value>, Failure> {
    let undecodable = |error: &dyn std::fmt::Display| {
        Failure::call(format!("received undecodable patch in webhook response: {error}"), 503)
    };
    let internal = |cause: String| Failure::Server(Box::new(Status::internal(cause)));
    if object.is_null() {
        // Webhooks in Go encode an empty list of steps as null.
        let steps: Option<Vec<IgnoredAny>> =
            serde_json::from_slice(patch).map_err(|e| undecodable(&e))?;
        if steps.is_none_or(|steps| steps.is_empty()) {
            return Ok(None);
        }
        let name = go_quote(&webhook.name);
        return Err(internal(format!(
            "admission webhook {name} attempted to modify the object, which is not supported for \
             this operation"
        )));
    }
    let patched = api_patch::json_patch(object, patch).map_err(|error| match error {
        PatchError::Decode(cause) => undecodable(&cause),
        error => internal(error.to_string()),
    })?;
    let new = read_again(call, kind, patched).map_err(|error| internal(error.to_string()))?;
    Ok((new != *object).then_some(new))
}

/// Returns the schema of a kind that objects of a request may be converted to.
pub(in crate::handlers) fn schema_of<'c>(
    call: &'c Call,
    kind: &GroupVersionKind,
) -> Option<(&'c Schema, NodeId)> {
    match served_as(call, kind) {
        Some(served) => Some((&*served.schema, served.node)),
        None => {
            let schema = Schema::builtin();
            let node = schema.kind(&kind.group, &kind.version, &kind.kind);
            node.map(|node| (&**schema, node))
        }
    }
}

fn served_as<'c>(call: &'c Call, kind: &GroupVersionKind) -> Option<&'c ServedVersion> {
    let version = api_version(&kind.group, &kind.version);
    call.resource.definition.version(&version).filter(|served| *served.kind == *kind.kind)
}

/// Decodes a tree: drops unknown fields, rejects invalid ones, and applies defaults.
pub(in crate::handlers) fn read_again(
    call: &Call,
    kind: &GroupVersionKind,
    tree: Value,
) -> Result<Value, api_schema::DecodeError> {
    read_with_findings(call, kind, tree).map(|(tree, _)| tree)
}

/// Like [`read_again`], and returns the unknown fields.
pub(in crate::handlers) fn read_with_findings(
    call: &Call,
    kind: &GroupVersionKind,
    mut tree: Value,
) -> Result<(Value, Vec<Finding>), api_schema::DecodeError> {
    let mut findings = Vec::new();
    let definition = &call.resource.definition;
    let version = api_version(&kind.group, &kind.version);
    if let Some((schema, node)) = schema_of(call, kind) {
        let decoded = api_schema::decode_value(schema, node, tree, Fill::Defaults)?;
        (tree, findings) = (decoded.value, decoded.findings);
    }
    if let Some(served) = served_as(call, kind) {
        decode::own_defaults(served, definition, &mut tree);
    }
    tree.put(&["kind"], json!(*kind.kind));
    tree.put(&["apiVersion"], json!(version));
    Ok((tree, findings))
}

/// Restores `managedFields` if a webhook or policy has made them invalid.
pub(in crate::handlers) fn keep_owners(call: &Call, old: &Value, new: &mut Value) {
    let (was, is) = (&old["metadata"]["managedFields"], &new["metadata"]["managedFields"]);
    if was == is {
        return;
    }
    let sound = |entry: &Value| {
        matches!(entry["operation"].as_str(), Some("Apply" | "Update"))
            && entry["fieldsType"] == "FieldsV1"
            && entry["fieldsV1"].is_object()
    };
    let wrong = is.as_array().into_iter().flatten().find(|entry| !sound(entry));
    let Some(wrong) = wrong.map(ToString::to_string) else { return };
    call.warn(format!(
        ".metadata.managedFields was in an invalid state after admission; this could be caused by an \
         outdated mutating admission controller; please fix your requests: {wrong}"
    ));
    let was = was.clone();
    new.put(&["metadata", "managedFields"], was);
}

//! Migration from client-side to server-side apply, based on kubectl's last-applied annotation.

use std::collections::HashSet;

use api_meta::Tree as _;
use serde_json::Value;

use crate::{
    conflict::Conflict,
    context::Context,
    fieldset::{FieldSet, display},
    managed,
    typed::{diff, extract::extract},
};

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Upstream's limit on the size of all annotations. A larger value would make the object invalid.
const MAX_ANNOTATION: usize = 256 * 1024;

/// Returns the remaining conflicts after kubectl has taken over the fields that the annotation shows as its own.
pub(crate) fn remaining_conflicts(
    ctx: &Context,
    live: Option<&Value>,
    conflicts: Vec<Conflict>,
) -> Vec<Conflict> {
    let Some(allowed) = live.and_then(|live| unchanged_applied_fields(ctx, live)) else {
        return conflicts;
    };
    let allowed: HashSet<String> = allowed.paths().iter().map(|path| display(path)).collect();
    conflicts.into_iter().filter(|c| !allowed.contains(&c.field)).collect()
}

/// Returns the fields that the annotation sets and that are unchanged in the live object.
fn unchanged_applied_fields(ctx: &Context, live: &Value) -> Option<FieldSet> {
    let annotated: Value = serde_json::from_str(annotation(live)?).ok()?;
    let mut fields = extract(ctx.schema, ctx.node, &annotated).ok()?;
    let diff = diff::objects(ctx.schema, ctx.node, Some(&annotated), live);
    fields.difference(&diff.changed);
    fields.difference(&diff.removed);
    Some(fields)
}

/// Updates the annotation, if the object has it, on server-side apply by kubectl. Client-side apply then still works.
pub(crate) fn refresh(
    ctx: &Context,
    live: Option<&Value>,
    applied: &Value,
    mut result: Value,
) -> Value {
    if ctx.manager != "kubectl" || live.and_then(annotation).is_none() {
        return result;
    }
    let mut applied = applied.clone();
    managed::take(&mut applied);
    applied.remove(&["metadata", "annotations", ANNOTATION]);
    let mut text = applied.to_string();
    text.push('\n');
    if text.len() > MAX_ANNOTATION {
        text.clear();
    }
    if let Some(Value::Object(annotations)) = result.at_mut("metadata.annotations") {
        annotations.insert(ANNOTATION.to_owned(), Value::String(text));
    }
    result
}

fn annotation(object: &Value) -> Option<&str> {
    let text = object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str()?;
    (!text.is_empty()).then_some(text)
}

//! Server-side apply: merges an applied configuration, detects conflicts, and records ownership.

use api_meta::Tree as _;
use serde_json::Value;

use crate::{
    conflict::{Conflict, Conflicts},
    context::Context,
    fieldset::{FieldSet, display},
    last_applied,
    managed::{self, BEFORE_FIRST_APPLY, Entry, Operation},
    typed::{extract::extract, merge::merge},
    versions::{self, Changes},
};

/// An error of server-side apply.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    #[error(
        "Incorrect version specified in apply patch. Specified patch version: {got}, expected: {want}"
    )]
    Version { got: String, want: String },
    #[error("failed to create typed patch object ({namespace}/{name}; {gvk}): {}", errors_text(.errors))]
    Typed { namespace: String, name: String, gvk: String, errors: Vec<String> },
    #[error(transparent)]
    Conflicts(Conflicts),
}

impl ApplyError {
    /// Returns upstream's HTTP status for the error.
    pub fn code(&self) -> u16 {
        match self {
            Self::ManagedFields | Self::Version { .. } => 400,
            Self::Conflicts(_) => 409,
            Self::Typed { .. } => 500,
        }
    }
}

pub(crate) fn errors_text(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    }
}

/// Applies a manager's complete configuration to the live object.
///
/// Returns the object with its `managedFields`. The caller fills in defaults. If nothing changed, the result equals
/// `live`.
pub fn apply(ctx: &Context, live: Option<&Value>, applied: &Value) -> Result<Value, ApplyError> {
    check(ctx, applied)?;
    let result = match apply_once(ctx, live, applied) {
        Err(ApplyError::Conflicts(Conflicts(conflicts))) if ctx.manager == "kubectl" => {
            let remaining = last_applied::remaining_conflicts(ctx, live, conflicts);
            if !remaining.is_empty() {
                return Err(ApplyError::Conflicts(Conflicts(remaining)));
            }
            apply_once(&Context { force: true, ..*ctx }, live, applied)
        }
        other => other,
    }?;
    let result = last_applied::refresh(ctx, live, applied, result);
    Ok(keep_times_if_unchanged(live, result))
}

fn check(ctx: &Context, applied: &Value) -> Result<(), ApplyError> {
    if !managed::of(applied).is_null() {
        return Err(ApplyError::ManagedFields);
    }
    match applied.get("apiVersion").and_then(Value::as_str) {
        Some(got) if got != ctx.api_version => {
            Err(ApplyError::Version { got: got.to_owned(), want: ctx.api_version.to_owned() })
        }
        _ => Ok(()),
    }
}

fn apply_once(ctx: &Context, live: Option<&Value>, applied: &Value) -> Result<Value, ApplyError> {
    let mut set = extract(ctx.schema, ctx.node, applied)
        .map_err(|errors| typed_error(ctx, applied, errors))?;
    if let Some(reset) = ctx.reset {
        set.difference_recursive(reset);
    }
    let mut base = live.cloned();
    let owners = base.as_mut().map(managed::take).unwrap_or_default();
    let mut entries = live_entries(ctx, base.as_ref(), owners);
    let mut entry = ctx.entry(Operation::Apply);
    let at = entries.iter().position(|other| other.is(&entry));
    let last = at.map(|at| entries.remove(at));
    entry.fields = set;

    let mut object = merge(ctx.schema, ctx.node, base.clone(), applied);
    if let Some(last) = &last {
        versions::prune(ctx, &mut object, last, &entry, &entries);
    }

    let mut changes = Changes::of(ctx, base.as_ref(), &object);
    if !ctx.force {
        let conflicts = conflicts(&entries, &mut changes);
        if !conflicts.is_empty() {
            return Err(ApplyError::Conflicts(Conflicts(conflicts)));
        }
    }
    changes.disown(&mut entries);
    entry.fields.difference(&unowned_fields());
    // As upstream, which records no time for a manager that changes only owners.
    let changed = base.is_none_or(|base| base != object);
    entry.time = if changed { Some(ctx.now.to_owned()) } else { last.and_then(|last| last.time) };
    entries.push(entry);
    managed::store(&mut object, entries);
    Ok(object)
}

/// Returns the entries of the live object's `owners`. The fields of an object without entries get the manager
/// `before-first-apply`.
fn live_entries(ctx: &Context, live: Option<&Value>, owners: Value) -> Vec<Entry> {
    let Some(live) = live else { return Vec::new() };
    let entries = managed::decode(owners, true).unwrap_or_default();
    if !entries.is_empty() {
        return entries;
    }
    let mut all = ctx.entry(Operation::Update);
    all.manager = BEFORE_FIRST_APPLY.to_owned();
    all.fields = ctx.diff(None, live).changed;
    all.time = Some(ctx.now.to_owned());
    vec![all]
}

fn conflicts(others: &[Entry], changes: &mut Changes) -> Vec<Conflict> {
    let mut found = Vec::new();
    for entry in others {
        let theirs = changes.changed_of(entry);
        found.extend(
            theirs
                .paths()
                .iter()
                .map(|path| Conflict { manager: entry.describe(), field: display(path) }),
        );
    }
    found.sort_by(|a, b| a.manager.cmp(&b.manager));
    found
}

/// Returns the fields of an applied configuration that the applier does not own.
fn unowned_fields() -> FieldSet {
    FieldSet::of(&[
        "apiVersion",
        "kind",
        "metadata",
        "metadata.name",
        "metadata.namespace",
        "metadata.creationTimestamp",
        "metadata.selfLink",
        "metadata.uid",
        "metadata.generation",
        "metadata.managedFields",
        "metadata.resourceVersion",
    ])
}

/// Keeps the live times if the write changes nothing else.
fn keep_times_if_unchanged(live: Option<&Value>, mut result: Value) -> Value {
    let Some(live) = live.filter(|live| managed::equal_beside_owners(live, &result)) else {
        return result;
    };
    // The order of entries depends on times, so the comparison ignores both.
    let timeless = |list: &Value| {
        let mut entries = list.as_array().cloned().unwrap_or_default();
        for entry in &mut entries {
            entry.as_object_mut().map(|entry| entry.remove("time"));
        }
        entries.sort_by_cached_key(Value::to_string);
        entries
    };
    if timeless(managed::of(live)) == timeless(managed::of(&result)) {
        managed::put(&mut result, managed::of(live).clone());
    }
    result
}

fn typed_error(ctx: &Context, applied: &Value, errors: Vec<String>) -> ApplyError {
    let gvk = match ctx.api_version.split_once('/') {
        Some((group, version)) => format!("{group}/{version}, Kind={}", applied.text("kind")),
        None => format!("/{}, Kind={}", ctx.api_version, applied.text("kind")),
    };
    let (namespace, name) = (applied.namespace().to_owned(), applied.name().to_owned());
    ApplyError::Typed { namespace, name, gvk, errors }
}

#[cfg(test)]
mod custom;
#[cfg(test)]
mod tests;

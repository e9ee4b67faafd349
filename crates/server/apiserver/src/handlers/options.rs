//! The options in the query of a write: CreateOptions, UpdateOptions and PatchOptions.

use api_meta::{ErrorList, FieldError, GroupKind, Path, Status, Tree as _};
use serde_json::{Value, json};

use super::call::Call;

/// The maximum length of a field manager's name, in bytes.
const MANAGER_LENGTH: usize = 128;

/// The handling of unknown and duplicate fields that a request chooses. The default is to warn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validation {
    Ignore,
    Warn,
    Strict,
}

pub(crate) fn validation(call: &Call) -> Validation {
    match call.info.query.get("fieldValidation").unwrap_or_default() {
        "Ignore" => Validation::Ignore,
        "Strict" => Validation::Strict,
        _ => Validation::Warn,
    }
}

/// The group and version of all kinds of options.
pub(crate) const API_VERSION: &str = "meta.k8s.io/v1";

/// Returns the options of a write as an object of `kind`. Those of a patch become UpdateOptions or CreateOptions,
/// without fields that only a patch has.
pub(crate) fn to_object(call: &Call, kind: &'static str) -> Value {
    let query = &call.info.query;
    let mut options = json!({"kind": kind, "apiVersion": API_VERSION});
    let dry_run: Vec<&str> = query.all("dryRun").collect();
    if !dry_run.is_empty() {
        options.put(&["dryRun"], json!(dry_run));
    }
    for field in ["fieldManager", "fieldValidation"] {
        if let Some(value) = query.get(field).filter(|value| !value.is_empty()) {
            options.put(&[field], json!(value));
        }
    }
    options
}

/// Validates the options of a write. `apply` is `true` for server-side apply.
pub(crate) fn check(call: &Call, apply: bool) -> Result<(), Box<Status>> {
    let kind = match call.info.verb {
        "create" => "CreateOptions",
        "update" => "UpdateOptions",
        "patch" => "PatchOptions",
        _ => return Ok(()),
    };
    let (query, mut errors) = (&call.info.query, ErrorList::new());
    if kind == "PatchOptions" {
        let force = Path::new("force");
        if !apply && query.get("force").is_some() {
            errors.push(FieldError::forbidden(&force, "may not be specified for non-apply patch"));
        }
        if apply && query.get("fieldManager").unwrap_or_default().is_empty() {
            errors.push(FieldError::required(
                &Path::new("fieldManager"),
                "is required for apply patch",
            ));
        }
    }
    errors.append(&mut manager_errors(query.get("fieldManager").unwrap_or_default()));
    let stages: Vec<&str> = query.all("dryRun").collect();
    errors.append(&mut dry_run_errors(&stages));
    let validation = query.get("fieldValidation").unwrap_or_default();
    if !matches!(validation, "" | "Ignore" | "Warn" | "Strict") {
        let known = ["", "Ignore", "Strict", "Warn"];
        errors.push(FieldError::not_supported(&Path::new("fieldValidation"), validation, &known));
    }
    refuse(kind, &errors)
}

/// Validates the name of a field manager.
fn manager_errors(manager: &str) -> ErrorList {
    let (field, mut errors) = (Path::new("fieldManager"), ErrorList::new());
    if manager.len() > MANAGER_LENGTH {
        errors.push(FieldError::too_long(&field, MANAGER_LENGTH));
    }
    for (at, character) in manager.char_indices().filter(|(_, c)| c.is_control()) {
        errors.push_with(|| {
            let code = u32::from(character);
            let detail = format!("invalid character U+{code:04X} (at position {at})");
            FieldError::invalid(&field, manager, detail)
        });
    }
    errors
}

/// Rejects unknown values of `dryRun`, since ignoring them would execute the write.
pub(crate) fn dry_run_errors(stages: &[impl AsRef<str>]) -> ErrorList {
    let stages: Vec<&str> = stages.iter().map(AsRef::as_ref).collect();
    let mut errors = ErrorList::new();
    if stages.iter().any(|stage| *stage != "All") {
        errors.push(FieldError::not_supported(&Path::new("dryRun"), json!(stages), &["All"]));
    }
    errors
}

/// Returns the errors of options as a Status.
pub(crate) fn refuse(kind: &'static str, errors: &ErrorList) -> Result<(), Box<Status>> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Box::new(Status::invalid(&GroupKind::new("meta.k8s.io", kind), "", errors)))
    }
}

//! The options in the query of a write: CreateOptions, UpdateOptions and PatchOptions.

use api_meta::{ErrorList, FieldError, GroupKind, Path, Status, Tree as _};
use serde_json::{Value, json};

use super::call::Call;

/// The maximum length of a field manager's name.
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
    let manager = query.get("fieldManager").unwrap_or_default();
    if manager.chars().count() > MANAGER_LENGTH {
        let detail = format!("may not be more than {MANAGER_LENGTH} bytes");
        errors.push(FieldError::invalid(&Path::new("fieldManager"), manager, detail));
    }
    if manager.chars().any(char::is_control) {
        let detail = "should only contain printable characters";
        errors.push(FieldError::invalid(&Path::new("fieldManager"), manager, detail));
    }
    errors.append(&mut dry_run_errors(query.all("dryRun")));
    let validation = query.get("fieldValidation").unwrap_or_default();
    if !matches!(validation, "" | "Ignore" | "Warn" | "Strict") {
        let known = ["", "Ignore", "Strict", "Warn"];
        errors.push(FieldError::not_supported(&Path::new("fieldValidation"), validation, &known));
    }
    refuse(kind, &errors)
}

/// Rejects unknown values of `dryRun`, since ignoring them would execute the write.
pub(crate) fn dry_run_errors<'a>(stages: impl Iterator<Item = &'a str>) -> ErrorList {
    let unknown = stages.filter(|stage| *stage != "All");
    unknown.map(|stage| FieldError::not_supported(&Path::new("dryRun"), stage, &["All"])).collect()
}

/// Returns the errors of options as a Status.
pub(crate) fn refuse(kind: &'static str, errors: &ErrorList) -> Result<(), Box<Status>> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Box::new(Status::invalid(&GroupKind::new("meta.k8s.io", kind), "", errors)))
    }
}

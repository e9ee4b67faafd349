//! Validation of the specs of PersistentVolumeClaims.

use api_meta::{ErrorList, FieldError, Path, Quantity, Tree as _, validation};
use serde_json::Value;

use crate::fields::{validate_label_selector, validate_optional_one_of};

/// Validates the spec of a PersistentVolumeClaim, also in ephemeral volumes and StatefulSets.
pub(crate) fn check_volume_claim_spec(spec: &Value, path: &Path, errors: &mut ErrorList) {
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let modes = spec.items("accessModes");
    let modes_path = path.child("accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(&modes_path, "at least 1 access mode is required"));
    }
    for mode in modes.iter().filter_map(Value::as_str) {
        if !MODES.contains(&mode) {
            errors.push(FieldError::not_supported(&modes_path, mode, &MODES));
        }
    }
    if modes.len() > 1 && modes.iter().any(|m| m == "ReadWriteOncePod") {
        errors.push(FieldError::forbidden(
            &modes_path,
            "may not use ReadWriteOncePod with other access modes",
        ));
    }
    check_claim_resources(spec, path, errors);
    for field in ["dataSource", "dataSourceRef"] {
        let (source, path) = (spec.at(field), path.child(field));
        if !source.blank("kind") && source.blank("name") {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
    }
    let class = spec.text("storageClassName");
    if !class.is_empty() {
        for message in validation::dns1123_subdomain(class) {
            errors.push(FieldError::invalid(&path.child("storageClassName"), class, message));
        }
    }
    validate_optional_one_of(spec, "volumeMode", &["Block", "Filesystem"], path, errors);
    validate_label_selector(spec.at("selector"), &path.child("selector"), errors);
}

/// Validates the requests of a PersistentVolumeClaim.
fn check_claim_resources(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("resources").child("requests");
    match spec.at("resources.requests").get("storage").and_then(Value::as_str) {
        None => errors.push(FieldError::required(&path.key("storage"), "")),
        Some(text) => {
            if let Ok(quantity) = Quantity::parse(text)
                && (quantity.is_negative() || quantity.is_zero())
            {
                errors.push(FieldError::invalid(
                    &path.key("storage"),
                    text,
                    "must be greater than zero",
                ));
            }
        }
    }
}

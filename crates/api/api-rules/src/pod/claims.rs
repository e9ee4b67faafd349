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
    check_sources(spec, path, errors);
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

/// Validates the sources of a new volume's content.
fn check_sources(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for field in ["dataSource", "dataSourceRef"] {
        let (source, path) = (spec.at(field), path.child(field));
        if source.is_null() {
            continue;
        }
        for name in ["name", "kind"] {
            if source.blank(name) {
                errors.push(FieldError::required(&path.child(name), ""));
            }
        }
        let (group, kind) = (source.text("apiGroup"), source.text("kind"));
        if group.is_empty() {
            if kind != "PersistentVolumeClaim" {
                let words = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
                errors.push(FieldError::invalid(&path, kind, words));
            }
            continue;
        }
        for message in validation::dns1123_subdomain(group) {
            errors.push(FieldError::invalid(&path.child("apiGroup"), group, message));
        }
    }
    let (source, reference) = (spec.at("dataSource"), spec.at("dataSourceRef"));
    if source.is_null() || reference.is_null() {
        return;
    }
    let matches = ["apiGroup", "kind", "name"].iter().all(|f| source.text(f) == reference.text(f));
    let problem = if !reference.blank("namespace") {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if !matches {
        "must match dataSourceRef"
    } else {
        return;
    };
    errors.push(FieldError::invalid(&path.child("dataSource"), source.clone(), problem));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rejects_sources_that_do_not_match_or_are_of_the_core_group() {
        let source =
            |group: &str, kind: &str| json!({"apiGroup": group, "kind": kind, "name": "x"});
        let snapshot = source("snapshot.storage.k8s.io", "VolumeSnapshot");
        let mut foreign = snapshot.clone();
        foreign["namespace"] = json!("other");
        for (sources, words) in [
            (json!({"dataSource": snapshot, "dataSourceRef": snapshot}), None),
            (json!({"dataSourceRef": foreign}), None),
            (
                json!({"dataSourceRef": source("", "Secret")}),
                Some(
                    "spec.dataSourceRef: Invalid value: \"Secret\": must be 'PersistentVolumeClaim'",
                ),
            ),
            (
                json!({"dataSourceRef": {"kind": "PersistentVolumeClaim"}}),
                Some("spec.dataSourceRef.name: Required"),
            ),
            (json!({"dataSource": {"name": "x"}}), Some("spec.dataSource.kind: Required")),
            (
                json!({"dataSourceRef": source("A_B", "C")}),
                Some("spec.dataSourceRef.apiGroup: Invalid"),
            ),
            (
                json!({"dataSource": snapshot, "dataSourceRef": source("", "PersistentVolumeClaim")}),
                Some("must match dataSourceRef"),
            ),
            (
                json!({"dataSource": snapshot, "dataSourceRef": foreign}),
                Some("may not be specified when dataSourceRef.namespace is specified"),
            ),
        ] {
            let mut errors = ErrorList::default();
            check_sources(&sources, &Path::new("spec"), &mut errors);
            let text = api_meta::aggregate(&errors);
            assert!(
                words.map_or(errors.is_empty(), |words| text.contains(words)),
                "{sources}: {text}"
            );
        }
    }
}

//! Validation of references to fields and resources of the Pod, in environment variables and volumes.

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use serde_json::Value;

/// Validates a reference to a container's resource. In a volume it must name the container.
pub(super) fn validate_resource_field(
    source: &Value,
    in_volume: bool,
    path: &Path,
    errors: &mut ErrorList,
) {
    const RESOURCES: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    if in_volume && source.blank("containerName") {
        errors.push(FieldError::required(&path.child("containerName"), ""));
        return;
    }
    let resource = source.text("resource");
    let huge = |name: &str| name.contains(".hugepages-");
    if resource.is_empty() {
        errors.push(FieldError::required(&path.child("resource"), ""));
    } else if !RESOURCES.contains(&resource) && !huge(resource) {
        errors.push(FieldError::not_supported(&path.child("resource"), resource, &RESOURCES));
    }
    let divisor = source.text("divisor");
    let (resource_name, allowed) = match resource.split_once('.').map(|(_, name)| name) {
        Some("cpu") => ("cpu", &["1m", "1"][..]),
        Some("memory") => ("memory", MEMORY_DIVISORS),
        Some("ephemeral-storage") => ("ephemeral-storage", MEMORY_DIVISORS),
        _ => return,
    };
    if !matches!(divisor, "" | "0") && !allowed.contains(&divisor) {
        let list = match resource_name {
            "cpu" => "1m and 1",
            _ => "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei",
        };
        let detail = match resource_name {
            "ephemeral-storage" => {
                format!(
                    "only divisor's values {list} are supported with the local ephemeral storage resource"
                )
            }
            _ => format!(
                "only divisor's values {list} are supported with the {resource_name} resource"
            ),
        };
        errors.push(FieldError::invalid(&path.child("divisor"), resource, detail));
    }
}

const MEMORY_DIVISORS: &[&str] =
    &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Validates a reference to a field of the Pod. `fields` are the fields that are allowed in this place.
pub(super) fn validate_field_ref(
    source: &Value,
    fields: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    let (field, path) = (source.text("fieldPath"), path.child("fieldPath"));
    let version = source.text("apiVersion");
    if !field.is_empty() && !matches!(version, "" | "v1") {
        let detail = format!("error converting fieldPath: unsupported pod version: {version}");
        errors.push(FieldError::invalid(&path, field, detail));
        return;
    }
    let subscript =
        field.starts_with("metadata.annotations['") || field.starts_with("metadata.labels['");
    if field.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else if !fields.contains(&field) && !subscript {
        errors.push(FieldError::not_supported(&path, field, fields));
    }
}

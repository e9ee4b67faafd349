//! Validation of requests and limits.

use api_meta::{ErrorList, FieldError, Path, Quantity, Tree as _, validation};
use serde_json::Value;

use crate::amounts::{amounts, containers_total};

const STANDARD: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "storage"];

/// Validates the requests and limits of a container or Pod.
pub(super) fn check(resources: &Value, path: &Path, errors: &mut ErrorList) {
    let limits_path = path.child("limits");
    for (name, limit) in resources.pairs("limits") {
        let path = limits_path.key(name);
        validate_container_resource_name(name, &path, errors);
        validate_container_amount(limit, name, &path, errors);
    }
    let requests_path = path.child("requests");
    for (name, request) in resources.pairs("requests") {
        let path = requests_path.key(name);
        validate_container_resource_name(name, &path, errors);
        let Some(request) = validate_container_amount(request, name, &path, errors) else {
            continue;
        };
        let limit = resources.at("limits").get(name);
        match limit.and_then(Value::as_str).and_then(|text| Quantity::parse(text).ok()) {
            Some(limit) if request > limit => errors.push(FieldError::invalid(
                &requests_path,
                request.to_string(),
                format!("must be less than or equal to {name} limit of {limit}"),
            )),
            Some(limit) if !can_overcommit(name) && request != limit => {
                errors.push(FieldError::invalid(
                    &requests_path,
                    request.to_string(),
                    format!("must be equal to {name} limit of {limit}"),
                ));
            }
            None if !can_overcommit(name) => errors.push(FieldError::required(
                &limits_path,
                "Limit must be set for non overcommitable resources",
            )),
            _ => {}
        }
    }
    check_huge_pages(resources, path, errors);
}

/// Validates Pod-level resources against those of the containers.
pub(super) fn check_pod_level(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let total = containers_total(spec, "requests");
    for (name, request) in amounts(spec.at("resources.requests")) {
        if let Some(total) = total.get(&name).filter(|total| request < **total) {
            let detail =
                format!("must be greater than or equal to aggregate container requests of {total}");
            let path = path.child("requests").key(&name);
            errors.push(FieldError::invalid(&path, request.to_string(), detail));
        }
    }
    let limits = amounts(spec.at("resources.limits"));
    for list in ["containers", "initContainers"] {
        for (i, container) in spec.items(list).iter().enumerate() {
            for (name, limit) in amounts(container.at("resources.limits")) {
                let Some(most) = limits.get(&name).filter(|most| limit > **most) else { continue };
                // Upstream reports this path, which is not the field's own.
                let path = path.child(list).index(i).key(&name).child("limits");
                let detail = format!("must be less than or equal to pod limits of {most}");
                errors.push(FieldError::invalid(&path, limit.to_string(), detail));
            }
        }
    }
}

/// Reports huge pages without CPU or memory.
fn check_huge_pages(resources: &Value, path: &Path, errors: &mut ErrorList) {
    let names = || ["limits", "requests"].into_iter().flat_map(|list| resources.pairs(list));
    let huge = names().any(|(name, _)| name.starts_with("hugepages-"));
    if huge && !names().any(|(name, _)| matches!(name.as_str(), "cpu" | "memory")) {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
}

/// Reports whether a resource is an extended one: its domain is not Kubernetes', or it names a DeviceClass.
pub fn is_extended_resource(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| {
        !domain.contains("kubernetes.io") && !domain.starts_with("requests.")
            || domain == "deviceclass.resource.kubernetes.io"
    })
}

/// Reports whether a resource's request may be lower than its limit. Huge pages and extended resources may not.
fn can_overcommit(name: &str) -> bool {
    !is_extended_resource(name.trim_start_matches("requests.")) && !name.starts_with("hugepages-")
}

pub(crate) fn validate_container_resource_name(name: &str, path: &Path, errors: &mut ErrorList) {
    for message in validation::qualified_name(name) {
        errors.push(FieldError::invalid(path, name, message));
    }
    validate_standard_or_qualified(name, path, errors);
    if !name.contains('/') && !STANDARD[..3].contains(&name) && !name.starts_with("hugepages-") {
        errors.push(FieldError::invalid(path, name, "must be a standard resource for containers"));
    }
}

/// Reports whether a resource is a standard one of containers or quotas.
pub(crate) fn is_standard(name: &str) -> bool {
    const OTHERS: [&str; 17] = [
        "bindings",
        "configmaps",
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
        "requests.storage",
        "resourcequotas",
        "secrets",
        "services",
        "services.loadbalancers",
        "services.nodeports",
    ];
    STANDARD.contains(&name)
        || OTHERS.contains(&name)
        || name.trim_start_matches("requests.").starts_with("hugepages-")
}

/// Reports a resource name that is neither standard nor domain-qualified.
pub(crate) fn validate_standard_or_qualified(name: &str, path: &Path, errors: &mut ErrorList) {
    if !name.contains('/') && !is_standard(name) {
        let detail = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid(path, name, detail));
    }
}

/// Validates an amount and returns the quantity if it is valid.
pub(crate) fn validate_amount(
    value: &Value,
    name: &str,
    path: &Path,
    errors: &mut ErrorList,
) -> Option<Quantity> {
    let quantity = Quantity::parse(value.as_str()?).ok()?;
    if quantity.is_negative() {
        errors.push(FieldError::invalid(
            path,
            quantity.to_string(),
            "must be greater than or equal to 0",
        ));
        return None;
    }
    if !can_overcommit(name) && !quantity.is_integer() {
        errors.push(FieldError::invalid(path, quantity.to_string(), "must be an integer"));
    }
    Some(quantity)
}

/// Validates a container's [`amount`]. Huge pages must be a multiple of the page size.
fn validate_container_amount(
    value: &Value,
    name: &str,
    path: &Path,
    errors: &mut ErrorList,
) -> Option<Quantity> {
    let quantity = validate_amount(value, name, path, errors)?;
    if name.strip_prefix("hugepages-").is_some_and(|size| !is_whole_pages(&quantity, size)) {
        let detail = format!("{quantity} is not positive integer multiple of {name}");
        errors.push(FieldError::invalid(path, quantity.to_string(), detail));
    }
    Some(quantity)
}

fn is_whole_pages(amount: &Quantity, size: &str) -> bool {
    let size = Quantity::parse(size).map_or(0, |size| size.value());
    size > 0 && amount.value() % size == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overcommits_only_native_resources() {
        for name in ["cpu", "memory", "kubernetes.io/x"] {
            assert!(can_overcommit(name), "{name}");
        }
        for name in [
            "hugepages-2Mi",
            "example.com/gpu",
            "requests.example.com/gpu",
            "deviceclass.resource.kubernetes.io/gpu",
        ] {
            assert!(!can_overcommit(name), "{name}");
        }
    }
}

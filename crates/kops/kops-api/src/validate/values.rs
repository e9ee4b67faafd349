//! Parses and validates single values: versions, ranges, labels and ARNs.

use api_meta::{Cidr, ErrorList, FieldError, Path};
use serde_json::Value;

use super::paths::spec;

/// Reports whether a field has a value other than Go's empty string.
pub(super) fn is_set(value: &Value) -> bool {
    !value.is_null() && value != ""
}

/// Parses a version as Go's `semver.ParseTolerant` does: a leading `v` and missing numbers are allowed.
pub(super) fn parse_version(text: &str) -> Option<[u64; 3]> {
    let plain = text.trim().trim_start_matches('v');
    let plain = plain.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<u64> = plain.split('.').map(|n| n.parse().ok()).collect::<Option<_>>()?;
    (numbers.len() <= 3).then(|| std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0)))
}

/// Validates a range, which must have no bits set outside its prefix.
pub(super) fn validate_range(at: &Path, text: &str, errors: &mut ErrorList) -> Option<Cidr> {
    let Ok(range) = text.parse::<Cidr>() else {
        let hint = match text.parse::<std::net::IpAddr>() {
            Ok(address) if address.is_ipv4() => format!(" (did you mean \"{text}/32\")"),
            Ok(_) => format!(" (did you mean \"{text}/64\")"),
            Err(_) => String::new(),
        };
        errors.push(FieldError::invalid(at, text, format!("Could not be parsed as a CIDR{hint}")));
        return None;
    };
    if range.network() != range {
        let hint = range.network();
        let detail = format!("Network contains bits outside prefix (did you mean \"{hint}\")");
        errors.push(FieldError::invalid(at, text, detail));
    }
    Some(range.network())
}

/// Reports whether two ranges have an address in common.
pub fn overlap(a: Cidr, b: Cidr) -> bool {
    a.contains(b.address) || b.contains(a.address)
}

/// Rejects labels that identify machines and volumes, because kOps sets them.
pub(super) fn validate_cloud_label(key: &str, errors: &mut ErrorList) {
    const PREFIXES: [&str; 3] = ["kubernetes.io/cluster/", "k8s.io/role/", "kops.k8s.io/"];
    let at = spec("cloudLabels").child(key);
    if ["Name", "KubernetesCluster"].contains(&key) {
        let detail = format!("{key:?} is a reserved label and cannot be used as a custom label");
        errors.push(FieldError::forbidden(&at, detail));
    }
    if let Some(prefix) = PREFIXES.iter().find(|prefix| key.starts_with(**prefix)) {
        let detail =
            format!("{prefix:?} is a reserved label prefix and cannot be used as a custom label");
        errors.push(FieldError::forbidden(&at, detail));
    }
}

/// Returns an ARN's resource, the part after the account.
pub(super) fn arn_resource(text: &str) -> Option<&str> {
    let mut parts = text.splitn(6, ':');
    (parts.next() == Some("arn")).then_some(())?;
    parts.nth(4)
}

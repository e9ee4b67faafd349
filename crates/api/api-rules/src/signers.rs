//! Rules for the certificates that are requested from the signers of Pods.

use api_meta::{ErrorList, FieldError, Path, validation};
use serde_json::Value;

use crate::meta::strings;

/// The shortest lifetime of a certificate, in seconds.
pub(crate) const MIN_LIFETIME: i64 = 3600;
const MAX_LIFETIME: i64 = 91 * 24 * 3600;
const MAX_KUBERNETES_LIFETIME: i64 = 24 * 3600;

/// Returns the longest lifetime that a signer's certificates may have, in seconds.
pub(crate) fn max_lifetime(signer: &str) -> i64 {
    if is_kubernetes_signer(signer) { MAX_KUBERNETES_LIFETIME } else { MAX_LIFETIME }
}

/// Reports whether a signer is reserved for Kubernetes.
fn is_kubernetes_signer(signer: &str) -> bool {
    let host = signer.split('/').next().unwrap_or_default();
    host == "kubernetes.io" || host.ends_with(".kubernetes.io")
}

/// Validates annotations for a signer: their keys have a domain, and all together are limited like annotations.
pub(crate) fn validate_user_annotations(annotations: &Value, path: &Path, errors: &mut ErrorList) {
    let map = strings(annotations);
    for key in map.keys() {
        let key = key.to_lowercase();
        let messages = validation::domain_prefixed_key(&key).into_iter();
        errors.extend(messages.map(|message| FieldError::invalid(path, key.as_str(), message)));
    }
    errors.extend(validation::annotations_size(&map, path));
}

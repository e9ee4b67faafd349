//! Validation of file paths.

use api_meta::{ErrorList, FieldError, Path};

/// Validates a relative path without `..`.
pub(super) fn validate_local_path(text: &str, path: &Path, errors: &mut ErrorList) {
    if text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must be a relative path"));
    }
    validate_no_dot_dot(text, path, errors);
}

/// Rejects `..` as a part of a path.
pub(super) fn validate_no_dot_dot(text: &str, path: &Path, errors: &mut ErrorList) {
    if text.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, text, "must not contain '..'"));
    }
}

//! Paths of fields in errors.

use api_meta::Path;

/// Returns the path of a field below another.
pub(super) fn below(root: &Path, path: &str) -> Path {
    path.split('.').fold(root.clone(), |at, name| at.child(name))
}

/// Returns the path of a field of the spec.
pub(super) fn spec(path: &str) -> Path {
    below(&Path::new("spec"), path)
}

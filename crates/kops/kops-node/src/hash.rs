//! Hashes of files.

use std::path::Path;

/// Returns the SHA-256 sum of a file, in hexadecimal.
pub fn file_hash(path: &Path) -> Result<String, kops_store::Error> {
    let failed = kops_store::Error::file("reading", &path.display().to_string());
    bootstrap::host::file_digest(path).map_err(failed)
}

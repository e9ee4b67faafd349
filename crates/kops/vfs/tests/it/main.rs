mod api;
mod fake;
mod google;
mod lock;
mod s3;
mod store;

/// Returns a store in a temporary directory, and the directory's guard.
fn store() -> (tempfile::TempDir, vfs::Store) {
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let url = format!("file://{}/state", dir.path().display());
    let store = vfs::Store::open(&url).unwrap_or_else(|e| panic!("{e}"));
    (dir, store)
}

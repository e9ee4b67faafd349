//! Cleans up libcni's cache of results, a fixed directory that all clusters of a machine share.

use std::{fs, path::Path};

use serde::Deserialize;

const DIRECTORY: &str = "/var/lib/cni/results";

#[derive(Deserialize)]
struct CachedResult {
    #[serde(default)]
    netns: String,
    #[serde(default)]
    result: AddResult,
}

#[derive(Default, Deserialize)]
struct AddResult {
    #[serde(default)]
    interfaces: Vec<Interface>,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    sandbox: String,
}

impl CachedResult {
    fn is_below(&self, root: &Path) -> bool {
        let sandboxes = self.result.interfaces.iter().map(|interface| &interface.sandbox);
        sandboxes.chain([&self.netns]).any(|path| Path::new(path).starts_with(root))
    }
}

/// Deletes cached results of Pods with network namespaces below `root`, which a killed runtime leaves behind.
pub fn forget_results(root: &Path) {
    forget(Path::new(DIRECTORY), root);
}

fn forget(directory: &Path, root: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let noted = fs::read(&path)
            .ok()
            .and_then(|text| serde_json::from_slice::<CachedResult>(&text).ok());
        if noted.is_some_and(|noted| noted.is_below(root)) {
            // A missing file is fine, and other failures are found by the check for leftovers.
            let _ = fs::remove_file(path);
        }
    }
    // The first call on a machine creates both directories, and libcni never removes them. Only empty ones are removed.
    for directory in directory.ancestors().take(2) {
        let _ = fs::remove_dir(directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_results_of_other_clusters() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("cni/results");
        fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
        write("a", r#"{"result": {"interfaces": [{"name": "b"}, {"sandbox": "/r/one/run/x"}]}}"#);
        write("b", r#"{"netns": "/r/one/run/y"}"#);
        write(
            "c",
            r#"{"netns": "/r/one-more/run/y", "result": {"interfaces": [{"sandbox": "/z"}]}}"#,
        );
        write("d", "half a fi");
        forget(&directory, Path::new("/r/one"));
        let mut left: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["c", "d"]);
        fs::remove_file(directory.join("d")).unwrap();
        forget(&directory, Path::new("/r/one-more"));
        assert!(!place.path().join("cni").exists() && place.path().exists());
    }
}

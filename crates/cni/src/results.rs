//! What libcni, in the runtime, notes of every call: the runtime gives it no other place than this one, which all
//! clusters of a machine share.

use std::{fs, path::Path};

use serde::Deserialize;

const DIRECTORY: &str = "/var/lib/cni/results";

#[derive(Deserialize)]
struct Noted {
    #[serde(default)]
    netns: String,
    #[serde(default)]
    result: Added,
}

#[derive(Default, Deserialize)]
struct Added {
    #[serde(default)]
    interfaces: Vec<Interface>,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    sandbox: String,
}

impl Noted {
    fn lies_under(&self, root: &Path) -> bool {
        let sandboxes = self.result.interfaces.iter().map(|interface| &interface.sandbox);
        sandboxes.chain([&self.netns]).any(|path| Path::new(path).starts_with(root))
    }
}

/// Removes what is noted of Pods whose network namespaces were under `root`: a runtime that was killed does not.
pub fn forget_results(root: &Path) {
    forget(Path::new(DIRECTORY), root);
}

fn forget(directory: &Path, root: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let noted =
            fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Noted>(&text).ok());
        if noted.is_some_and(|noted| noted.lies_under(root)) {
            // One that is gone by now is what was wanted, and any other is told by whoever looks for what is left.
            let _ = fs::remove_file(path);
        }
    }
    // The first call on a machine makes both, and nobody else takes them away. They go only if they are empty.
    for directory in directory.ancestors().take(2) {
        let _ = fs::remove_dir(directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_clusters_noted_stays() {
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

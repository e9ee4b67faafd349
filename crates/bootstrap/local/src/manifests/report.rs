//! The state of the manifests for `windlass status`.

use std::path::Path;

use super::{
    files,
    record::{RECORD, Record},
};

/// Prints the state of a cluster's manifests, if there are any. Returns `true` if all are applied.
pub(crate) fn report(root: &Path) -> bool {
    let (lines, well) = lines(root);
    lines.iter().for_each(|line| println!("  {line}"));
    well
}

fn lines(root: &Path) -> (Vec<String>, bool) {
    let record = match Record::load(&root.join(RECORD)) {
        Ok(record) => record,
        Err(error) => return (vec![format!("✗ {error}")], false),
    };
    let mut lines = Vec::new();
    let directory = root.join(files::DIRECTORY);
    match files::scan(&directory) {
        Ok(files) => {
            let waiting = files.keys().filter(|file| !record.files.contains_key(*file));
            lines.extend(waiting.map(|file| format!("- the manifest {file} is not applied yet")));
        }
        // A cluster of an earlier version has no directory.
        Err(_) if record.files.is_empty() && !directory.exists() => {}
        Err(error) => return (vec![format!("✗ {error}")], false),
    }
    for (file, state) in &record.files {
        lines.extend(state.errors.iter().map(|error| format!("✗ the manifest {file}: {error}")));
    }
    if let (files @ 1.., objects) = record.counts() {
        lines.push(format!("✓ {objects} objects of {files} manifests are applied"));
    }
    (lines, !record.has_errors())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_errors_and_waiting_files() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(lines(dir.path()), (vec![], true));
        let directory = dir.path().join("manifests");
        std::fs::create_dir(&directory).unwrap();
        assert_eq!(lines(dir.path()), (vec![], true));
        std::fs::write(directory.join("a.yaml"), "").unwrap();
        let waiting = "- the manifest a.yaml is not applied yet".to_owned();
        assert_eq!(lines(dir.path()), (vec![waiting], true));
        let record = r#"{"files": {"a.yaml": {"errors": ["no kind"]}}, "objects": [{"group": "", "version": "v1",
            "kind": "Pod", "plural": "pods", "name": "p", "namespace": "n", "file": "a.yaml", "uid": "u"}]}"#;
        pki::write_file(&dir.path().join(RECORD), record.as_bytes(), 0o600).unwrap();
        let wanted = ["✗ the manifest a.yaml: no kind", "✓ 1 objects of 1 manifests are applied"];
        assert_eq!(lines(dir.path()), (wanted.map(str::to_owned).into(), false));
        for hostile in ["", "{", r#"{"objects": [{}]}"#, r#"{"objects": [], "sets": []}"#] {
            std::fs::write(dir.path().join(RECORD), hostile).unwrap();
            let (lines, well) = lines(dir.path());
            assert!(!well && lines[0].contains("remove it to apply all files anew"), "{lines:?}");
        }
    }
}

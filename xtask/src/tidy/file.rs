//! The text files of the tree, and which parts of them are tests.

use std::path::{Path, PathBuf};

use crate::{
    error::Result,
    file::{list, read},
};

/// A source file of a crate, or a document.
pub(super) struct File {
    /// Its path below the workspace's root.
    pub(super) path: PathBuf,
    /// Its contents.
    pub(super) text: String,
}

/// The crates that hold only tests and test helpers.
pub(super) const TEST_CRATES: &[&str] = &["e2e", "fuzz", "testkit"];

/// Reads all text files of the tree: Rust, manifests, documents, scripts.
pub(super) fn read_all(root: &Path) -> Result<Vec<File>> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for path in list(&directory)? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if path.is_dir() {
                // Built files and git's own files have no author.
                if !["target", ".git"].contains(&name) && !path.join("CACHEDIR.TAG").exists() {
                    directories.push(path);
                }
            } else if ["rs", "toml", "md", "run", "sh", "proto"]
                .iter()
                .any(|end| name.ends_with(end))
            {
                let text = read(&path)?;
                let path = path.strip_prefix(root).unwrap_or(&path).to_owned();
                files.push(File { path, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Returns the name of the crate that contains a file.
pub(super) fn crate_of(path: &Path) -> &str {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    match parts.next() {
        Some("crates") => parts.nth(1).unwrap_or_default(),
        first => first.unwrap_or_default(),
    }
}

/// Reports whether a path is that of a test, a benchmark or a helper of these.
pub(super) fn is_test(path: &Path) -> bool {
    let names = ["tests", "tests.rs", "testing", "testing.rs", "fuzzed.rs", "benches", "examples"];
    let is_one = |part: &str| names.contains(&part) || part.ends_with("_tests.rs");
    path.iter().any(|part| part.to_str().is_some_and(is_one))
}

/// Returns the tests of a crate's file. Benchmarks are excluded, because they measure time.
pub(super) fn tests_of(file: &File) -> Option<&str> {
    let is_bench = file.path.iter().any(|part| part == "benches");
    if file.path.extension().is_none_or(|e| e != "rs")
        || !file.path.starts_with("crates")
        || is_bench
    {
        return None;
    }
    if is_test(&file.path) || TEST_CRATES.contains(&crate_of(&file.path)) {
        Some(&file.text)
    } else {
        Some(&file.text[before_tests(&file.text).len()..])
    }
}

/// Returns a file's lines without comments, blank lines and the tests at its end.
pub(super) fn production(text: &str) -> impl Iterator<Item = &str> {
    before_tests(text)
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
}

/// Returns a file's text before the tests at its end.
pub(super) fn before_tests(text: &str) -> &str {
    let end = text.find("\nmod tests {").unwrap_or(text.len());
    &text[..end]
}

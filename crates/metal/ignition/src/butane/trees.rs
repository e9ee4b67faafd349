//! Converts `storage.trees`, directories of files, to plain storage.

use std::collections::HashMap;

use api_meta::Tree as _;
use serde_json::{Map, Value as Json, json};

use super::{
    directory::{DirectoryError, Files, NO_FILES, TreeEntry},
    resource,
};
use crate::{error::ConfigError, paths};

const OWNERS: [&str; 2] = ["user", "group"];

/// Adds the contents of the trees. They complete the config's own entries of the same paths.
pub(super) fn add(
    config: &mut Map<String, Json>,
    files: Option<Files<'_>>,
) -> Result<(), ConfigError> {
    let Some(storage) = config.get_mut("storage").and_then(Json::as_object_mut) else {
        return Ok(());
    };
    let Some(Json::Array(trees)) = storage.remove("trees") else { return Ok(()) };
    let mut nodes = Nodes::of(storage);
    for (n, tree) in trees.iter().enumerate() {
        let result = match files {
            Some(files) => nodes.add(tree, files),
            None => Err(TreeError::NoFiles),
        };
        result.map_err(|error| {
            ConfigError::invalid(format!("storage.trees.{n}"), error.to_string())
        })?;
    }
    Ok(())
}

/// The errors of adding a tree, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum TreeError {
    #[error("{NO_FILES}")]
    NoFiles,
    #[error("local is required")]
    NoLocal,
    #[error("trees may only contain files, directories, and symlinks")]
    Type,
    #[error("matching filesystem node has existing contents or different type")]
    Conflict,
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// The config's files, directories and links, with an index by path.
struct Nodes<'c> {
    storage: &'c mut Map<String, Json>,
    positions: HashMap<String, (&'static str, usize)>,
}

impl<'c> Nodes<'c> {
    fn of(storage: &'c mut Map<String, Json>) -> Self {
        let mut positions = HashMap::new();
        for section in ["files", "directories", "links"] {
            let entries = storage.get(section).and_then(Json::as_array);
            for (n, entry) in entries.into_iter().flatten().enumerate() {
                if let Some(path) = entry["path"].as_str() {
                    positions.insert(path.to_owned(), (section, n));
                }
            }
        }
        Self { storage, positions }
    }

    fn add(&mut self, tree: &Json, files: Files<'_>) -> Result<(), TreeError> {
        let local = tree.opt_text("local").ok_or(TreeError::NoLocal)?;
        let base = tree.opt_text("path").unwrap_or("/");
        // Ignition creates parent directories, so directories are added only if the config sets their owner or mode.
        let directories = ["user", "group", "dirMode"].iter().any(|key| !tree[*key].is_null());
        for (name, kind) in files.below(local)? {
            let path = paths::simplified(&join(base, &name));
            match kind {
                TreeEntry::Directory if directories => {
                    let mode = tree["dirMode"].as_u64().unwrap_or(0o755);
                    if let (entry, true) = self.entry("directories", &path, tree)? {
                        entry.insert("mode".into(), mode.into());
                    }
                }
                TreeEntry::Directory => {}
                TreeEntry::File { executable } => {
                    let mode = if executable { 0o755 } else { 0o644 };
                    let mode = tree["fileMode"].as_u64().unwrap_or(mode);
                    let (entry, _) = self.entry("files", &path, tree)?;
                    fill(entry, &files.read(&join(local, &name))?, mode)?;
                }
                TreeEntry::Link { target } => {
                    let (entry, _) = self.entry("links", &path, tree)?;
                    if entry.insert("target".into(), target.into()).is_some() {
                        return Err(TreeError::Conflict);
                    }
                }
                TreeEntry::Other => return Err(TreeError::Type),
            }
        }
        Ok(())
    }

    /// Returns the entry of a path and `true` if it is new. A new entry gets the owner of the tree.
    fn entry(
        &mut self,
        section: &'static str,
        path: &str,
        tree: &Json,
    ) -> Result<(&mut Map<String, Json>, bool), TreeError> {
        let position = self.positions.get(path).copied();
        if position.is_some_and(|(kind, _)| kind != section) {
            return Err(TreeError::Conflict);
        }
        let entries = self.storage.entry(section).or_insert_with(|| json!([]));
        let entries = entries.as_array_mut().ok_or(TreeError::Conflict)?;
        if position.is_none() {
            let mut entry = json!({ "path": path });
            for owner in OWNERS.iter().filter(|owner| !tree[**owner].is_null()) {
                entry[*owner] = tree[*owner].clone();
            }
            entries.push(entry);
            self.positions.insert(path.to_owned(), (section, entries.len() - 1));
        }
        let at = position.map_or(entries.len() - 1, |(_, at)| at);
        let entry = entries.get_mut(at).and_then(Json::as_object_mut).ok_or(TreeError::Conflict)?;
        Ok((entry, position.is_none()))
    }
}

fn fill(file: &mut Map<String, Json>, contents: &[u8], mode: u64) -> Result<(), TreeError> {
    let source = file.get("contents").map(|contents| &contents["source"]);
    if source.is_some_and(|source| !source.is_null()) || file.contains_key("append") {
        return Err(TreeError::Conflict);
    }
    let (source, compression) = resource::data_url(contents, true);
    let own = json!({ "source": source, "compression": compression.unwrap_or_default() });
    file.insert("contents".into(), own);
    file.entry("mode").or_insert(mode.into());
    Ok(())
}

/// Joins two paths, either of which may be empty.
fn join(base: &str, name: &str) -> String {
    match (base.trim_end_matches('/'), name) {
        ("", "") => base.to_owned(),
        (base, "") => base.to_owned(),
        (base, name) => format!("{base}/{name}"),
    }
}

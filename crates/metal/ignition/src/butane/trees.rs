//! Converts `storage.trees`, directories of files, to plain storage.

use std::collections::HashMap;

use api_meta::Tree as _;
use serde_json::{Map, Value as Json, json};

use super::{Files, resource};
use crate::{config::ConfigError, paths};

/// An entry of a local directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeEntry {
    Directory,
    File { executable: bool },
    Link { target: String },
    Other,
}

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
        let added = match files {
            Some(files) => nodes.grow(tree, files),
            None => Err(super::NO_FILES.to_owned()),
        };
        added.map_err(|reason| ConfigError::Invalid {
            path: format!("storage.trees.{n}"),
            reason,
        })?;
    }
    Ok(())
}

/// The config's files, directories and links, with an index by path.
struct Nodes<'c> {
    storage: &'c mut Map<String, Json>,
    places: HashMap<String, (&'static str, usize)>,
}

impl<'c> Nodes<'c> {
    fn of(storage: &'c mut Map<String, Json>) -> Self {
        let mut places = HashMap::new();
        for section in ["files", "directories", "links"] {
            let entries = storage.get(section).and_then(Json::as_array);
            for (n, entry) in entries.into_iter().flatten().enumerate() {
                if let Some(path) = entry["path"].as_str() {
                    places.insert(path.to_owned(), (section, n));
                }
            }
        }
        Self { storage, places }
    }

    fn grow(&mut self, tree: &Json, files: Files<'_>) -> Result<(), String> {
        let local = tree.opt_text("local").ok_or("local is required")?;
        let base = tree.opt_text("path").unwrap_or("/");
        // Ignition creates parent directories, so directories are added only if the config sets their owner or mode.
        let directories = ["user", "group", "dirMode"].iter().any(|key| !tree[*key].is_null());
        for (name, found) in files.below(local)? {
            let path = paths::simplified(&joined(base, &name));
            match found {
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
                    fill(entry, &files.read(&joined(local, &name))?, mode)?;
                }
                TreeEntry::Link { target } => {
                    let (entry, _) = self.entry("links", &path, tree)?;
                    if entry.insert("target".into(), target.into()).is_some() {
                        return Err(TAKEN.into());
                    }
                }
                TreeEntry::Other => {
                    return Err("trees may only contain files, directories, and symlinks".into());
                }
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
    ) -> Result<(&mut Map<String, Json>, bool), String> {
        let known = self.places.get(path).copied();
        if known.is_some_and(|(kind, _)| kind != section) {
            return Err(TAKEN.into());
        }
        let entries = self.storage.entry(section).or_insert_with(|| json!([]));
        let entries = entries.as_array_mut().ok_or(TAKEN)?;
        if known.is_none() {
            let mut entry = json!({ "path": path });
            for owner in OWNERS.iter().filter(|owner| !tree[**owner].is_null()) {
                entry[*owner] = tree[*owner].clone();
            }
            entries.push(entry);
            self.places.insert(path.to_owned(), (section, entries.len() - 1));
        }
        let at = known.map_or(entries.len() - 1, |(_, at)| at);
        let entry = entries.get_mut(at).and_then(Json::as_object_mut).ok_or(TAKEN)?;
        Ok((entry, known.is_none()))
    }
}

const TAKEN: &str = "matching filesystem node has existing contents or different type";

fn fill(file: &mut Map<String, Json>, contents: &[u8], mode: u64) -> Result<(), String> {
    let source = file.get("contents").map(|contents| &contents["source"]);
    if source.is_some_and(|source| !source.is_null()) || file.contains_key("append") {
        return Err(TAKEN.into());
    }
    let (source, compression) = resource::data_url(contents, true);
    let own = json!({ "source": source, "compression": compression.unwrap_or_default() });
    file.insert("contents".into(), own);
    file.entry("mode").or_insert(mode.into());
    Ok(())
}

/// Joins two paths, either of which may be empty.
fn joined(base: &str, name: &str) -> String {
    match (base.trim_end_matches('/'), name) {
        ("", "") => base.to_owned(),
        (base, "") => base.to_owned(),
        (base, name) => format!("{base}/{name}"),
    }
}

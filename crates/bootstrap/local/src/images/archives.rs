//! The directory `images` of a cluster: archives of images that every `up` imports into the nodes' runtimes.
//!
//! Each runtime has a record of its archives, so that an archive is imported once. An archive with an error does not
//! stop `up`; `windlass status` shows the error, and the next `up` tries again.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{cluster::Cluster, error::Error};

/// The directory below the cluster's root.
pub(crate) const DIRECTORY: &str = "images";
/// The record in containerd's root.
const RECORD: &str = "windlass-archives.json";
const SUFFIXES: [&str; 3] = [".tar", ".tar.gz", ".tgz"];

/// An archive in the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Archive {
    /// The size and the time of the last change.
    stamp: String,
    /// The error of the last import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Imports the archives that a node's runtime does not have.
pub(super) async fn import(node: &Cluster) -> Result<(), Error> {
    let found = scan(&node.home().join(DIRECTORY))?;
    let mut record = load(node);
    for (name, stamp) in &found {
        if record.get(name).is_some_and(|known| known.stamp == *stamp && known.error.is_none()) {
            continue;
        }
        let (socket, path) = (node.containerd_socket(), node.home().join(DIRECTORY).join(name));
        let imported = tokio::task::spawn_blocking(move || oci::import(&socket, &path)).await;
        let imported =
            imported.map_err(|source| Error::Task { operation: "importing an archive", source })?;
        let error = imported.err().map(|error| error.to_string());
        record.insert(name.clone(), Archive { stamp: stamp.clone(), error });
        save(node, &record)?;
    }
    if record.keys().any(|name| !found.contains_key(name)) {
        record.retain(|name, _| found.contains_key(name));
        save(node, &record)?;
    }
    Ok(())
}

/// Returns the errors of a node's archives.
pub(crate) fn errors(node: &Cluster) -> Vec<String> {
    let record = load(node).into_iter();
    let error = |(name, archive): (String, Archive)| {
        let at = &node.settings.node_name;
        Some(format!("the archive {name} on {at}: {}", archive.error?))
    };
    record.filter_map(error).collect()
}

fn scan(directory: &Path) -> Result<BTreeMap<String, String>, Error> {
    let failed = |source| Error::File { operation: "reading", path: directory.to_owned(), source };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries.map_err(failed)?,
    };
    let mut archives = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_archive = SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
        // A link may lead to the file. A pipe would wait for its writer.
        let Some(meta) = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file) else {
            continue;
        };
        if is_archive && !name.starts_with('.') {
            archives.insert(name, stamp(&meta));
        }
    }
    Ok(archives)
}

fn path(node: &Cluster) -> PathBuf {
    node.containerd_root().join(RECORD)
}

/// Reads the record. Without a valid one, all archives are imported again.
fn load(node: &Cluster) -> BTreeMap<String, Archive> {
    let text = fs::read(path(node)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn save(node: &Cluster, record: &BTreeMap<String, Archive>) -> Result<(), Error> {
    let path = path(node);
    let text = serde_json::to_vec(record)
        .map_err(|source| Error::Settings { path: path.clone(), source })?;
    Ok(pki::write_file(&path, &text, pki::PUBLIC_MODE)?)
}

/// Returns the size and the time of the last change of a file.
pub(super) fn stamp(meta: &fs::Metadata) -> String {
    format!("{} {}.{:09}", meta.len(), meta.mtime(), meta.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tries_archives_once_each_and_reports_errors() {
        let dir = tempfile::tempdir().unwrap();
        let node = crate::cluster::example(dir.path());
        import(&node).await.unwrap();
        assert_eq!(errors(&node), [""; 0]);
        let images = dir.path().join(DIRECTORY);
        fs::create_dir(&images).unwrap();
        for name in ["a.tar", "b.tgz", "c.txt", ".d.tar"] {
            fs::write(images.join(name), "no archive").unwrap();
        }
        nix::unistd::mkfifo(&images.join("e.tar"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        // No containerd answers.
        import(&node).await.unwrap();
        let found = errors(&node);
        assert!(found.len() == 2 && found[0].starts_with("the archive a.tar on vm: "), "{found:?}");
        // An import that succeeded is not repeated, and what is gone is forgotten.
        let mut record = load(&node);
        record.get_mut("a.tar").unwrap().error = None;
        save(&node, &record).unwrap();
        fs::remove_file(images.join("b.tgz")).unwrap();
        import(&node).await.unwrap();
        assert_eq!(errors(&node), [""; 0]);
        fs::write(images.join("a.tar"), "changed").unwrap();
        fs::write(path(&node), "{").unwrap();
        import(&node).await.unwrap();
        assert_eq!(errors(&node).len(), 1);
    }
}

//! The mark in a cluster's root: names the owner, and permits `down` to remove the directory.
//!
//! `--root` may name any directory. `up` claims a directory without files by a mark. A directory without a mark, or
//! with another cluster's mark, is not removed.

use std::{fs, io, path::Path};

use crate::{cluster::Cluster, error::Error, images, manifests};

const MARK: &str = ".windlass-cluster";
/// The directory contains keys and objects, so other users of the host get no access.
const ROOT_MODE: u32 = 0o750;

/// Claims a directory for a cluster. A root from before there were marks is recognized by its settings.
pub(crate) fn claim(root: &Path, name: &str) -> Result<(), Error> {
    match owner(root)? {
        Some(owner) if owner == name => return Ok(()),
        Some(owner) => return Err(Error::OthersRoot { root: root.to_owned(), owner }),
        None => {}
    }
    if !root.join("cluster.json").exists() && !is_empty(root, prepared(root))? {
        return Err(Error::Occupied(root.to_owned()));
    }
    sys::make_directories(root, ROOT_MODE).map_err(Error::file("creating", root))?;
    pki::write_file(&root.join(MARK), format!("{name}\n").as_bytes(), pki::PUBLIC_MODE)?;
    Ok(())
}

/// Returns an error unless the directory belongs to this cluster.
pub(crate) fn check(root: &Path, name: &str) -> Result<(), Error> {
    match owner(root)? {
        Some(owner) if owner == name => Ok(()),
        Some(owner) => Err(Error::OthersRoot { root: root.to_owned(), owner }),
        None => Err(Error::Unmarked(root.join(MARK))),
    }
}

fn owner(root: &Path) -> Result<Option<String>, Error> {
    let path = root.join(MARK);
    match fs::read_to_string(&path) {
        Ok(name) => Ok(Some(name.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file("reading", &path)(error)),
    }
}

/// Returns the directories that a user may fill before the first start. Elsewhere than at the usual place, they may be
/// those of another program.
fn prepared(root: &Path) -> &'static [&'static str] {
    let is_usual = root.parent() == Cluster::default_root("NAME").parent();
    if is_usual { &[manifests::DIRECTORY, images::archives::DIRECTORY] } else { &[] }
}

/// Returns `true` if there are only directories, such as a mount point for the store's disk. Leaves `skipped` out.
fn is_empty(root: &Path, skipped: &[&str]) -> Result<bool, Error> {
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::file("reading", &directory)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(Error::file("reading", &directory))?;
            if skipped.iter().any(|name| entry.path() == root.join(name)) {
                continue;
            }
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                return Ok(false);
            }
            directories.push(entry.path());
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_root_with_mark_of_the_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("clusters/dev");
        let message = |result: Result<(), Error>| result.unwrap_err().to_string();
        assert!(message(check(&root, "dev")).contains(MARK));
        claim(&root, "dev").unwrap();
        claim(&root, "dev").unwrap();
        check(&root, "dev").unwrap();
        for refused in [check(&root, "other"), claim(&root, "other")] {
            assert!(message(refused).contains("is the root of the cluster dev"));
        }
    }

    #[test]
    fn accepts_prepared_directories_at_the_usual_place() {
        assert_eq!(prepared(Path::new("/var/lib/windlass/dev")), ["manifests", "images"]);
        assert_eq!(prepared(Path::new("/srv/dev")), [""; 0]);
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("manifests")).unwrap();
        fs::write(dir.path().join("manifests/a.yaml"), "").unwrap();
        assert!(!is_empty(dir.path(), &[]).unwrap());
        assert!(is_empty(dir.path(), &["manifests", "images"]).unwrap());
        fs::write(dir.path().join("a.yaml"), "").unwrap();
        assert!(!is_empty(dir.path(), &["manifests", "images"]).unwrap());
    }

    #[test]
    fn rejects_directory_with_other_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("var/lib")).unwrap();
        assert!(is_empty(dir.path(), &[]).unwrap(), "a place for the store's disk");
        fs::write(dir.path().join("var/lib/photo.jpg"), "").unwrap();
        for refused in [claim(dir.path(), "dev"), check(dir.path(), "dev")] {
            assert!(refused.is_err());
        }
        // A cluster from before there were marks.
        fs::write(dir.path().join("cluster.json"), "{}").unwrap();
        assert!(check(dir.path(), "dev").is_err(), "until `up` has left its mark");
        claim(dir.path(), "dev").unwrap();
        check(dir.path(), "dev").unwrap();
    }
}

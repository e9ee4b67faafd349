//! The mark of a cluster's root: whose it is, and that everything in it is `down`'s to remove.
//!
//! `--root` may name any directory. `up` takes one without files and leaves its mark there; what has no mark, or another
//! cluster's, is not removed.

use std::{fs, io, path::Path};

use crate::Error;

const MARK: &str = ".windlass-cluster";
/// Keys and objects are in it: the machine's other users have nothing to look for there.
const ROOT_MODE: u32 = 0o750;

/// Takes a directory for a cluster. One that was there before marks were left is known by its settings.
pub(crate) fn claim(root: &Path, name: &str) -> Result<(), Error> {
    match owner(root)? {
        Some(owner) if owner == name => return Ok(()),
        Some(owner) => return Err(Error::OthersRoot { root: root.to_owned(), owner }),
        None => {}
    }
    if !root.join("cluster.json").exists() && !is_empty(root)? {
        return Err(Error::Occupied(root.to_owned()));
    }
    sys::make_directories(root, ROOT_MODE).map_err(Error::file("creating", root))?;
    pki::write_file(&root.join(MARK), format!("{name}\n").as_bytes(), pki::PUBLIC_MODE)?;
    Ok(())
}

/// Refuses a directory that is not this cluster's to remove.
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

/// Whether there is nothing but directories: whoever has mounted a disk for the store has made some.
fn is_empty(root: &Path) -> Result<bool, Error> {
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::file("reading", &directory)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(Error::file("reading", &directory))?;
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
    fn only_a_root_with_the_clusters_own_mark_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("clusters/dev");
        let said = |result: Result<(), Error>| result.unwrap_err().to_string();
        assert!(said(check(&root, "dev")).contains(MARK));
        claim(&root, "dev").unwrap();
        claim(&root, "dev").unwrap();
        check(&root, "dev").unwrap();
        for refused in [check(&root, "other"), claim(&root, "other")] {
            assert!(said(refused).contains("is the root of the cluster dev"));
        }
    }

    #[test]
    fn a_directory_with_other_files_is_neither_taken_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("var/lib")).unwrap();
        assert!(is_empty(dir.path()).unwrap(), "a place for the store's disk");
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

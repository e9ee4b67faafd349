//! Atomic updates of a directory: the files are in a subdirectory to which the symbolic link `..data` points.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::Path,
};

use pod_core::{Timestamp, files::Files};

use crate::error::Error;

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";

/// Makes `dir` contain exactly `files`. Writes nothing if it does already.
pub(crate) fn write(
    dir: &Path,
    files: &Files,
    group: Option<u32>,
    now: Timestamp,
) -> Result<(), Error> {
    let data = dir.join(DATA);
    let current = fs::read_link(&data).ok();
    if current.is_some() && is_current(&data, files) {
        return Ok(());
    }
    // Without this, each retry of a failed write would take more of the volume's space.
    remove_others(dir, current.as_deref())?;
    let name = format!("..{}", now.strftime("%Y_%m_%d_%H_%M_%S.%N"));
    let fresh = dir.join(&name);
    make_directory(&fresh, group)?;
    for (path, file) in files.iter() {
        let at = fresh.join(path);
        let missing: Vec<_> = at.ancestors().skip(1).take_while(|p| !p.exists()).collect();
        missing.into_iter().rev().try_for_each(|parent| make_directory(parent, group))?;
        fs::write(&at, &file.content).map_err(Error::file("write", &at))?;
        // A file that the owner may read must be readable for the Pod's group, too.
        let mode = if group.is_some() { file.mode | ((file.mode & 0o400) >> 3) } else { file.mode };
        if group.is_some() || file.owner.is_some() {
            chown(&at, file.owner, group).map_err(Error::file("set the owner of", &at))?;
        }
        fs::set_permissions(&at, fs::Permissions::from_mode(mode))
            .map_err(Error::file("set the mode of", &at))?;
    }
    let next = dir.join(NEXT);
    remove(&next)?;
    symlink(&name, &next).map_err(Error::file("create link", &next))?;
    fs::rename(&next, &data).map_err(Error::file("rename", &next))?;
    links(dir, files)?;
    remove_others(dir, Some(Path::new(&name)))
}

/// Creates a world-readable directory with the Pod's group, if it has one, independent of the umask.
fn make_directory(path: &Path, group: Option<u32>) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(Error::file("create directory", path))?;
    let mode = if group.is_some() { 0o2755 } else { 0o755 };
    chown(path, None, group).map_err(Error::file("set the owner of", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(Error::file("set the mode of", path))
}

/// Removes the directories of other writes, also of those that failed or whose process ended.
fn remove_others(dir: &Path, current: Option<&Path>) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::file("read", dir))?.flatten() {
        let name = entry.file_name();
        let is_old = name.to_string_lossy().starts_with("..") && current != Some(Path::new(&name));
        if is_old && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let old = entry.path();
            fs::remove_dir_all(&old).map_err(Error::file("remove", &old))?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Creates the visible names as links through `..data`, and removes those of files that no longer exist.
fn links(dir: &Path, files: &Files) -> Result<(), Error> {
    let names: BTreeSet<&str> = files.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &names {
        let at = dir.join(name);
        if fs::symlink_metadata(&at).is_err() {
            symlink(Path::new(DATA).join(name), &at).map_err(Error::file("create link", &at))?;
        }
    }
    let entries = fs::read_dir(dir).map_err(Error::file("read", dir))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Keep directories: the runtime creates one for a `subPath` that is not in the volume.
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if is_link && !name.starts_with("..") && !names.contains(name.as_ref()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn is_current(data: &Path, files: &Files) -> bool {
    let mut paths = BTreeSet::new();
    list(data, Path::new(""), &mut paths);
    paths.len() == files.len()
        && files.iter().all(|(path, file)| {
            paths.contains(path)
                && fs::read(data.join(path)).is_ok_and(|content| *content == *file.content)
        })
}

fn list(root: &Path, below: &Path, paths: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(root.join(below)) else { return };
    for entry in entries.flatten() {
        let path = below.join(entry.file_name());
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            list(root, &path, paths);
        } else {
            paths.insert(path.to_string_lossy().into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(pairs: &[(&str, &str)]) -> Files {
        let mut files = Files::default();
        for (path, text) in pairs {
            let content = text.as_bytes().into();
            let file = pod_core::files::File { content, mode: 0o640, owner: None };
            files.insert((*path).to_owned(), file).unwrap();
        }
        files
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn replaces_content_atomically_and_skips_equal_writes() {
        let dir = tempfile::tempdir().unwrap();
        let read = |path: &str| fs::read_to_string(dir.path().join(path));
        write(dir.path(), &files(&[("a", "1"), ("b/c", "2")]), None, at(1)).unwrap();
        assert_eq!(read("a").unwrap(), "1");
        assert_eq!(read("b/c").unwrap(), "2");
        let target = fs::read_link(dir.path().join(DATA)).unwrap();
        write(dir.path(), &files(&[("a", "1"), ("b/c", "2")]), None, at(2)).unwrap();
        assert_eq!(fs::read_link(dir.path().join(DATA)).unwrap(), target);
        fs::create_dir(dir.path().join("made-by-subpath")).unwrap();
        write(dir.path(), &files(&[("a", "3")]), None, at(3)).unwrap();
        assert!(dir.path().join("made-by-subpath").is_dir());
        assert_eq!(read("a").unwrap(), "3");
        assert!(read("b/c").is_err(), "a file that is gone has no link");
        assert!(!dir.path().join(target).exists(), "the old directory is removed");
    }
    #[test]
    fn failed_writes_leave_no_more_than_one_directory() {
        let dir = tempfile::tempdir().unwrap();
        // A file cannot be a directory of another one.
        for second in 1..4 {
            write(dir.path(), &files(&[("a", "1"), ("a/b", "2")]), None, at(second)).unwrap_err();
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        write(dir.path(), &files(&[("a", "1")]), None, at(4)).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names.len(), 3, "{names:?}");
    }
}

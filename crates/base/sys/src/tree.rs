//! Changes directory trees that a container may change concurrently. Links are never followed.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{AtFlags, OFlag, open},
    sys::stat::Mode,
    unistd::{Gid, fchownat},
};

use crate::{
    beneath::{OpenPath, walk},
    error::Error,
};

/// Gives a directory tree to a group, which may then read and write it. New files in the tree inherit the group.
pub fn give_tree(held: &OpenPath, group: u32, path: &Path) -> Result<(), Error> {
    let group = Gid::from_raw(group);
    let mut left = vec![PathBuf::from(".")];
    while let Some(below) = left.pop() {
        let give = || -> io::Result<Vec<PathBuf>> {
            let descriptor = walk(held.as_fd(), &below, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
            let directory = fs::File::from(descriptor.try_clone()?);
            std::os::unix::fs::fchown(&directory, None, Some(group.as_raw()))?;
            open_up(&directory, 0o2070)?;
            give_entries(&descriptor, group, &below)
        };
        match give() {
            Ok(more) => left.extend(more),
            // The container may remove parts of the tree meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::at("change the group of", &path.join(&below))(error)),
        }
    }
    Ok(())
}

/// Changes the group of a directory's files and returns its subdirectories.
fn give_entries(directory: &OwnedFd, group: Gid, below: &Path) -> io::Result<Vec<PathBuf>> {
    let mut more = Vec::new();
    // A magic link of the kernel to the open directory; no path is resolved.
    for entry in fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))? {
        let entry = entry?;
        let (name, kind) = (PathBuf::from(entry.file_name()), entry.file_type()?);
        if kind.is_dir() {
            more.push(below.join(name));
            continue;
        }
        fchownat(directory.as_fd(), &name, None, Some(group), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        if kind.is_file() {
            // If a pipe has replaced the file, opening must not block.
            let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
            open_up(&fs::File::from(walk(directory.as_fd(), &name, flags)?), 0o060)?;
        }
    }
    Ok(more)
}

fn open_up(file: &fs::File, bits: u32) -> io::Result<()> {
    let meta = file.metadata()?;
    // Only files that the owner may execute become executable for the group.
    let run = if bits & 0o010 == 0 { (meta.mode() & 0o100) >> 3 } else { 0 };
    file.set_permissions(fs::Permissions::from_mode(meta.mode() | bits | run))
}

/// Removes the entry `name` of the directory `root` with its contents. A missing entry is success.
pub fn remove_beneath(root: &Path, name: &str) -> Result<(), Error> {
    let path = root.join(name);
    if Path::new(name).file_name().is_none_or(|own| own != name) {
        let outside = io::Error::new(io::ErrorKind::PermissionDenied, "it is not a file name");
        return Err(Error::at("remove", &path)(outside));
    }
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let held = match open(root, flags, Mode::empty()) {
        Err(nix::Error::ENOENT) => return Ok(()),
        held => held.map_err(io::Error::from).map_err(Error::at("open", root))?,
    };
    // The standard library removes a link but never its target, even during concurrent swaps.
    let below = format!("/proc/self/fd/{}/{name}", held.as_raw_fd());
    let removed = match fs::symlink_metadata(&below) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(&below),
        Ok(_) => fs::remove_file(&below),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::at("remove", &path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn removes_entry_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("volumes"), dir.path().join("other"));
        fs::create_dir_all(root.join("pvc/deep/er")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("kept"), "").unwrap();
        symlink(&other, root.join("pvc/deep/link")).unwrap();
        symlink(&other, root.join("link")).unwrap();
        remove_beneath(&root, "pvc").unwrap();
        remove_beneath(&root, "pvc").unwrap();
        remove_beneath(&root, "link").unwrap();
        assert!(fs::read_dir(&root).unwrap().next().is_none() && other.join("kept").exists());
        for wrong in ["..", ".", "", "../other", "a/b", "/etc", "../volumes/a", "a/"] {
            let error = remove_beneath(&root, wrong).unwrap_err().to_string();
            assert!(error.contains("not a file name"), "{wrong}: {error}");
        }
        symlink(&other, dir.path().join("root")).unwrap();
        assert!(remove_beneath(&dir.path().join("root"), "kept").is_err(), "a link for a root");
        remove_beneath(&dir.path().join("none"), "a").unwrap();
    }

    #[test]
    fn changes_group_of_tree_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("volume"), dir.path().join("other"));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(&other).unwrap();
        for file in [root.join("a/b/data"), root.join("run"), other.join("secret")] {
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::set_permissions(root.join("run"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&other, root.join("a/link")).unwrap();
        symlink(other.join("secret"), root.join("a/file")).unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), Mode::S_IRWXU).unwrap();
        let group = fs::metadata(&root).unwrap().gid();
        let held = crate::hold_beneath(dir.path(), Path::new("volume")).unwrap();
        give_tree(&held, group, &root).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&root.join("a/b/data")), 0o660);
        assert_eq!(mode(&root.join("run")), 0o770);
        assert_eq!(mode(&root.join("a/b")) & 0o2070, 0o2070);
        assert_eq!(mode(&other.join("secret")), 0o600);
    }
}

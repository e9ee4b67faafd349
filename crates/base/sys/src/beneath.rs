//! Opens paths that a container may change concurrently. A file below a directory is opened once and then used through
//! its descriptor.
//!
//! A container that writes to a volume can replace a directory by a link to `/` at any moment. This may happen between
//! the check of a path and its use. Links are therefore resolved first, and the resolved path is then opened without
//! following links. If the path changed in between, opening fails and the caller retries.

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::{Mode, mkdirat},
};

use crate::error::Error;

/// An open file or directory. Later changes of its path do not affect it.
#[derive(Debug)]
pub struct OpenPath {
    descriptor: OwnedFd,
    is_directory: bool,
}

impl OpenPath {
    fn new(descriptor: OwnedFd) -> io::Result<Self> {
        let meta = fs::File::from(descriptor.try_clone()?).metadata()?;
        Ok(Self { descriptor, is_directory: meta.is_dir() })
    }

    /// Returns `true` for a directory. Other files are mounted over a file.
    pub fn is_directory(&self) -> bool {
        self.is_directory
    }
}

impl AsFd for OpenPath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Opens a file or directory below `root` as a mount source. Links that stay within `root` are followed.
pub fn hold_beneath(root: &Path, below: &Path) -> Result<OpenPath, Error> {
    let path = root.join(below);
    let descriptor = open_beneath(root, below, OFlag::O_PATH)?;
    OpenPath::new(descriptor).map_err(Error::at("look at", &path))
}

/// Opens a regular file below `root` for reading. Links that stay within `root` are followed.
pub fn read_beneath(root: &Path, below: &Path) -> Result<fs::File, Error> {
    let path = root.join(below);
    // Without O_NONBLOCK, opening a named pipe would block until a writer opens it.
    let file = fs::File::from(open_beneath(root, below, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?);
    let meta = file.metadata().map_err(Error::at("look at", &path))?;
    if meta.is_file() {
        return Ok(file);
    }
    Err(Error::at("read", &path)(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is not a regular file",
    )))
}

/// Creates the missing directories of a path below `root` with the mode of `root`. Users who may write to a volume may
/// then write to its parts. The group is inherited if the parent has the set-group-ID bit.
pub fn make_beneath(root: &Path, below: &Path) -> Result<(), Error> {
    let path = root.join(below);
    let failed = || Error::at("make the directory", &path);
    let names = names(below).map_err(failed())?;
    let like = fs::metadata(root).map_err(failed())?.permissions().mode() & 0o1777;
    // The longest existing part. A link exists even if its target does not.
    let existing = (0..=names.len())
        .rev()
        .map(|length| names.iter().take(length).collect::<PathBuf>())
        .find(|part| root.join(part).symlink_metadata().is_ok())
        .unwrap_or_default();
    let missing = names.get(existing.components().count()..).unwrap_or_default();
    let mut at = open_beneath(root, &existing, OFlag::O_PATH)?;
    for name in missing {
        at = make_below(at.as_fd(), name, like).map_err(failed())?;
    }
    Ok(())
}

/// Creates a directory in an open one and opens it.
fn make_below(parent: BorrowedFd<'_>, name: &Path, mode: u32) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_bits_truncate(mode)) {
        // A container that starts at the same time may have created the directory; its mode stays.
        Err(nix::Error::EEXIST) => return Ok(walk(parent, name, OFlag::O_PATH)?),
        directory => directory?,
    }
    let directory = walk(parent, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    let directory = fs::File::from(directory);
    // The process's umask must not restrict the mode.
    let inherited = directory.metadata()?.permissions().mode() & 0o2000;
    directory.set_permissions(fs::Permissions::from_mode(mode | inherited))?;
    Ok(directory.into())
}

fn open_beneath(root: &Path, below: &Path, flags: OFlag) -> Result<OwnedFd, Error> {
    let path = root.join(below);
    let failed = || Error::at("open", &path);
    let names = names(below).map_err(failed())?;
    let root = fs::canonicalize(root).map_err(failed())?;
    let real = fs::canonicalize(names.iter().fold(root.clone(), |path, name| path.join(name)))
        .map_err(failed())?;
    let inner = real.strip_prefix(&root).map_err(|_| failed()(outside()))?;
    let inner = if inner.as_os_str().is_empty() { Path::new(".") } else { inner };
    let root = open(&root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(io::Error::from)
        .map_err(failed())?;
    walk(root.as_fd(), inner, flags).map_err(io::Error::from).map_err(failed())
}

/// Opens a path below an open directory without following links or leaving the directory.
pub(crate) fn walk(from: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    loop {
        match openat2(from, path, how) {
            // A concurrent rename interrupted the walk; the path is fine.
            Err(nix::Error::EAGAIN) => {}
            opened => return opened,
        }
    }
}

/// Returns the components of a path that contains no `..`.
fn names(path: &Path) -> io::Result<Vec<&Path>> {
    let name = |component| match component {
        Component::Normal(name) => Some(Ok(Path::new(name))),
        Component::CurDir => None,
        _ => Some(Err(outside())),
    };
    path.components().filter_map(name).collect()
}

fn outside() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "it leads out of the volume")
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        os::unix::fs::{MetadataExt, symlink},
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::*;

    /// Creates a volume with a directory, and beside the volume a directory with a secret file.
    fn volume() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (root, secret) = (dir.path().join("volume"), dir.path().join("secret"));
        fs::create_dir_all(root.join("data")).unwrap();
        fs::create_dir(&secret).unwrap();
        fs::write(secret.join("key"), "secret").unwrap();
        (dir, root, secret)
    }

    fn inode(held: &OpenPath) -> u64 {
        fs::File::from(held.descriptor.try_clone().unwrap()).metadata().unwrap().ino()
    }

    #[test]
    fn follows_only_links_within_volume() {
        let (_dir, root, secret) = volume();
        fs::write(root.join("data/file"), "own").unwrap();
        symlink("data", root.join("relative")).unwrap();
        symlink(root.join("data"), root.join("absolute")).unwrap();
        for inside in ["data", "./data/", "relative", "absolute", "relative/../data"] {
            let held = hold_beneath(&root, Path::new(inside));
            if inside.contains("..") {
                assert!(held.is_err(), "{inside}");
                continue;
            }
            let held = held.unwrap();
            assert!(held.is_directory());
            assert_eq!(inode(&held), fs::metadata(root.join("data")).unwrap().ino(), "{inside}");
        }
        assert!(!hold_beneath(&root, Path::new("relative/file")).unwrap().is_directory());
        assert!(hold_beneath(&root, Path::new("")).unwrap().is_directory());
        symlink(&secret, root.join("out")).unwrap();
        symlink("../secret", root.join("up")).unwrap();
        symlink("/", root.join("host")).unwrap();
        for outside in ["out", "up", "up/key", "host", "host/etc", "..", "../secret", "/etc"] {
            let error = hold_beneath(&root, Path::new(outside)).unwrap_err().to_string();
            assert!(error.contains("leads out of the volume"), "{outside}: {error}");
            assert!(make_beneath(&root, &Path::new(outside).join("made")).is_err(), "{outside}");
            assert!(read_beneath(&root, &Path::new(outside).join("key")).is_err(), "{outside}");
        }
        assert!(!secret.join("made").exists());
    }

    #[test]
    fn keeps_open_directory_after_swap_with_link() {
        let (_dir, root, secret) = volume();
        let wanted = fs::metadata(root.join("data")).unwrap().ino();
        let held = hold_beneath(&root, Path::new("data")).unwrap();
        fs::rename(root.join("data"), root.join("moved")).unwrap();
        symlink(&secret, root.join("data")).unwrap();
        assert_eq!(inode(&held), wanted);
        // A path that was resolved before the swap is opened without following links.
        let open = open(&root, OFlag::O_PATH, Mode::empty()).unwrap();
        assert_eq!(
            walk(open.as_fd(), Path::new("data"), OFlag::O_PATH).unwrap_err(),
            nix::Error::ELOOP
        );
        assert!(make_below(open.as_fd(), Path::new("data"), 0o777).is_err());
    }

    #[test]
    fn creates_missing_directories_with_mode_of_volume() {
        let (_dir, root, secret) = volume();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o3775)).unwrap();
        make_beneath(&root, Path::new("data/a/b")).unwrap();
        make_beneath(&root, Path::new("data/a/b")).unwrap();
        for made in ["data/a", "data/a/b"] {
            assert_eq!(fs::metadata(root.join(made)).unwrap().mode() & 0o1777, 0o1775, "{made}");
        }
        symlink("data", root.join("inner")).unwrap();
        make_beneath(&root, Path::new("inner/c")).unwrap();
        assert!(root.join("data/c").is_dir());
        symlink(secret.join("none"), root.join("nowhere")).unwrap();
        assert!(make_beneath(&root, Path::new("nowhere/d")).is_err());
        assert!(!secret.join("none").exists());
        fs::write(root.join("file"), "").unwrap();
        assert!(make_beneath(&root, Path::new("file/e")).is_err());
    }

    #[test]
    fn reads_regular_files_only() {
        let (_dir, root, _) = volume();
        fs::write(root.join("data/file"), "own").unwrap();
        let mut text = String::new();
        let mut file = read_beneath(&root, Path::new("data/file")).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "own");
        nix::unistd::mkfifo(&root.join("pipe"), Mode::S_IRWXU).unwrap();
        for other in ["data", "pipe"] {
            let error = read_beneath(&root, Path::new(other)).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{other}: {error}");
        }
    }

    /// CVE-2021-25741: a directory and a link to another place are swapped repeatedly while the path is opened.
    #[test]
    fn never_leaves_volume_during_link_swaps() {
        let (dir, root, secret) = volume();
        let wanted = fs::metadata(root.join("data")).unwrap().ino();
        let (link, spare) = (dir.path().join("link"), dir.path().join("spare"));
        symlink(&secret, &link).unwrap();
        let over = AtomicBool::new(false);
        let (mut held, mut refused, mut lost) = (0, 0, None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    fs::rename(root.join("data"), &spare).unwrap();
                    fs::rename(&link, root.join("data")).unwrap();
                    fs::rename(root.join("data"), &link).unwrap();
                    fs::rename(&spare, root.join("data")).unwrap();
                }
            });
            // Until both outcomes have occurred often, which takes a fraction of a second.
            while lost.is_none() && (held < 500 || refused < 500) {
                match hold_beneath(&root, Path::new("data")) {
                    Ok(got) if inode(&got) == wanted => held += 1,
                    Ok(_) => lost = Some("a directory outside of the volume is held"),
                    Err(_) => refused += 1,
                }
                if read_beneath(&root, Path::new("data/key")).is_ok() {
                    lost = Some("a file outside of the volume is read");
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(lost, None);
    }
}

//! Files and directories of a machine, compared and written below a root.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown},
    },
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::accounts::Accounts;
use crate::systemd_error::SystemdError;

const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// The desired state of a file or directory.
pub(super) struct DesiredFile<'a> {
    /// The path below the root.
    pub(super) path: PathBuf,
    /// The content; `None` for a directory.
    pub(super) content: Option<Bytes<'a>>,
    pub(super) mode: Option<&'a str>,
    pub(super) owner: Option<&'a str>,
    pub(super) group: Option<&'a str>,
    /// `true` if an existing file is left as it is.
    pub(super) if_missing: bool,
}

/// The content of a file.
pub(super) enum Bytes<'a> {
    Text(Vec<u8>),
    /// A file whose content is copied.
    File(&'a Path),
}

/// Returns the metadata of a path without following a link; `None` if it does not exist.
pub(super) fn metadata(path: &Path) -> Result<Option<fs::Metadata>, SystemdError> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SystemdError::io("examine", path)(error)),
    }
}

/// Rejects a directory of a user's that is a link: the user could make root change the link's target.
pub(super) fn check_owned(path: &Path) -> Result<(), SystemdError> {
    match metadata(path)? {
        Some(found) if found.is_symlink() => Err(SystemdError::Link { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Rejects a path where something else than the wanted file or directory is. Nothing is written.
pub(super) fn check(path: &Path, is_directory: bool) -> Result<(), SystemdError> {
    let Some(found) = metadata(path)? else { return Ok(()) };
    let kind = found.file_type();
    let wanted = if is_directory { "a directory" } else { "a file" };
    if kind.is_symlink() {
        // A directory may be reached by a link, such as /lib on Debian.
        let is_reached = is_directory && path.is_dir();
        return if is_reached { Ok(()) } else { Err(SystemdError::Link { path: path.to_owned() }) };
    }
    let found = match (kind.is_dir(), kind.is_file()) {
        (true, _) if is_directory => return Ok(()),
        (_, true) if !is_directory => return Ok(()),
        (true, _) => "a directory",
        (_, true) => "a file",
        _ => "a device, a pipe or a socket",
    };
    Err(SystemdError::Kind { path: path.to_owned(), found, wanted })
}

/// Brings a file or directory into the wanted state. Returns `true` if anything was changed. An existing directory
/// without an owner is left as it is, because others use it too.
pub(super) fn apply(wanted: &DesiredFile<'_>, accounts: &Accounts) -> Result<bool, SystemdError> {
    let path = &wanted.path;
    check(path, wanted.content.is_none())?;
    if wanted.content.is_none() && wanted.owner.is_some() {
        check_owned(path)?;
    }
    let (uid, gid) = accounts.owner(path, wanted.owner, wanted.group)?;
    let found = metadata(path)?;
    if found.is_some() && wanted.if_missing {
        return Ok(false);
    }
    let usual = if wanted.content.is_none() { DIRECTORY_MODE } else { FILE_MODE };
    let mode = match wanted.mode {
        Some(text) => u32::from_str_radix(text, 8)
            .ok()
            .filter(|mode| *mode <= 0o7777)
            .ok_or_else(|| SystemdError::Mode { path: path.clone(), mode: text.to_owned() })?,
        None => usual,
    };
    let mut changed = match &wanted.content {
        None => make_directory(path, mode, found.is_some(), wanted.owner.is_some())?,
        Some(content) => write(path, content, mode, found.as_ref())?,
    };
    if uid.is_some() || gid.is_some() {
        let now = fs::symlink_metadata(path).map_err(SystemdError::io("examine", path))?;
        if uid.is_some_and(|uid| uid != now.uid()) || gid.is_some_and(|gid| gid != now.gid()) {
            lchown(path, uid, gid).map_err(SystemdError::io("change the owner of", path))?;
            changed = true;
        }
    }
    Ok(changed)
}

fn make_directory(
    path: &Path,
    mode: u32,
    exists: bool,
    is_owned: bool,
) -> Result<bool, SystemdError> {
    if !exists {
        fs::create_dir_all(path).map_err(SystemdError::io("create the directory", path))?;
    } else if !is_owned {
        return Ok(false);
    }
    let found = fs::metadata(path).map_err(SystemdError::io("examine", path))?;
    if found.permissions().mode() & 0o7777 == mode {
        return Ok(!exists);
    }
    set_mode(path, mode)?;
    Ok(true)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), SystemdError> {
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, permissions).map_err(SystemdError::io("change the mode of", path))
}

/// Writes a file atomically, unless it has the content.
fn write(
    path: &Path,
    content: &Bytes<'_>,
    mode: u32,
    found: Option<&fs::Metadata>,
) -> Result<bool, SystemdError> {
    if let Some(found) = found
        && has_content(path, content, found.len())?
    {
        let is_other = found.permissions().mode() & 0o7777 != mode;
        if is_other {
            set_mode(path, mode)?;
        }
        return Ok(is_other);
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(SystemdError::io("create the directory", parent))?;
    let failed = || SystemdError::io("write", path);
    let partial = partial(path);
    // A run that was killed may have left its file.
    if metadata(&partial)?.is_some() {
        fs::remove_file(&partial).map_err(SystemdError::io("remove", &partial))?;
    }
    // Only root can read the file until it is complete.
    let mut options = fs::OpenOptions::new();
    let mut file =
        options.write(true).create_new(true).mode(0o600).open(&partial).map_err(failed())?;
    match content {
        Bytes::Text(bytes) => io::Write::write_all(&mut file, bytes).map_err(failed())?,
        Bytes::File(source) => {
            let mut from = fs::File::open(source).map_err(SystemdError::io("read", *source))?;
            io::copy(&mut from, &mut file).map_err(failed())?;
        }
    }
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed())?;
    file.sync_all().map_err(failed())?;
    fs::rename(&partial, path).map_err(failed())?;
    Ok(true)
}

/// Returns the name under which a file is written. It is the same in each run, so that killed runs leave one at most,
/// and it begins with a dot, so that kubelets and logrotate do not read it.
fn partial(path: &Path) -> PathBuf {
    let name = Sha256::digest(path.as_os_str().as_bytes());
    path.with_file_name(format!(".nodeup-{}", data_encoding::HEXLOWER.encode(&name[..8])))
}

fn has_content(path: &Path, content: &Bytes<'_>, length: u64) -> Result<bool, SystemdError> {
    let failed = || SystemdError::io("read", path);
    match content {
        Bytes::Text(bytes) => {
            if bytes.len() as u64 != length {
                return Ok(false);
            }
            Ok(fs::read(path).map_err(failed())? == *bytes)
        }
        Bytes::File(source) => {
            let other = || SystemdError::io("read", *source);
            let size = fs::metadata(source).map_err(other())?.len();
            if size != length {
                return Ok(false);
            }
            let mut ours =
                io::BufReader::with_capacity(1 << 20, fs::File::open(path).map_err(failed())?);
            let mut theirs =
                io::BufReader::with_capacity(1 << 20, fs::File::open(source).map_err(other())?);
            let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
            let mut left = size;
            while left > 0 {
                let part = usize::try_from(left.min(1 << 16)).unwrap_or(1 << 16);
                ours.read_exact(&mut a[..part]).map_err(failed())?;
                theirs.read_exact(&mut b[..part]).map_err(other())?;
                if a[..part] != b[..part] {
                    return Ok(false);
                }
                left -= part as u64;
            }
            Ok(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn wanted<'a>(path: &Path, text: &str, mode: Option<&'a str>) -> DesiredFile<'a> {
        DesiredFile {
            path: path.to_owned(),
            content: Some(Bytes::Text(text.into())),
            mode,
            owner: None,
            group: None,
            if_missing: false,
        }
    }

    #[test]
    fn writes_only_what_differs() {
        let dir = tempfile::tempdir().unwrap();
        let (path, accounts) = (dir.path().join("a/b"), Accounts::default());
        assert!(apply(&wanted(&path, "x", Some("0400")), &accounts).unwrap());
        let written = fs::metadata(&path).unwrap();
        assert_eq!(written.permissions().mode() & 0o7777, 0o400);
        assert!(!apply(&wanted(&path, "x", Some("0400")), &accounts).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().ino(), written.ino());
        assert!(apply(&wanted(&path, "x", None), &accounts).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().ino(), written.ino());
        assert!(apply(&wanted(&path, "y", None), &accounts).unwrap());
        let kept = DesiredFile { if_missing: true, ..wanted(&path, "z", None) };
        assert!(!apply(&kept, &accounts).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "y");
        let program = dir.path().join("program");
        fs::write(&program, "y").unwrap();
        let copy = DesiredFile { content: Some(Bytes::File(&program)), ..wanted(&path, "", None) };
        assert!(!apply(&copy, &accounts).unwrap());
        fs::write(&program, "yy").unwrap();
        assert!(apply(&copy, &accounts).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "yy");
    }

    #[test]
    fn replaces_what_a_killed_run_left() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("a"), dir.path().join("target"));
        fs::write(&target, "secret").unwrap();
        symlink(&target, partial(&path)).unwrap();
        assert!(apply(&wanted(&path, "x", Some("0400")), &Accounts::default()).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
        assert_eq!(fs::read_to_string(&target).unwrap(), "secret");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn rejects_links_and_other_kinds_before_writing() {
        let dir = tempfile::tempdir().unwrap();
        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        fs::write(&target, "secret").unwrap();
        symlink(&target, &link).unwrap();
        let accounts = Accounts::default();
        let error = apply(&wanted(&link, "x", None), &accounts).unwrap_err().to_string();
        assert!(error.contains("symbolic link"), "{error}");
        let error = apply(&wanted(dir.path(), "x", None), &accounts).unwrap_err().to_string();
        assert!(error.contains("is a directory"), "{error}");
        let home = dir.path().join("home");
        symlink(dir.path(), &home).unwrap();
        assert!(check(&home, true).is_ok() && check_owned(&home).is_err());
        let below = DesiredFile { content: None, ..wanted(&target, "", None) };
        assert!(apply(&below, &accounts).is_err());
        for mode in ["8", "77777", "rw", ""] {
            assert!(apply(&wanted(&target, "x", Some(mode)), &accounts).is_err(), "{mode}");
        }
        let owned = DesiredFile { owner: Some("nobody-here"), ..wanted(&target, "x", None) };
        let error = apply(&owned, &accounts).unwrap_err().to_string();
        assert!(error.contains("user \"nobody-here\" does not exist"), "{error}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "secret");
    }

    #[test]
    fn leaves_existing_directories_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let directory = DesiredFile { content: None, ..wanted(&path, "", Some("0755")) };
        let accounts = Accounts::default();
        assert!(apply(&directory, &accounts).unwrap());
        set_mode(&path, 0o700).unwrap();
        assert!(!apply(&directory, &accounts).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
    }
}

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

/// Creates a directory and its missing parents with `mode`, regardless of the umask. Existing directories keep their
/// mode.
pub fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    let missing: Vec<&Path> = path
        .ancestors()
        .take_while(|at| !at.as_os_str().is_empty() && fs::symlink_metadata(at).is_err())
        .collect();
    for at in missing.into_iter().rev() {
        match fs::create_dir(at) {
            Ok(()) => fs::set_permissions(at, fs::Permissions::from_mode(mode))?,
            // Another process created it in the meantime; its mode stays.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    if fs::metadata(path)?.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Reports whether two paths lead to the same file or directory, as two mounts of a file system do.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    id(one).is_some_and(|one| id(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("a")).unwrap();
        fs::create_dir(at("b")).unwrap();
        std::os::unix::fs::symlink("a", at("link")).unwrap();
        assert!(is_same_file(&at("a"), &at("link")) && !is_same_file(&at("a"), &at("b")));
        assert!(!is_same_file(&at("none"), &at("none")) && !is_same_file(&at("a"), &at("none")));
    }

    #[test]
    fn sets_mode_of_created_directories_only() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |below: &str| {
            fs::metadata(dir.path().join(below)).unwrap().permissions().mode() & 0o7777
        };
        make_directories(&dir.path().join("a"), 0o700).unwrap();
        make_directories(&dir.path().join("a/b/c"), 0o777).unwrap();
        make_directories(&dir.path().join("a/b/c"), 0o750).unwrap();
        assert_eq!([mode("a"), mode("a/b"), mode("a/b/c")], [0o700, 0o777, 0o777]);
        fs::write(dir.path().join("file"), "").unwrap();
        for wrong in ["file", "file/below"] {
            assert!(make_directories(&dir.path().join(wrong), 0o750).is_err(), "{wrong}");
        }
    }
}

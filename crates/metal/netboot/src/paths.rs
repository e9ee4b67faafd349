//! Maps the file names that clients send to paths below a root.

use std::path::{Component, Path, PathBuf};

/// Returns the path below `root` for `name`. `.` and `..` are resolved lexically, as in a URL, so that the path cannot
/// leave the root. `None` if the name contains a NUL.
pub(crate) fn below(root: &Path, name: &str) -> Option<PathBuf> {
    if name.contains('\0') {
        return None;
    }
    let mut path = PathBuf::new();
    for component in Path::new(name).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::ParentDir => {
                path.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(root.join(path))
}

/// Like [`below`], for a file that exists: returns `None` for a symbolic link that leads out of the root.
pub(crate) fn existing(root: &Path, name: &str) -> Option<PathBuf> {
    let root = root.canonicalize().ok()?;
    let path = below(&root, name)?.canonicalize().ok()?;
    path.starts_with(&root).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_names_below_root() {
        for (name, want) in [
            ("a", "/r/a"),
            ("/a/b", "/r/a/b"),
            ("../../etc/passwd", "/r/etc/passwd"),
            ("a/../../b", "/r/b"),
            ("", "/r"),
            ("./a//b/.", "/r/a/b"),
        ] {
            let got = below(Path::new("/r"), name).unwrap();
            assert_eq!(got.components().collect::<PathBuf>(), Path::new(want), "{name}");
        }
        assert_eq!(below(Path::new("/r"), "a\0b"), None);
    }

    #[test]
    fn rejects_links_out_of_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(dir.path().join("secret"), "").unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("out")).unwrap();
        std::os::unix::fs::symlink("file", root.join("in")).unwrap();
        assert!(existing(&root, "file").is_some() && existing(&root, "in").is_some());
        assert_eq!(existing(&root, "out"), None);
        assert_eq!(existing(&root, "absent"), None);
    }
}

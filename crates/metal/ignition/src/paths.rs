//! Normalises and validates paths in configs.

/// Removes empty parts, dots and a trailing slash from an absolute path. Other paths are unchanged and fail validation.
pub(crate) fn simplified(path: &str) -> String {
    if !path.starts_with('/') {
        return path.to_owned();
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Validates a path. Several spellings of one path would be several entries for some stages and one for others.
pub(crate) fn check(path: &str) -> Result<(), &'static str> {
    match path.strip_prefix('/') {
        None => Err("path not absolute"),
        Some(_) if simplified(path) != path => Err("path is not fully simplified"),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simplifies_paths() {
        for (path, simple) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/", "/a"),
            ("//a//b", "/a/b"),
            ("/./a/../../b/.", "/b"),
            ("/..a/.b", "/..a/.b"),
        ] {
            assert_eq!(simplified(path), simple);
            assert_eq!(check(path).is_ok(), path == simple, "{path}");
        }
        assert_eq!((simplified("a/"), check("a")), ("a/".into(), Err("path not absolute")));
    }
}

//! Paths as configs may write them.

/// A path from the root without empty parts, dots, and a slash at its end. Any other is as it was, and refused.
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

/// What is wrong with a path. Two ways to write one would be two entries to some stages, and one to others.
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
    fn one_way_to_write_a_path() {
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

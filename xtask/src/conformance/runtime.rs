//! Knows the conformance tests that need a newer container runtime than Debian's.

/// A part of a test's name, and the oldest containerd on which the test can pass.
const NEEDS: &[(&str, Version, &str)] = &[("ImageVolume", (2, 1), "image volumes")];

type Version = (u32, u32);

/// Returns the cause if a test cannot pass. `containerd` is the output of `containerd --version`.
pub(super) fn obstacle(test: &str, containerd: &str) -> Option<String> {
    let (major, minor) = version(containerd)?;
    let lacks = |(part, oldest, _): &&(&str, Version, &str)| {
        test.contains(part) && (major, minor) < *oldest
    };
    let (_, oldest, what) = NEEDS.iter().find(lacks)?;
    Some(format!(
        "{what} need containerd {}.{}; this is containerd {major}.{minor}",
        oldest.0, oldest.1
    ))
}

/// Returns `containerd` with its version.
pub(super) fn name(containerd: &str) -> String {
    version(containerd).map_or_else(
        || "containerd".to_owned(),
        |(major, minor)| format!("containerd {major}.{minor}"),
    )
}

/// Returns the first word that is a version, such as `1.6.20~ds1` or `v2.3.4`.
fn version(containerd: &str) -> Option<Version> {
    containerd.split_whitespace().find_map(|word| {
        let mut parts = word.strip_prefix('v').unwrap_or(word).split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_obstacles_of_older_runtimes() {
        let debian = "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3";
        let test = "[sig-node] ImageVolume should succeed [Conformance]";
        let cause = obstacle(test, debian).unwrap();
        assert_eq!(cause, "image volumes need containerd 2.1; this is containerd 1.6");
        assert_eq!(name(debian), "containerd 1.6");
        let newer = "containerd github.com/containerd/containerd/v2 v2.3.4 1234abcd";
        assert_eq!(obstacle(test, newer), None);
        assert_eq!(obstacle("[sig-node] Pods", debian), None);
        assert_eq!(obstacle(test, "unknown"), None);
    }
}

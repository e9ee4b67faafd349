//! Features by version of etcd.

/// Reports whether requested progress arrives after the changes it covers. In older versions it could overtake them
/// (etcd issue 15220). Upstream uses the same versions.
pub(crate) fn has_ordered_progress(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 25,
        (3, 5, patch) => patch >= 8,
        (major, minor, _) => (major, minor) > (3, 5),
    }
}

#[cfg(test)]
mod tests {
    use super::has_ordered_progress;

    #[test]
    fn ordered_progress_starts_at_upstreams_versions() {
        for version in ["3.4.25", "3.4.31", "3.5.8", "3.5.21", "3.6.0", "3.6.0-rc.2", "4.0.0"] {
            assert!(has_ordered_progress(version), "{version}");
        }
        for version in ["3.3.27", "3.4.24", "3.5.7", "2.3.8", "", "unknown"] {
            assert!(!has_ordered_progress(version), "{version}");
        }
    }
}

//! Access to goldens in a source tree of kOps v1.36.2, named by `KOPS_SOURCE`. Without it, tests that need them report
//! so.

use std::{env, fs, path::PathBuf};

/// Returns the source tree, if it is given.
pub(crate) fn source() -> Option<PathBuf> {
    let source = env::var_os("KOPS_SOURCE").map(PathBuf::from);
    if source.is_none() {
        eprintln!("skipped: KOPS_SOURCE names no tree of kOps v1.36.2");
    }
    source
}

pub(crate) fn read(path: &PathBuf) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the first lines in which two texts differ.
pub(crate) fn difference(ours: &str, golden: &str) -> Option<String> {
    if ours == golden {
        return None;
    }
    let (ours, golden): (Vec<_>, Vec<_>) = (ours.lines().collect(), golden.lines().collect());
    let at = ours.iter().zip(&golden).take_while(|(a, b)| a == b).count();
    let show =
        |lines: &[&str]| lines.iter().skip(at).take(6).copied().collect::<Vec<_>>().join("\n");
    Some(format!("from line {}, ours:\n{}\ngolden:\n{}", at + 1, show(&ours), show(&golden)))
}

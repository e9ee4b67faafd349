//! Checks that ARCHITECTURE.md describes every crate and no others.

use std::collections::BTreeSet;

use super::metadata::Crate;

/// Returns the problems. Each crate needs a paragraph that begins with its name: "**`name`** does …".
pub(super) fn problems(text: &str, crates: &[Crate]) -> Vec<String> {
    let described: BTreeSet<&str> = text.lines().filter_map(name_of).collect();
    let present: BTreeSet<&str> = crates.iter().map(|c| c.name.as_str()).collect();
    let missing = present
        .difference(&described)
        .map(|name| format!("ARCHITECTURE.md has no paragraph on {name}"));
    let stale = described
        .difference(&present)
        .map(|name| format!("ARCHITECTURE.md describes {name}, which is not a crate"));
    missing.chain(stale).collect()
}

fn name_of(line: &str) -> Option<&str> {
    line.trim_start_matches(['-', ' ']).strip_prefix("**`")?.split_once("`**").map(|(name, _)| name)
}

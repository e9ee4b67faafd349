//! Documents agree with the tree: each folder of crates describes its crates, and paths that a document names exist.

use std::{collections::BTreeSet, fs, path::Path};

use super::{file::File, metadata::Crate};
use crate::{
    docs::{comparison, configuration},
    error::Result,
};

/// Reports crates without a paragraph in their folder's README, and paragraphs without a crate. A paragraph begins with
/// the crate's name: "**`name`** does …".
pub(super) fn problems(root: &Path, crates: &[Crate]) -> Vec<String> {
    let folders: BTreeSet<&Path> = crates
        .iter()
        .filter(|c| c.directory.starts_with("crates"))
        .filter_map(|c| c.directory.parent())
        .collect();
    let mut problems = Vec::new();
    for folder in folders {
        let readme = folder.join("README.md");
        let Ok(text) = fs::read_to_string(root.join(&readme)) else {
            problems.push(format!("{} is missing", readme.display()));
            continue;
        };
        let members = crates.iter().filter(|c| c.directory.parent() == Some(folder));
        problems.extend(differences(&readme, &text, members.map(|c| c.name.as_str()).collect()));
    }
    problems
}

/// Reports the generated page of configuration kinds and the documents with comparisons if they are not up to date.
pub(super) fn stale_pages(root: &Path) -> Result<Vec<String>> {
    let mut pages = comparison::render(root)?;
    pages.push((configuration::PAGE, configuration::render(root)?));
    let is_stale = |(path, text): &(&str, String)| {
        fs::read_to_string(root.join(path)).unwrap_or_default() != *text
    };
    let stale = pages.iter().filter(|page| is_stale(page));
    Ok(stale.map(|(path, _)| format!("{path} is not up to date: run `cargo xtask docs`")).collect())
}

pub(super) fn differences(readme: &Path, text: &str, present: BTreeSet<&str>) -> Vec<String> {
    let described: BTreeSet<&str> = text.lines().filter_map(name_of).collect();
    let missing = present
        .difference(&described)
        .map(|name| format!("{} has no paragraph on {name}", readme.display()));
    let stale = described.difference(&present).map(|name| {
        format!("{} describes {name}, which is no crate of the folder", readme.display())
    });
    missing.chain(stale).collect()
}

fn name_of(line: &str) -> Option<&str> {
    line.trim_start_matches(['-', ' ']).strip_prefix("**`")?.split_once("`**").map(|(name, _)| name)
}

/// Reports paths in code font below `crates/`, `xtask/` and `docs/` that do not exist.
pub(super) fn dead_paths(root: &Path, file: &File) -> Vec<String> {
    if file.path.extension().is_none_or(|end| end != "md") {
        return Vec::new();
    }
    let quoted = file.text.split('`').skip(1).step_by(2);
    let is_path = |text: &&str| {
        ["crates/", "xtask/", "docs/"].iter().any(|start| text.starts_with(start))
            && !text.contains(['*', '{', ' ', '<', '\n'])
    };
    quoted
        .filter(is_path)
        .map(|text| text.split(':').next().unwrap_or(text))
        .filter(|path| !root.join(path).exists())
        .map(|path| format!("{} names {path}, which does not exist", file.path.display()))
        .collect()
}

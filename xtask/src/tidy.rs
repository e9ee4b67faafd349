//! `cargo xtask tidy`: the rules of the tree that the compiler does not know. They also run as a test.

use std::{fs, path::Path};

use crate::run::workspace_root;

mod asked;
mod documented;
mod documents;
mod indexing;
mod layers;
mod metadata;
mod modules;
mod readers;
mod settings;
mod sleeps;
mod sources;
#[cfg(test)]
mod tests;
mod unused;

pub(crate) fn run() -> Result<(), String> {
    let report = check(&workspace_root())?;
    for note in &report.notes {
        eprintln!("note: {note}");
    }
    if report.problems.is_empty() {
        Ok(())
    } else {
        Err(format!("the tree is not tidy:\n  {}", report.problems.join("\n  ")))
    }
}

/// What breaks a rule, and what comes close.
#[derive(Default)]
struct Report {
    problems: Vec<String>,
    notes: Vec<String>,
}

fn check(root: &Path) -> Result<Report, String> {
    let crates = metadata::crates()?;
    let files = sources::files(root)?;
    let mut report = Report::default();
    report.problems.extend(layers::problems(&crates));
    let document = root.join("ARCHITECTURE.md");
    let text = fs::read_to_string(&document)
        .map_err(|e| format!("reading {}: {e}", document.display()))?;
    report.problems.extend(documents::problems(&text, &crates));
    report.problems.extend(modules::problems(&files));
    report.problems.extend(settings::problems(&files));
    report.problems.extend(unused::problems(&crates, &files));
    for file in &files {
        sources::check(file, root, &mut report);
        report.problems.extend(sleeps::problem(file));
        report.problems.extend(documented::problems(file));
    }
    Ok(report)
}

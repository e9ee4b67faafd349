//! `cargo xtask tidy`: checks the rules of the tree that the compiler does not know. A test runs the same checks.

use std::path::Path;

use self::report::Report;
use crate::{
    error::{Result, fail},
    run::workspace_root,
};

mod documented;
mod documents;
mod file;
mod indexing;
mod layers;
mod metadata;
mod modules;
mod nondeterminism;
mod readers;
mod report;
mod settings;
mod sleeps;
mod sources;
#[cfg(test)]
mod tests;
mod unused;
mod words;

pub(crate) fn run() -> Result<()> {
    let report = check(&workspace_root())?;
    for note in &report.notes {
        eprintln!("note: {note}");
    }
    if report.problems.is_empty() {
        Ok(())
    } else {
        fail(format!("the tree is not tidy:\n  {}", report.problems.join("\n  ")))
    }
}

fn check(root: &Path) -> Result<Report> {
    let crates = metadata::crates(root)?;
    let pure: Vec<&str> = crates.iter().filter(|c| c.is_pure).map(|c| c.name.as_str()).collect();
    let files = file::read_all(root)?;
    let mut report = Report::default();
    report.problems.extend(layers::problems(&crates));
    report.problems.extend(documents::problems(root, &crates));
    report.problems.extend(documents::stale_pages(root)?);
    report.problems.extend(modules::problems(&files));
    report.problems.extend(settings::problems(&files));
    report.problems.extend(unused::problems(&crates, &files));
    for file in &files {
        sources::check(file, root, &pure, &mut report);
        report.problems.extend(sleeps::problem(file));
        report.problems.extend(documented::problems(file));
        report.problems.extend(words::problems(file));
        report.problems.extend(documents::dead_paths(root, file));
    }
    Ok(report)
}

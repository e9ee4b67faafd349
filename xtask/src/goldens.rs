//! `cargo xtask goldens`: compares our files with the expected ones of upstream's tests, and counts them by family.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::Stdio,
};

use crate::{
    error::{During, Result, fail},
    run::cargo,
};

const USAGE: &str = "usage: cargo xtask goldens --kops DIR

  --kops DIR   a source tree of kOps v1.36.2

Each family of files is compared by a test of crates/kops, which lists the files that differ, with the reasons.";

/// The directory that a source tree of kOps has.
const CASES: &str = "tests/integration/update_cluster";

/// The files of one family.
#[derive(Clone, Debug, PartialEq)]
struct Family {
    name: String,
    equal: usize,
    all: usize,
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let [flag, directory] = args else { return fail(USAGE) };
    if flag != "--kops" {
        return fail(USAGE);
    }
    let source = PathBuf::from(directory);
    let source = std::path::absolute(&source).during("finding", source.display())?;
    if !source.join(CASES).is_dir() {
        return fail(format!(
            "{}: it has no {CASES}; name a source tree of kOps",
            source.display()
        ));
    }
    let mut command = cargo(["test", "--locked", "-p", "kops-api", "-p", "kops-core"]);
    command.args(["--test", "it", "--", "--nocapture"]).env("KOPS_SOURCE", &source);
    let mut child = command.stderr(Stdio::piped()).spawn().during("starting", "cargo test")?;
    let mut families = Vec::new();
    for line in child.stderr.take().into_iter().flat_map(|pipe| BufReader::new(pipe).lines()) {
        let line = line.during("reading the output of", "cargo test")?;
        eprintln!("{line}");
        families.extend(family(&line));
    }
    let status = child.wait().during("waiting for", "cargo test")?;
    let is_empty = families.is_empty();
    print!("{}", table(families));
    if !status.success() {
        return fail(format!("cargo test failed ({status})"));
    }
    if is_empty { fail("no test has printed its counts, so nothing was compared") } else { Ok(()) }
}

/// Parses a test's line such as `node configurations: 176 of 177`.
fn family(line: &str) -> Option<Family> {
    let (name, counts) = line.rsplit_once(": ")?;
    let (equal, all) = counts.split_once(" of ")?;
    Some(Family { name: name.to_owned(), equal: equal.parse().ok()?, all: all.parse().ok()? })
}

/// Returns the counts as a table of Markdown.
fn table(mut families: Vec<Family>) -> String {
    families.sort_by(|a, b| a.name.cmp(&b.name));
    let row = |one: &Family| format!("| {} | {} | {} |\n", one.name, one.equal, one.all);
    let rows: String = families.iter().map(row).collect();
    format!("\n| files | equal | compared |\n|---|---|---|\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_families_of_files() {
        let parsed = family("etcd specs and static Pods: 574 of 574").unwrap_or_else(|| panic!());
        assert_eq!((parsed.equal, parsed.all), (574, 574));
        assert_eq!(family("test pods::static_pods ... ok"), None);
        assert_eq!(family("from line 3 of 5: x of y"), None);
        let text = table(vec![parsed]);
        assert!(text.ends_with("| etcd specs and static Pods | 574 | 574 |\n"), "{text}");
    }

    #[test]
    fn rejects_other_arguments() {
        for args in [&[][..], &["--kops"], &["--dir", "."], &["--kops", "/proc"]] {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            assert!(run(&args).is_err(), "{args:?}");
        }
    }
}

//! `cargo xtask ecosystem`: starts programs of other projects as Pods and checks what their users want.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    build::{self, Profile},
    error::{During, Result, fail},
    machine,
    run::{cargo, pass, step},
    tools,
};

/// The files that each test needs. The tests read the same table.
const TABLE: &str = include_str!("../../crates/tools/e2e/ecosystem.tsv");

const USAGE: &str = "usage: cargo xtask ecosystem --programs DIR [--only TEST]

  --programs DIR   the directory of the programs and manifests that are listed below
  --only TEST      only this test; repeatable

The environment variable WINDLASS is the path of a binary to use instead of a new build. PostgreSQL, Prometheus,
Glewlwyd and syslog-ng come from Debian's packages and run also in `cargo xtask test`. The images are packed from static
programs, so build them with CGO_ENABLED=0; only the mock KMS plugin runs on this machine and needs cgo.
The files of DIR, by test:";

/// The tests that need only Debian's packages.
const DEBIAN: [&str; 4] = ["glewlwyd", "postgres", "prometheus", "syslog_ng"];

#[derive(Debug, PartialEq)]
struct Options {
    programs: PathBuf,
    only: Vec<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let (mut programs, mut only) = (None, Vec::new());
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().ok_or_else(usage)?;
            match flag.as_str() {
                "--programs" => programs = Some(PathBuf::from(value)),
                "--only" if files().contains_key(value.as_str()) => only.push(value.clone()),
                "--only" if DEBIAN.contains(&value.as_str()) => only.push(value.clone()),
                _ => return Err(usage().into()),
            }
        }
        let programs = programs.ok_or_else(usage)?;
        let programs = std::path::absolute(&programs).during("finding", programs.display())?;
        Ok(Self { programs, only })
    }

    fn wants(&self, test: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == test)
    }
}

/// Returns the files of each test in the table.
fn files() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut files: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let mut cells = line.split('\t');
        if let (Some(test), Some(file)) = (cells.next(), cells.next()) {
            files.entry(test).or_default().push(file);
        }
    }
    files
}

/// Returns the usage with the files that the tests need.
fn usage() -> String {
    let tests = files();
    let tests =
        tests.iter().map(|(test, files)| format!("\n\n  {test}\n    {}", files.join("\n    ")));
    [USAGE.to_owned()].into_iter().chain(tests).collect()
}

/// Returns the missing files of the wanted tests.
fn missing(options: &Options) -> Vec<String> {
    let tests = files().into_iter().filter(|(test, _)| options.wants(test));
    let lines = tests.flat_map(|(test, files)| {
        let absent = files.into_iter().filter(|file| !options.programs.join(file).is_file());
        absent.map(move |file| format!("{test}: {file}"))
    });
    lines.collect()
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let missing = missing(&options);
    if !missing.is_empty() {
        return fail(format!(
            "{} lacks files of these tests; add them, or select other tests with --only:\n  {}",
            options.programs.display(),
            missing.join("\n  ")
        ));
    }
    let tools = step("prepare the machine", || {
        machine::install_to_test(false)?;
        machine::install(&[("softhsm2-util", "softhsm2")])?;
        machine::forward_packets()?;
        tools::directory()
    })?;
    let binary = build::given_or_built(Profile::Quick)?;
    step("the ecosystem's tests", || pass(&mut tests(&options, &binary, &tools)))
}

/// Returns the command that runs the selected tests.
fn tests(options: &Options, binary: &Path, tools: &Path) -> std::process::Command {
    let mut command = cargo(["test", "--locked", "--package", "e2e", "--test", "it", "--"]);
    command.env("WINDLASS", binary).env("WINDLASS_TOOLS", tools);
    command.env("WINDLASS_ECOSYSTEM", &options.programs);
    // Each test has a cluster of its own, and most wait for leases more than they compute.
    command.args(["--test-threads", "2", "--nocapture"]);
    if options.only.is_empty() {
        command.arg("ecosystem::");
    }
    command.args(options.only.iter().map(|test| format!("ecosystem::{test}::")));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn usage_lists_files_of_every_test() {
        let error = parse("").unwrap_err().to_string();
        for text in ["--programs DIR", "\n  csi\n", "\n    bin/csi-snapshotter", "\n  kueue\n"] {
            assert!(error.contains(text), "{text}: {error}");
        }
        for line in
            ["--programs", "--only csi", "--programs /p --only none", "--programs /p --all x"]
        {
            assert!(parse(line).unwrap_err().to_string().starts_with("usage: "), "{line}");
        }
    }

    #[test]
    fn names_missing_files_of_selected_tests() {
        let lacking = missing(&parse("--programs /nonexistent --only kueue").unwrap());
        assert_eq!(lacking, ["kueue: manifests/kueue/manifests.yaml", "kueue: bin/kueue"]);
        assert!(missing(&parse("--programs /nonexistent --only postgres").unwrap()).is_empty());
        assert!(missing(&parse("--programs /nonexistent").unwrap()).len() > 40);
    }

    #[test]
    fn selects_modules_of_wanted_tests_alone() {
        let options = parse("--programs /p --only csi --only prometheus").unwrap();
        let command = tests(&options, Path::new("/w"), Path::new("/t"));
        let words: Vec<_> = command.get_args().collect();
        assert!(
            words.ends_with(&["ecosystem::csi::".as_ref(), "ecosystem::prometheus::".as_ref()])
        );
    }

    #[test]
    fn every_test_has_a_module() {
        let modules = include_str!("../../crates/tools/e2e/tests/it/ecosystem/mod.rs");
        for test in files().into_keys().chain(DEBIAN) {
            assert!(modules.contains(&format!("mod {test};")), "{test}");
        }
    }
}

//! Prints the results and writes them to a file.

use std::{
    path::{Path, PathBuf},
    thread,
};

use serde_json::{Map, Value, json};

use super::{
    list::Test,
    suite::{Outcomes, State, outcome_of},
};
use crate::{
    control_plane::Side,
    error::Result,
    file,
    run::{output, program, sha256},
};

/// The results of one side.
pub(super) struct Column {
    pub(super) side: Side,
    pub(super) outcomes: Outcomes,
    pub(super) seconds: f64,
}

impl Column {
    pub(super) fn count(&self, tests: &[Test], state: State) -> usize {
        tests.iter().filter(|test| outcome_of(&self.outcomes, test).state == state).count()
    }
}

pub(super) struct Report<'a> {
    pub(super) tests: &'a [Test],
    pub(super) columns: &'a [Column],
    pub(super) suite: &'a Path,
}

impl Report<'_> {
    pub(super) fn print(&self) {
        for test in self.tests {
            for column in self.columns {
                let outcome = outcome_of(&column.outcomes, test);
                if outcome.state != State::Passed {
                    println!("{} on {}: {}", outcome.state.name(), column.side.name(), test.name);
                    print_message(&outcome.message);
                }
            }
        }
        println!("\n{:10} {:>7} {:>7} {:>8} {:>8}", "", "passed", "failed", "skipped", "seconds");
        for column in self.columns {
            let count = |state| column.count(self.tests, state);
            println!(
                "{:10} {:>7} {:>7} {:>8} {:>8.0}",
                column.side.name(),
                count(State::Passed),
                count(State::Failed),
                count(State::Skipped),
                column.seconds
            );
        }
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        let text = format!("{:#}\n", self.value()?);
        file::write(file, text)
    }

    fn value(&self) -> Result<Value> {
        let tests = self.tests.iter().map(|test| {
            let mut row = json!({"name": test.name, "class": test.class});
            for column in self.columns {
                let outcome = outcome_of(&column.outcomes, test);
                row[column.side.name()] = json!({"state": outcome.state.name(),
                    "seconds": (outcome.seconds * 1000.0).round() / 1000.0, "message": outcome.message});
            }
            row
        });
        let mut sides = Map::new();
        for column in self.columns {
            let count = |state| column.count(self.tests, state);
            let side = json!({
                "passed": count(State::Passed),
                "failed": count(State::Failed),
                "skipped": count(State::Skipped),
                "seconds": column.seconds.round(),
                "binaries": binaries(&column.side.binaries())?,
            });
            sides.insert(column.side.name().to_owned(), side);
        }
        Ok(json!({
            "date": output(&mut program("date", ["-u", "+%Y-%m-%dT%H:%M:%SZ"]))?.trim(),
            "cores": thread::available_parallelism().map_or(1, usize::from),
            "suite": binaries(&[self.suite.to_owned()])?,
            "sides": sides,
            "tests": tests.collect::<Vec<_>>(),
        }))
    }
}

/// Prints the first lines of a test's message.
pub(super) fn print_message(message: &str) {
    let lines = message.lines().filter(|line| !line.trim().is_empty());
    lines.take(6).for_each(|line| println!("    {line}"));
}

/// Returns the version and hash of each binary, because a result is useless without the measured version.
fn binaries(paths: &[PathBuf]) -> Result<Value> {
    let described = paths.iter().map(|path| {
        let version = output(&mut program(path, ["--version"])).unwrap_or_default();
        Ok(json!({
            "name": path.file_name().unwrap_or_default().to_string_lossy(),
            "sha256": sha256(path)?,
            "version": version.lines().next(),
        }))
    });
    described.collect::<Result<Vec<Value>>>().map(Value::Array)
}

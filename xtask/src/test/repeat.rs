//! Runs the tests several times and tabulates the failures: `cargo xtask test --repeat N [--load]`.
//!
//! A test that fails only in some runs is wrong or reveals a bug. `target/repeat/run-K.log` contains the output of each
//! run.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    process::{Child, Command, Stdio},
    time::Instant,
};

use super::{
    report::{Failures, failures, passed},
    teardown,
};
use crate::{
    error::{During, Result},
    file::create_directory,
    machine,
    run::{command_line, program, target_directory},
};

/// Runs `commands` one after another, `times` times, and prints a table of the tests that failed.
///
/// # Errors
///
/// Returns an error if a command cannot be started or any test failed.
pub(super) fn run(times: u32, load: bool, commands: &mut [Command]) -> Result<()> {
    let directory = target_directory().join("repeat");
    create_directory(&directory)?;
    let _load = load.then(BackgroundLoad::start).transpose()?;
    let mut table = Table::default();
    for number in 1..=times {
        let path = directory.join(format!("run-{number}.log"));
        let log = File::create(&path).during("creating", path.display())?;
        let started = Instant::now();
        let mut success = true;
        for command in &mut *commands {
            success &= logged(command, &log)?;
        }
        teardown::wait();
        let text = fs::read(&path).during("reading", path.display())?;
        let text = String::from_utf8_lossy(&text);
        let failures = failures(&text);
        println!(
            "run {number} of {times}: {} passed, {} failed, {:.0} s, {}",
            passed(&text),
            failures.len(),
            started.elapsed().as_secs_f64(),
            path.display()
        );
        table.add(failures, success);
    }
    print!("{}", table.render(times));
    if table.is_clean() { Ok(()) } else { Err("some runs failed".into()) }
}

/// Runs a command with its output in a file and reports whether it succeeded.
fn logged(command: &mut Command, log: &File) -> Result<bool> {
    let copy = || log.try_clone().during("sharing", "the log of a run");
    command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
    let status = command.status().during("starting", command_line(command))?;
    Ok(status.success())
}

/// The failures of all runs.
#[derive(Default)]
struct Table {
    /// The number of failures of each test and the cause of the first one.
    tests: BTreeMap<String, (u32, String)>,
    /// The number of runs that failed without a failed test, such as those that did not compile.
    broken: u32,
}

impl Table {
    fn add(&mut self, failures: Failures, success: bool) {
        if !success && failures.is_empty() {
            self.broken += 1;
        }
        for (test, cause) in failures {
            let cause = cause.replace('\n', " ").chars().take(200).collect();
            self.tests.entry(test).or_insert((0, cause)).0 += 1;
        }
    }

    fn is_clean(&self) -> bool {
        self.tests.is_empty() && self.broken == 0
    }

    fn render(&self, runs: u32) -> String {
        let mut text = format!("| test | failed of {runs} | first cause |\n|---|---|---|\n");
        for (test, (count, cause)) in &self.tests {
            text += &format!("| {test} | {count} | {} |\n", cause.replace('|', "\\|"));
        }
        if self.broken > 0 {
            text += &format!("| (no test named; see the logs) | {} | |\n", self.broken);
        }
        text
    }
}

/// A load on CPU, memory and disk beside the tests. It ends when this value is dropped.
struct BackgroundLoad(Child);

impl BackgroundLoad {
    fn start() -> Result<Self> {
        machine::install(&[("stress-ng", "stress-ng")])?;
        let directory = std::env::temp_dir().display().to_string();
        let args = ["--cpu", "2", "--vm", "1", "--vm-bytes", "512M", "--hdd", "1"];
        let mut command = program("stress-ng", args);
        command.args(["--hdd-bytes", "64M", "--temp-path", &directory]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().during("starting", command_line(&command))?;
        Ok(Self(child))
    }
}

impl Drop for BackgroundLoad {
    fn drop(&mut self) {
        // stress-ng stops its workers on SIGTERM; they would survive a SIGKILL.
        let pid = self.0.id().to_string();
        let _ = program("kill", ["-s", "TERM", &pid]).status();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_failures_and_runs_without_a_failed_test() {
        let mut table = Table::default();
        assert!(table.is_clean());
        let failed = Failures::from([("b::breaks".into(), "lib.rs:7:5: left | right".into())]);
        table.add(failed.clone(), false);
        table.add(failed, false);
        table.add(Failures::new(), false);
        assert!(!table.is_clean());
        let text = table.render(3);
        assert!(text.contains("| b::breaks | 2 | lib.rs:7:5: left \\| right |"));
        assert!(text.contains("| (no test named; see the logs) | 1 | |"));
    }
}

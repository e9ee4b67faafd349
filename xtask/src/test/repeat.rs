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

use super::teardown;
use crate::{
    error::{During, Result},
    file::create_directory,
    machine,
    run::{command_line, program, target_directory},
};

/// The tests that failed in one run, each with the first line of its panic.
type Failures = BTreeMap<String, String>;

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

/// Reads the failed tests from the output of `cargo test`, with the message of each one's panic.
fn failures(output: &str) -> Failures {
    let mut found = Failures::new();
    let mut lines = output.lines().peekable();
    let mut test = None;
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"))
        {
            found.entry(name.to_owned()).or_default();
            test = Some(name);
        } else if line == "failures:" || line.starts_with("test result:") {
            test = None;
        } else if line.contains("panicked at ")
            && let Some(cause) = test.and_then(|name| found.get_mut(name))
            && cause.is_empty()
        {
            let place = line.split("panicked at ").nth(1).unwrap_or_default();
            let message = lines.peek().copied().unwrap_or_default();
            *cause = format!("{place} {message}").chars().take(200).collect();
        }
    }
    found
}

/// Counts the passed tests in the output of `cargo test`.
fn passed(output: &str) -> u64 {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: "));
    let counts = results.filter_map(|line| {
        let (before, _) = line.split_once(" passed")?;
        before.rsplit(' ').next()?.parse::<u64>().ok()
    });
    counts.sum()
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

    const OUTPUT: &str = "\
running 2 tests
test a::works ... ok
test b::breaks ... FAILED

failures:

---- b::breaks stdout ----

thread 'b::breaks' (42) panicked at crates/b/src/lib.rs:7:5:
assertion failed: left | right
note: run with `RUST_BACKTRACE=1`

failures:
    b::breaks

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out
";

    #[test]
    fn reads_failed_tests_with_their_causes() {
        let cause = "crates/b/src/lib.rs:7:5: assertion failed: left | right";
        assert_eq!(failures(OUTPUT), Failures::from([("b::breaks".into(), cause.into())]));
        assert_eq!(passed(OUTPUT), 13);
    }

    #[test]
    fn counts_failures_and_runs_without_a_failed_test() {
        let mut table = Table::default();
        assert!(table.is_clean());
        table.add(failures(OUTPUT), false);
        table.add(failures(OUTPUT), false);
        table.add(Failures::new(), false);
        assert!(!table.is_clean());
        let text = table.render(3);
        assert!(text.contains(
            "| b::breaks | 2 | crates/b/src/lib.rs:7:5: assertion failed: left \\| right |"
        ));
        assert!(text.contains("| (no test named; see the logs) | 1 | |"));
    }
}

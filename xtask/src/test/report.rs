//! Reads the output of `cargo test`, and repeats at its end why tests failed.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use crate::{
    error::{During, Result, fail},
    run::command_line,
};

/// The interval between two reads of the output of running tests.
const INTERVAL: Duration = Duration::from_millis(100);

/// The most lines of a panic's message that are repeated. Messages of end-to-end tests end with long logs.
const LINES: usize = 6;

/// The most characters of a panic's message that are repeated.
const LENGTH: usize = 800;

/// The tests that failed, each with the place and the first lines of the message of its panic.
pub(super) type Failures = BTreeMap<String, String>;

/// Runs tests, prints their output, and repeats at the end why tests failed: the output of a failed end-to-end test has
/// thousands of lines. The output is kept in `log`, whose content is replaced.
///
/// # Errors
///
/// Returns an error if the command cannot be started or a test fails.
pub(super) fn run(command: &mut Command, log: &Path) -> Result<()> {
    let line = command_line(command);
    let output = File::create(log).during("creating", log.display())?;
    let mut copy = File::open(log).during("opening", log.display())?;
    // A pipe would stay open as long as any process that a test started.
    let mut child = command.stdout(output).spawn().during("starting", &line)?;
    let status = loop {
        let ended = child.try_wait().during("waiting for", &line)?;
        io::copy(&mut copy, &mut io::stdout()).during("reading", log.display())?;
        match ended {
            Some(status) => break status,
            None => thread::sleep(INTERVAL),
        }
    };
    if status.success() {
        return Ok(());
    }
    let text = fs::read(log).during("reading", log.display())?;
    for (test, cause) in failures(&String::from_utf8_lossy(&text)) {
        eprintln!("{test}: {cause}");
    }
    fail(format!("{line} failed ({status}); {} has the output", log.display()))
}

/// Reads the failed tests from the output of `cargo test`.
pub(super) fn failures(output: &str) -> Failures {
    let mut found = Failures::new();
    let mut lines = output.lines();
    let mut test = None;
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"))
        {
            found.entry(name.to_owned()).or_default();
            test = Some(name);
        } else if line == "failures:" || line.starts_with("test result:") {
            test = None;
        } else if let Some((_, place)) = line.split_once("panicked at ")
            && let Some(cause) = test.and_then(|name| found.get_mut(name))
            && cause.is_empty()
        {
            let message = lines.clone().take_while(|line| !line.starts_with("note: run with"));
            let all = std::iter::once(place).chain(message.take(LINES)).collect::<Vec<_>>();
            *cause = all.join("\n").trim_end().chars().take(LENGTH).collect();
        }
    }
    found
}

/// Counts the passed tests in the output of `cargo test`.
pub(super) fn passed(output: &str) -> u64 {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: "));
    let counts = results.filter_map(|line| {
        let (before, _) = line.split_once(" passed")?;
        before.rsplit(' ').next()?.parse::<u64>().ok()
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::program;

    const OUTPUT: &str = "\
running 2 tests
test a::works ... ok
test b::breaks ... FAILED

failures:

---- b::breaks stdout ----

thread 'b::breaks' (42) panicked at crates/b/src/lib.rs:7:5:
assertion failed\n  left: 1\nnote: run with `RUST_BACKTRACE=1`

failures:
    b::breaks

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out
";

    #[test]
    fn reads_failed_tests_with_their_causes() {
        let cause = "crates/b/src/lib.rs:7:5:\nassertion failed\n  left: 1";
        assert_eq!(failures(OUTPUT), Failures::from([("b::breaks".into(), cause.into())]));
        assert_eq!(passed(OUTPUT), 13);
    }

    #[test]
    fn bounds_long_causes() {
        let long = format!("---- a stdout ----\npanicked at x:\n{}", "long\n".repeat(100));
        assert_eq!(failures(&long)["a"].lines().count(), 1 + LINES);
        let wide = format!("---- a stdout ----\npanicked at x:\n{}", "ü".repeat(5000));
        assert_eq!(failures(&wide)["a"].chars().count(), LENGTH);
    }

    #[test]
    fn returns_when_tests_end_although_a_process_keeps_their_output() {
        let log = std::env::temp_dir().join(format!("xtask-report-{}", std::process::id()));
        let script = "sleep 60 & echo $!; exit 3";
        let error = run(&mut program("sh", ["-c", script]), &log).unwrap_err().to_string();
        assert!(error.contains("exit 3` failed"), "{error}");
        let pid = fs::read_to_string(&log).unwrap();
        assert!(program("kill", [pid.trim()]).status().unwrap().success());
        run(&mut program("true", [""; 0]), &log).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "");
        fs::remove_file(&log).unwrap();
    }
}

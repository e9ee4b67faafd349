//! Detects processes that run but do not respond, and describes their threads.

use std::{
    collections::BTreeMap,
    fmt::{Display, Write as _},
    fs,
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The time from the start of one check to the start of the next, and the timeout of each.
pub const PERIOD: Duration = Duration::from_secs(10);
/// The number of consecutive failures after which a process counts as hung.
pub const FAILURES: u32 = 3;
/// The interval of the checks before the first success.
const FIRST_PERIOD: Duration = Duration::from_secs(1);
/// The time over which the CPU time of threads is measured.
const SAMPLE: Duration = Duration::from_secs(1);

/// Returns the last reason after [`FAILURES`] consecutive failures of `probe`, and never returns otherwise. Failures
/// before the first success do not count, because a start may take long, for example with a large store.
pub async fn unresponsive<E: Display, F: Future<Output = Result<(), E>>>(
    process: &str,
    mut probe: impl FnMut() -> F,
) -> String {
    let (mut answered, mut failures, mut asked) = (false, 0, Instant::now());
    loop {
        sleep_until(asked + if answered { PERIOD } else { FIRST_PERIOD }).await;
        asked = Instant::now();
        let reason = match timeout(PERIOD, probe()).await {
            Ok(Ok(())) => {
                (answered, failures) = (true, 0);
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} seconds", PERIOD.as_secs()),
        };
        if !answered {
            continue;
        }
        failures += 1;
        tracing::warn!(process, reason, failures, "does not answer");
        if failures == FAILURES {
            return reason;
        }
    }
}

/// A snapshot of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    name: String,
    state: char,
    /// The kernel function in which the thread waits.
    waits_in: String,
    /// The CPU time in clock ticks of 10 ms.
    ticks: u64,
}

/// Describes the threads of a process: name, state, kernel function, and CPU time over a second. Identical threads are
/// counted.
pub async fn activity(pid: i32) -> String {
    let before = threads(pid);
    sleep(SAMPLE).await;
    describe(&before, &threads(pid))
}

fn threads(pid: i32) -> BTreeMap<String, Thread> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let thread = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let waits_in = fs::read_to_string(entry.path().join("wchan")).unwrap_or_default();
        let thread = parse(&stat, waits_in.trim())?;
        Some((entry.file_name().to_string_lossy().into_owned(), thread))
    };
    entries.filter_map(thread).collect()
}

/// Parses proc(5) `stat`. The name, in parentheses, may contain any characters.
fn parse(stat: &str, waits_in: &str) -> Option<Thread> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Thread {
        name: head.split_once('(')?.1.to_owned(),
        state: fields.first()?.chars().next()?,
        // The kernel writes 0 for a thread that does not wait, and if it hides the function.
        waits_in: if waits_in == "0" { String::new() } else { waits_in.to_owned() },
        ticks: number(11)? + number(12)?,
    })
}

fn describe(before: &BTreeMap<String, Thread>, after: &BTreeMap<String, Thread>) -> String {
    let mut alike: BTreeMap<(&str, char, &str), (usize, u64)> = BTreeMap::new();
    for (id, thread) in after {
        let used = before.get(id).map_or(0, |before| thread.ticks.saturating_sub(before.ticks));
        let group = alike.entry((&thread.name, thread.state, &thread.waits_in)).or_default();
        *group = (group.0 + 1, group.1 + used);
    }
    let mut text = String::new();
    for ((name, state, waits_in), (count, ticks)) in alike {
        let comma = if text.is_empty() { "" } else { ", " };
        let place = if waits_in.is_empty() { String::new() } else { format!(" in {waits_in}") };
        let _ = write!(text, "{comma}{count} {name} {state}{place} {ticks} %");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    /// Runs a script of results; `None` is a timeout. Returns the time until the process was given up.
    async fn gave_up_after(script: &[Option<bool>]) -> Option<Duration> {
        let (start, at) = (Instant::now(), Cell::new(0));
        let probe = || {
            let answer = script.get(at.replace(at.get() + 1)).copied().unwrap_or(Some(true));
            async move {
                match answer {
                    Some(true) => Ok(()),
                    Some(false) => Err("500".to_owned()),
                    None => std::future::pending().await,
                }
            }
        };
        let given_up = timeout(Duration::from_secs(3600), unresponsive("x", probe)).await;
        given_up.ok().map(|_| start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_after_three_failures_in_a_row() {
        let (yes, no, silent) = (Some(true), Some(false), None);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (script, wanted) in [
            (&[yes, silent, silent, silent][..], seconds(1 + 10 + 3 * 10)),
            (&[yes, no, no, no], seconds(1 + 3 * 10)),
            (&[yes, no, no, yes, no, silent, yes], None),
            // A slow start is not a failure.
            (&[no, silent, no, silent, no, yes], None),
            (&[no, silent, yes, no, silent, no], seconds(1 + 11 + 10 + 10 + 10)),
        ] {
            assert_eq!(gave_up_after(script).await, wanted, "{script:?}");
        }
    }

    #[test]
    fn describes_threads_that_are_alike_together() {
        let stat = |name: &str, state, ticks| {
            format!("7 ({name}) {state} 1 1 1 0 -1 4194368 0 0 0 0 {ticks} 3 0 0 20 0 9 0 5")
        };
        let all = |ticks| {
            let of = |name, state, place, ticks| parse(&stat(name, state, ticks), place).unwrap();
            BTreeMap::from([
                ("7".to_owned(), of("main (x) y", 'S', "futex_wait", 0)),
                ("8".to_owned(), of("worker", 'R', "0", ticks)),
                ("9".to_owned(), of("worker", 'R', "", ticks)),
            ])
        };
        let expected = "1 main (x) y S in futex_wait 0 %, 2 worker R 180 %";
        assert_eq!(describe(&all(10), &all(100)), expected);
        assert_eq!(parse("garbage", ""), None);
    }

    #[test]
    fn sees_the_threads_of_this_process() {
        let own = threads(std::process::id().cast_signed());
        assert!(!own.is_empty());
        assert!(describe(&own, &own).contains(" 0 %"), "{own:?}");
    }
}

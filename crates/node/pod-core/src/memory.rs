//! Failures of a Pod's steps, and their back-off.

use std::{collections::BTreeMap, time::Duration};

use crate::time::{Timestamp, after, since};

/// The first and the longest back-off of restarts and pulls, as upstream. It is forgotten after 10 minutes without
/// failure.
const FIRST: Duration = Duration::from_secs(10);
const CAP: Duration = Duration::from_secs(300);
/// The delay before a step that failed is retried, other than an image pull.
const RETRY: Duration = Duration::from_secs(10);

/// The failures that a Pod's worker remembers between passes. If they are lost, a step is retried early.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The longest delay between restarts.
    restart_cap: Duration,
    restarts: BTreeMap<String, Entry>,
    pulls: BTreeMap<String, Entry>,
    failures: BTreeMap<String, Failure>,
    sandbox: Option<(u32, Timestamp)>,
    pass: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    delay: Duration,
    last: Timestamp,
}

/// The last failure to start a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The kind of the failed step.
    pub kind: FailureKind,
    /// The reason for the container's status.
    pub reason: String,
    /// The message for the container's status.
    pub message: String,
    /// The time of the next attempt.
    pub retry_at: Timestamp,
    pass: u64,
}

/// The kind of a failed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// An image pull.
    Pull,
    /// Any other step of a container's start.
    Start,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(CAP)
    }
}

impl Memory {
    /// Creates an empty memory with the longest delay between restarts.
    pub fn new(restart_cap: Duration) -> Self {
        Self {
            restart_cap,
            restarts: BTreeMap::new(),
            pulls: BTreeMap::new(),
            failures: BTreeMap::new(),
            sandbox: None,
            pass: 0,
        }
    }

    /// Begins a pass. Earlier image failures are reported as a back-off from now on.
    pub fn begin_pass(&mut self) {
        self.pass += 1;
    }

    /// Returns the time until a container that exited at `exited` may restart.
    pub(crate) fn restart_wait(
        &self,
        name: &str,
        exited: Timestamp,
        now: Timestamp,
    ) -> Option<Duration> {
        let entry = self.restarts.get(name)?;
        if since(entry.last, exited) > CAP * 2 {
            return None;
        }
        entry.delay.checked_sub(since(exited, now)).filter(|left| !left.is_zero())
    }

    /// Returns the current delay between restarts, for messages.
    pub(crate) fn restart_delay(&self, name: &str) -> Duration {
        self.restarts.get(name).map_or(FIRST.min(self.restart_cap), |entry| entry.delay)
    }

    /// Records the restart of a container that exited at `exited`.
    pub fn record_restart(&mut self, name: &str, exited: Timestamp, now: Timestamp) {
        step(&mut self.restarts, name, exited, now, self.restart_cap);
    }

    /// Returns the last failure to start the container, unless it has started since.
    pub fn failure(&self, name: &str) -> Option<&Failure> {
        self.failures.get(name)
    }

    /// Returns the waiting reason and message of a failure. A failed pull is reported as `ImagePullBackOff` from the
    /// second pass on.
    pub(crate) fn waiting_reason(&self, name: &str) -> Option<(String, String)> {
        let failure = self.failures.get(name)?;
        if failure.kind == FailureKind::Pull
            && failure.pass < self.pass
            && failure.reason == "ErrImagePull"
        {
            return Some(("ImagePullBackOff".to_owned(), failure.message.clone()));
        }
        Some((failure.reason.clone(), failure.message.clone()))
    }

    /// Records a failure other than that of an image pull. It is retried after a fixed delay.
    pub fn record_start_failure(
        &mut self,
        name: &str,
        reason: &str,
        message: String,
        now: Timestamp,
    ) {
        self.fail(name, FailureKind::Start, reason, message, after(now, RETRY));
    }

    /// Records a failed image pull. The delay doubles with each failure.
    pub fn record_pull_failure(
        &mut self,
        name: &str,
        reason: &str,
        message: String,
        now: Timestamp,
    ) {
        let delay = step(&mut self.pulls, name, now, now, CAP);
        self.fail(name, FailureKind::Pull, reason, message, after(now, delay));
    }

    fn fail(
        &mut self,
        name: &str,
        kind: FailureKind,
        reason: &str,
        message: String,
        retry_at: Timestamp,
    ) {
        let failure =
            Failure { kind, reason: reason.to_owned(), message, retry_at, pass: self.pass };
        self.failures.insert(name.to_owned(), failure);
    }

    /// Forgets the failures of a container that has started.
    pub fn record_start(&mut self, name: &str) {
        self.failures.remove(name);
        self.pulls.remove(name);
    }

    /// Records a failure to create the sandbox. The first retries are early, because the network plugin may start after
    /// the node.
    pub fn record_sandbox_failure(&mut self, now: Timestamp) {
        let failures = self.sandbox.map_or(0, |(failures, _)| failures + 1);
        let delay = Duration::from_secs(1 << failures.min(3)).min(RETRY);
        self.sandbox = Some((failures, after(now, delay)));
    }

    /// Forgets the failures to create the sandbox.
    pub fn record_sandbox(&mut self) {
        self.sandbox = None;
    }

    pub(crate) fn sandbox_retry_at(&self) -> Option<Timestamp> {
        self.sandbox.map(|(_, at)| at)
    }
}

fn step(
    entries: &mut BTreeMap<String, Entry>,
    name: &str,
    event: Timestamp,
    now: Timestamp,
    cap: Duration,
) -> Duration {
    let delay = match entries.get(name) {
        Some(entry) if since(entry.last, event) <= CAP * 2 => (entry.delay * 2).min(cap),
        _ => FIRST.min(cap),
    };
    entries.insert(name.to_owned(), Entry { delay, last: now });
    delay
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_restarts_up_to_the_configured_period() {
        let at = |second| Timestamp::from_second(1_000 + second).unwrap();
        for (cap, delays) in [
            (300, [10, 20, 40, 80, 160, 300, 300]),
            (30, [10, 20, 30, 30, 30, 30, 30]),
            (5, [5; 7]),
        ] {
            let mut memory = Memory::new(Duration::from_secs(cap));
            for (turn, delay) in delays.into_iter().enumerate() {
                memory.record_restart("app", at(turn as i64), at(turn as i64));
                assert_eq!(memory.restart_delay("app"), Duration::from_secs(delay), "{cap} {turn}");
            }
            memory.record_pull_failure("app", "ErrImagePull", String::new(), at(0));
            assert_eq!(
                memory.failure("app").unwrap().retry_at,
                at(10),
                "pulls keep their own delay"
            );
        }
    }
}

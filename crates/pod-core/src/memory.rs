use std::{collections::BTreeMap, time::Duration};

use crate::{
    Timestamp,
    time::{after, since},
};

/// Restart and pull back-off, as upstream's: 10 s doubling to 5 minutes, forgotten after 10 quiet minutes.
const FIRST: Duration = Duration::from_secs(10);
const CAP: Duration = Duration::from_secs(300);
/// How soon a step is tried again that failed for another reason than an image.
const RETRY: Duration = Duration::from_secs(10);

/// What a Pod's worker remembers between passes; all of it may be lost at the price of an early retry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
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

/// Why a container could not be started the last time that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub kind: FailureKind,
    pub reason: String,
    pub message: String,
    /// Not before it is tried again.
    pub retry_at: Timestamp,
    pass: u64,
}

/// What failed, which decides what the status calls it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    Pull,
    Start,
}

impl Memory {
    /// Begins a look at the Pod: what failed before is from now on a back-off.
    pub fn begin_pass(&mut self) {
        self.pass += 1;
    }

    /// How long a container that exited at `exited` has still to wait.
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

    /// The current delay between restarts, for messages.
    pub(crate) fn restart_delay(&self, name: &str) -> Duration {
        self.restarts.get(name).map_or(FIRST, |entry| entry.delay)
    }

    /// Notes that a container that exited at `exited` is being restarted.
    pub fn restarted(&mut self, name: &str, exited: Timestamp, now: Timestamp) {
        step(&mut self.restarts, name, exited, now);
    }

    /// Why the container of this name could not be started, until it is.
    pub fn failure(&self, name: &str) -> Option<&Failure> {
        self.failures.get(name)
    }

    /// The reason to report for a failure: an image's turns from what happened into waiting for the next try.
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

    /// Notes a failure other than an image's; it is tried again after a fixed time.
    pub fn start_failed(&mut self, name: &str, reason: &str, message: String, now: Timestamp) {
        self.fail(name, FailureKind::Start, reason, message, after(now, RETRY));
    }

    /// Notes that an image could not be had; each further time the wait doubles.
    pub fn pull_failed(&mut self, name: &str, reason: &str, message: String, now: Timestamp) {
        let delay = step(&mut self.pulls, name, now, now);
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

    /// Forgets what kept the container from starting.
    pub fn started(&mut self, name: &str) {
        self.failures.remove(name);
        self.pulls.remove(name);
    }

    /// Networks may come a moment after the node, so the first retries of a sandbox are early.
    pub fn sandbox_failed(&mut self, now: Timestamp) {
        let failures = self.sandbox.map_or(0, |(failures, _)| failures + 1);
        let delay = Duration::from_secs(1 << failures.min(3)).min(RETRY);
        self.sandbox = Some((failures, after(now, delay)));
    }

    /// Forgets how often a sandbox failed.
    pub fn sandbox_made(&mut self) {
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
) -> Duration {
    let delay = match entries.get(name) {
        Some(entry) if since(entry.last, event) <= CAP * 2 => (entry.delay * 2).min(CAP),
        _ => FIRST,
    };
    entries.insert(name.to_owned(), Entry { delay, last: now });
    delay
}

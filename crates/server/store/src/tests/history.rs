//! Histories of concurrent clients, and the check that they are linearizable.
//!
//! Every write has a store-wide revision, and every read returns the revision it shows. So the check need not search
//! for an order. A history is linearizable if the order of revisions explains every answer and agrees with real time.
//! The log of all changes, as a watch received it, is the reference; a write that is not in it did not happen.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;

use crate::{Change, ChangeKind, Error, Expected, KeyRange, Op, Outcome, Revision, Store, Write};

/// The subject of a test: a store, or a server in front of one.
pub trait Subject: Send + Sync {
    /// Returns the value and revision of a key, and the revision of that read.
    fn get(&self, key: &str) -> impl Future<Output = Answer> + Send;
    /// Returns all keys.
    fn list(&self) -> impl Future<Output = Answer> + Send;
    /// Creates the key (`expected` 0) or changes it from that revision; without a value deletes it.
    fn write(
        &self,
        key: &str,
        expected: Revision,
        value: Option<String>,
    ) -> impl Future<Output = Answer> + Send;
}

/// A value of a key, with its revision.
pub type Entry = (String, Revision, Bytes);

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write succeeded; `None` if the server does not return its revision.
    Done(Option<Revision>),
    /// The precondition did not hold.
    Conflict,
    /// The keys read, and the revision of the read, if it is known.
    Read(Vec<Entry>, Option<Revision>),
    /// The write may or may not have happened.
    Unknown,
}

/// The request of a call.
#[derive(Clone, Debug)]
pub enum Request {
    /// Reads one key.
    Get(String),
    /// Reads all keys.
    List,
    /// Writes one key.
    Write { key: String, expected: Revision, value: Option<String> },
}

/// A call of a client. `begun` and `ended` are times of a clock that all clients share.
#[derive(Clone, Debug)]
pub struct Call {
    /// The time before the call.
    pub begun: u64,
    /// The time after the call.
    pub ended: u64,
    /// The request.
    pub request: Request,
    /// The answer.
    pub answer: Answer,
}

/// A counter that orders the calls of all clients: each number is greater than all earlier ones.
#[derive(Default)]
pub struct Clock(AtomicU64);

impl Clock {
    fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

impl Subject for &(dyn Store + '_) {
    async fn get(&self, key: &str) -> Answer {
        match Store::get(*self, key).await {
            Ok((found, at)) => Answer::Read(found.iter().map(found_of).collect(), Some(at)),
            Err(_) => Answer::Unknown,
        }
    }

    async fn list(&self) -> Answer {
        match self.range(KeyRange::prefix("/registry/"), 0, 0).await {
            Ok(all) => Answer::Read(all.items.iter().map(found_of).collect(), Some(all.revision)),
            Err(_) => Answer::Unknown,
        }
    }

    async fn write(&self, key: &str, expected: Revision, value: Option<String>) -> Answer {
        let op = match value {
            Some(value) => Op::Put { value: value.into(), ttl_seconds: None },
            None => Op::Delete,
        };
        let write = Write { key: key.into(), expected: Expected::ModRevision(expected), op };
        match Store::write(*self, write).await {
            Ok(Outcome::Done { revision, .. }) => Answer::Done(Some(revision)),
            Ok(Outcome::Conflict { .. }) => Answer::Conflict,
            // These were rejected before anything was tried.
            Err(Error::TooLarge { .. } | Error::NoSpace { .. }) => Answer::Conflict,
            Err(_) => Answer::Unknown,
        }
    }
}

fn found_of(kv: &crate::KeyValue) -> Entry {
    (kv.key.to_string(), kv.mod_revision, kv.value.clone())
}

/// Runs a client that makes `calls` calls on a few keys, chosen by a seed. `name` must be unique, because it makes the
/// client's values unique.
pub async fn client(
    subject: &impl Subject,
    clock: &Clock,
    name: &str,
    seed: u64,
    calls: usize,
) -> Vec<Call> {
    let mut dice = seed.wrapping_mul(2).wrapping_add(1);
    let mut roll = |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let mut known: HashMap<String, Revision> = HashMap::new();
    let mut history = Vec::with_capacity(calls);
    for n in 0..calls {
        let key = format!("/registry/k{}", roll(4));
        let request = match roll(8) {
            0 | 1 => Request::Get(key.clone()),
            2 => Request::List,
            step => {
                let expected = known.get(&key).copied().unwrap_or(0);
                let value = (step != 3 || expected == 0).then(|| format!("{name}.{n}"));
                Request::Write { key: key.clone(), expected, value }
            }
        };
        let begun = clock.tick();
        let answer = match &request {
            Request::Get(key) => subject.get(key).await,
            Request::List => subject.list().await,
            Request::Write { key, expected, value } => {
                subject.write(key, *expected, value.clone()).await
            }
        };
        let ended = clock.tick();
        match (&request, &answer) {
            (Request::Write { value: Some(_), .. }, Answer::Done(Some(revision))) => {
                known.insert(key, *revision);
            }
            (Request::Write { .. }, Answer::Done(_)) => drop(known.remove(&key)),
            (Request::Write { .. }, Answer::Conflict | Answer::Unknown) => {
                // Read the key before the next try, as any client does.
                if let Answer::Read(found, _) = subject.get(&key).await {
                    known.insert(key, found.first().map_or(0, |f| f.1));
                }
            }
            (_, Answer::Read(found, _)) => {
                known.extend(found.iter().map(|(key, revision, _)| (key.clone(), *revision)));
            }
            _ => {}
        }
        history.push(Call { begun, ended, request, answer });
    }
    history
}

/// The state of one key: a value, or `None`, since a revision.
type State = (Revision, Option<Bytes>);

/// Checks a history against the log of all changes since `began`, when the store was empty.
pub fn check(history: &[Call], log: &[Change], began: Revision) -> Result<(), String> {
    let keys = replay(log, began)?;
    let by_value = by_value(log)?;
    let bounds = Bounds::of(history, &by_value);
    for call in history {
        let fault = |what: String| format!("{what}: {call:?}");
        let (low, high) = (bounds.before(call.begun).max(began), bounds.after(call.ended));
        match (&call.request, &call.answer) {
            (_, Answer::Unknown) => {}
            (Request::Write { key, expected, value }, Answer::Done(reported)) => {
                let at =
                    written(&keys, &by_value, key, *expected, value.as_deref()).map_err(fault)?;
                if reported.is_some_and(|reported| reported != at) {
                    return Err(fault(format!("the log has it at {at}")));
                }
                if at <= low || at > high {
                    return Err(fault(format!(
                        "at {at} it is out of order: after {low}, by {high}"
                    )));
                }
                let before = state(&keys, key, at - 1).map_or(0, |s| s.0);
                if before != *expected {
                    return Err(fault(format!("it replaced revision {before}")));
                }
            }
            (Request::Write { key, expected, .. }, Answer::Conflict) => {
                let mut moments = vec![low];
                let changes = keys.get(key).map_or(&[][..], Vec::as_slice);
                moments.extend(changes.iter().map(|s| s.0).filter(|r| *r > low && *r <= high));
                let differs =
                    |at: &Revision| state(&keys, key, *at).map_or(0, |s| s.0) != *expected;
                if !moments.iter().any(differs) {
                    return Err(fault("nothing was in its way".to_owned()));
                }
            }
            (request, Answer::Read(found, reported)) => {
                let moments: Vec<Revision> = match reported {
                    Some(at) if *at < low || *at > high => {
                        return Err(fault(format!("a state of {at}, not of {low} to {high}")));
                    }
                    Some(at) => vec![*at],
                    // Any revision during the call explains the answer.
                    None => {
                        let changed = log.iter().map(|c| c.kv.mod_revision);
                        let during = changed.filter(|r| *r > low && *r <= high);
                        std::iter::once(low).chain(during).collect()
                    }
                };
                if !moments.iter().any(|at| shows(&keys, request, *at) == *found) {
                    return Err(fault(format!("that is not the state at any of {moments:?}")));
                }
            }
            (_, answer) => return Err(fault(format!("{answer:?} does not answer the request"))),
        }
    }
    Ok(())
}

/// Checks that another watch received the same changes as the log, from its first to its last.
pub fn check_watch(seen: &[Change], log: &[Change], from: Revision) -> Result<(), String> {
    let there = log.iter().filter(|c| c.kv.mod_revision > from).take(seen.len());
    for (a, b) in seen.iter().zip(there) {
        if a.kind != b.kind || a.kv != b.kv {
            return Err(format!("a watch saw {a:?} where the log has {b:?}"));
        }
    }
    Ok(())
}

/// Returns the states of every key, oldest first. Fails if the log contradicts itself.
fn replay(log: &[Change], began: Revision) -> Result<BTreeMap<String, Vec<State>>, String> {
    let mut keys: BTreeMap<String, Vec<State>> = BTreeMap::new();
    let mut last = began;
    for change in log {
        let at = change.kv.mod_revision;
        if at <= last {
            return Err(format!("revision {at} comes after {last}"));
        }
        last = at;
        let states = keys.entry(change.kv.key.to_string()).or_default();
        let there = states.last().is_some_and(|s| s.1.is_some());
        match change.kind {
            ChangeKind::Delete if !there => return Err(format!("{at} deletes what is not there")),
            ChangeKind::Delete => states.push((at, None)),
            ChangeKind::Put => states.push((at, Some(change.kv.value.clone()))),
        }
    }
    Ok(keys)
}

/// Returns the revision that wrote each value. Values are unique, so a value that occurs twice was written twice.
fn by_value(log: &[Change]) -> Result<HashMap<&[u8], Revision>, String> {
    let mut found = HashMap::new();
    for change in log.iter().filter(|c| c.kind == ChangeKind::Put) {
        if let Some(before) = found.insert(&change.kv.value[..], change.kv.mod_revision) {
            return Err(format!(
                "written twice, at {before} and {}: {change:?}",
                change.kv.mod_revision
            ));
        }
    }
    Ok(found)
}

/// Returns the state of a key at a revision, if it existed.
fn state<'a>(
    keys: &'a BTreeMap<String, Vec<State>>,
    key: &str,
    at: Revision,
) -> Option<(Revision, &'a Bytes)> {
    let (since, value) = keys.get(key)?.iter().rev().find(|s| s.0 <= at)?;
    Some((*since, value.as_ref()?))
}

fn shows(keys: &BTreeMap<String, Vec<State>>, request: &Request, at: Revision) -> Vec<Entry> {
    let wanted = |key: &&String| {
        matches!(request, Request::List) || matches!(request, Request::Get(k) if k == *key)
    };
    let found = keys.keys().filter(wanted).filter_map(|key| {
        let (since, value) = state(keys, key, at)?;
        Some((key.clone(), since, value.clone()))
    });
    found.collect()
}

/// Returns the revision of an acknowledged write.
fn written(
    keys: &BTreeMap<String, Vec<State>>,
    by_value: &HashMap<&[u8], Revision>,
    key: &str,
    expected: Revision,
    value: Option<&str>,
) -> Result<Revision, String> {
    if let Some(value) = value {
        return by_value.get(value.as_bytes()).copied().ok_or_else(|| "it was lost".to_owned());
    }
    // A deletion has no value of its own, but the value that it deleted has a revision.
    let states = keys.get(key).map_or(&[][..], Vec::as_slice);
    let after = states.iter().position(|s| s.0 == expected).map(|at| at + 1);
    match after.and_then(|at| states.get(at)) {
        Some((at, None)) => Ok(*at),
        _ => Err("the deletion was lost".to_owned()),
    }
}

/// The constraints that real time puts on revisions.
struct Bounds {
    /// The end of each call, and a revision that had happened by then.
    ended: Vec<(u64, Revision)>,
    /// The begin of each write, and its revision, which cannot have happened before.
    begun: Vec<(u64, Revision)>,
}

impl Bounds {
    fn of(history: &[Call], by_value: &HashMap<&[u8], Revision>) -> Self {
        let mut bounds = Self { ended: Vec::new(), begun: Vec::new() };
        for call in history {
            match (&call.request, &call.answer) {
                (_, Answer::Read(_, Some(at))) => bounds.ended.push((call.ended, *at)),
                (Request::Write { value, .. }, answer) => {
                    let logged = value.as_ref().and_then(|v| by_value.get(v.as_bytes())).copied();
                    let Some(at) = logged.or(match answer {
                        Answer::Done(reported) => *reported,
                        _ => None,
                    }) else {
                        continue;
                    };
                    bounds.begun.push((call.begun, at));
                    if matches!(answer, Answer::Done(_)) {
                        bounds.ended.push((call.ended, at));
                    }
                }
                _ => {}
            }
        }
        bounds
    }

    /// Returns the newest revision known to have happened before a time.
    fn before(&self, moment: u64) -> Revision {
        self.ended.iter().filter(|(ended, _)| *ended < moment).map(|(_, at)| *at).max().unwrap_or(0)
    }

    /// Returns the newest revision that can have happened by a time.
    fn after(&self, moment: u64) -> Revision {
        let later = self.begun.iter().filter(|(begun, _)| *begun > moment).map(|(_, at)| at - 1);
        later.min().unwrap_or(Revision::MAX)
    }
}

//! Clients that use ConfigMaps as registers, and a watch of them, for the checks of linearizability.

use std::sync::Arc;

use bytes::Bytes;
use client::{Client, DeleteOptions, Error, ListOptions, Preconditions, Resource, WatchEvent};
use parking_lot::Mutex;
use serde_json::{Value, json};
use store::{
    Change, ChangeKind, KeyValue, Revision,
    tests::history::{self, Answer, Call, Clock, Entry, Subject},
};
use tokio::time::{Duration, sleep};

use super::ledger::{Violations, parse};

/// The namespace of the registers.
pub(crate) const REGISTERS: &str = "registers";
const MAPS: Resource = Resource::CONFIG_MAPS;

struct Registers(Client);

fn name(key: &str) -> &str {
    key.trim_start_matches("/registry/")
}

fn revision(object: &Value) -> Revision {
    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    version.parse().unwrap_or_default()
}

fn found(object: &Value) -> Entry {
    let key = format!("/registry/{}", object["metadata"]["name"].as_str().unwrap_or_default());
    let value: Bytes = object["data"]["v"].as_str().unwrap_or_default().to_owned().into();
    (key, revision(object), value)
}

fn change(kind: ChangeKind, object: &Value) -> Change {
    let (key, mod_revision, value) = found(object);
    let value = if kind == ChangeKind::Delete { Bytes::new() } else { value };
    let kv = KeyValue { key: key.into(), value, create_revision: 0, mod_revision, version: 0 };
    Change { kind, kv }
}

/// Returns the changes of the registers in the history of a store.
fn of_registers(history: &[Change]) -> Vec<Change> {
    let prefix = format!("/registry/configmaps/{REGISTERS}/");
    let of_one = |entry: &Change| {
        let name = entry.kv.key.strip_prefix(&prefix)?;
        let mut object = parse(&entry.kv);
        let meta = &mut object["metadata"];
        meta["name"] = json!(name);
        meta["resourceVersion"] = json!(entry.kv.mod_revision.to_string());
        Some(change(entry.kind, &object))
    };
    history.iter().filter_map(of_one).collect()
}

/// Returns the answer for a failed call. Other codes than these leave the outcome open.
fn failed(error: &Error) -> Answer {
    if error.is_not_found() || error.is_conflict() { Answer::Conflict } else { Answer::Unknown }
}

impl Subject for Registers {
    async fn get(&self, key: &str) -> Answer {
        match self.0.get::<Value>(&MAPS, REGISTERS, name(key)).await {
            Ok(object) => Answer::Read(vec![found(&object)], None),
            Err(error) if error.is_not_found() => Answer::Read(Vec::new(), None),
            Err(_) => Answer::Unknown,
        }
    }

    async fn list(&self) -> Answer {
        match self.0.list::<Value>(&MAPS, REGISTERS, &ListOptions::default()).await {
            Ok(list) => {
                let at = list.metadata.resource_version.parse().ok();
                Answer::Read(list.items.iter().map(found).collect(), at)
            }
            Err(_) => Answer::Unknown,
        }
    }

    async fn write(&self, key: &str, expected: Revision, value: Option<String>) -> Answer {
        let name = name(key);
        let mut map =
            json!({"metadata": {"name": name, "namespace": REGISTERS}, "data": {"v": value}});
        let written = match (value, expected) {
            (Some(_), 0) => self.0.create::<_, Value>(&MAPS, REGISTERS, &map).await,
            (Some(_), _) => {
                map["metadata"]["resourceVersion"] = json!(expected.to_string());
                self.0.update::<_, Value>(&MAPS, REGISTERS, name, &map).await
            }
            (None, _) => {
                let resource_version = Some(expected.to_string());
                let only = Preconditions { uid: None, resource_version };
                let options =
                    DeleteOptions { preconditions: Some(only), ..DeleteOptions::default() };
                let deleted = self.0.delete(&MAPS, REGISTERS, name, &options).await;
                return deleted.map_or_else(|error| failed(&error), |()| Answer::Done(None));
            }
        };
        written.map_or_else(|error| failed(&error), |map| Answer::Done(Some(revision(&map))))
    }
}

/// The calls of all clients, and what watches have seen.
#[derive(Default)]
pub(crate) struct Record {
    clock: Clock,
    calls: Mutex<Vec<Call>>,
    /// The changes that each watch received after the revision of its list.
    watched: Mutex<Vec<(Revision, Vec<Change>)>>,
    /// The revision of the newest change by [`Record::watch_sees_a_change`].
    last: Mutex<Revision>,
}

impl Record {
    /// Runs a client until it is dropped.
    pub(crate) async fn use_registers(self: Arc<Self>, client: Client, name: String) {
        let registers = Registers(client);
        for n in 0.. {
            let (own, seed) = (format!("{name}.{n}"), rt::random());
            let calls = history::client(&registers, &self.clock, &own, seed, 3).await;
            self.calls.lock().extend(calls);
            sleep(Duration::from_millis(rt::random_in(0..1500))).await;
        }
    }

    /// Watches the registers, and lists them again where a watch cannot continue.
    pub(crate) async fn watch_registers(self: Arc<Self>, client: Client) {
        loop {
            if let Ok(list) = client.list::<Value>(&MAPS, REGISTERS, &ListOptions::default()).await
            {
                let from = list.metadata.resource_version.parse().unwrap_or_default();
                let at = {
                    let mut watched = self.watched.lock();
                    watched.push((from, Vec::new()));
                    watched.len() - 1
                };
                self.watch(&client, at, from).await;
            }
            sleep(Duration::from_millis(rt::random_in(100..2000))).await;
        }
    }

    /// Watches from a revision until the server refuses to continue.
    async fn watch(&self, client: &Client, at: usize, mut from: Revision) {
        let options = ListOptions::default();
        loop {
            let version = from.to_string();
            let ended = match client.watch(&MAPS, REGISTERS, &options, &version).await {
                Ok(mut events) => loop {
                    match events.next().await {
                        Some(Ok(event)) => from = self.note(at, &event),
                        Some(Err(error)) => break Some(error),
                        None => break None,
                    }
                },
                Err(error) => Some(error),
            };
            // The server refuses a revision that it has compacted before or after the watch has begun.
            if ended.is_some_and(|error| error.is_gone()) {
                return;
            }
            sleep(Duration::from_millis(rt::random_in(100..2000))).await;
        }
    }

    fn note(&self, at: usize, event: &WatchEvent) -> Revision {
        let (kind, bytes) = match event {
            WatchEvent::Added(bytes) | WatchEvent::Modified(bytes) => {
                (Some(ChangeKind::Put), bytes)
            }
            WatchEvent::Deleted(bytes) => (Some(ChangeKind::Delete), bytes),
            WatchEvent::Bookmark(bytes) => (None, bytes),
        };
        let object: Value = serde_json::from_slice(bytes).unwrap_or_default();
        if let Some(kind) = kind {
            self.watched.lock()[at].1.push(change(kind, &object));
        }
        revision(&object)
    }

    /// Checks the calls and watches against the history of the store. Call it after
    /// [`Record::watch_sees_a_change`].
    pub(crate) fn check(&self, changes: &[Change], violations: &Violations) {
        let log = of_registers(changes);
        let calls = self.calls.lock();
        if let Err(fault) = history::check(&calls, &log, 1) {
            violations.report(format!("the API is not linearizable: {fault}"));
        }
        let watched = self.watched.lock();
        for (n, (from, seen)) in watched.iter().enumerate() {
            let there = log.iter().filter(|change| change.kv.mod_revision > *from);
            let is_last = n + 1 == watched.len();
            let there: Vec<Change> = if is_last {
                there.cloned().collect()
            } else {
                there.take(seen.len()).cloned().collect()
            };
            if *seen != there {
                let differs = seen.iter().zip(&there).find(|(a, b)| a != b);
                let (seen, there) = (seen.len(), there.len());
                violations.report(format!(
                    "a watch from {from} saw {seen} changes of {there}; first difference {differs:?}"
                ));
            }
        }
    }

    /// Returns the number of calls.
    pub(crate) fn calls(&self) -> usize {
        self.calls.lock().len()
    }

    /// Reports whether the current watch has seen a change that was written after its list. Writes that change if there
    /// is none: what the list has, the watch does not receive.
    pub(crate) async fn watch_sees_a_change(&self, client: &Client) -> bool {
        let (from, newest) = {
            let watched = self.watched.lock();
            let Some((from, seen)) = watched.last() else { return false };
            (*from, seen.last().map_or(0, |change| change.kv.mod_revision))
        };
        let last = *self.last.lock();
        if last <= from {
            // The checks need values that occur once, and the outcome of a failed call is unknown.
            let name = format!("last-{:x}", rt::random::<u64>());
            let map = json!({"metadata": {"name": name}, "data": {"v": name}});
            if let Ok(map) = client.create::<_, Value>(&MAPS, REGISTERS, &map).await {
                *self.last.lock() = revision(&map);
            }
            return false;
        }
        newest >= last
    }
}

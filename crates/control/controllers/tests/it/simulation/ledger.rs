//! The history of the store, and the promises that every change of it must keep.

use std::{collections::BTreeMap, ops::Bound, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use store::{Change, ChangeKind, KeyRange, KeyValue, Revision, Store, WatchMessage, WatchStream};
use tokio::time::Instant;

/// The broken promises of a run. Tasks report here, because a panic would end only the task.
#[derive(Clone, Default)]
pub(crate) struct Violations(Arc<Mutex<Vec<String>>>);

impl Violations {
    pub(crate) fn report(&self, what: String) {
        self.0.lock().push(what);
    }

    pub(crate) fn found(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// The namespace of the quota, and the prefixes of keys that it limits.
pub(crate) const LIMITED: &str = "limited";
pub(crate) const MOST_MAPS: usize = 3;
pub(crate) const MOST_PODS: usize = 2;

/// The longest time from a write until the ledger reads it.
pub(crate) const LAG: Duration = Duration::from_millis(100);

fn all_keys() -> KeyRange {
    KeyRange { start: String::new(), end: String::new() }
}

/// The history of all revisions, as a watch of the store delivers it across restarts.
pub(crate) struct Ledger {
    begun: Instant,
    stream: Option<Box<dyn WatchStream>>,
    revision: Revision,
    objects: BTreeMap<Arc<str>, KeyValue>,
    /// All changes, the oldest first.
    pub(crate) changes: Vec<Change>,
    /// A line for each change: milliseconds since the start, the operation, the key and the revision.
    pub(crate) trace: Vec<String>,
    /// The addresses of Services, with the keys of their Services.
    addresses: BTreeMap<String, Arc<str>>,
    /// The times of the last writes of Leases, by their keys.
    renewals: BTreeMap<Arc<str>, Instant>,
    violations: Violations,
}

impl Ledger {
    pub(crate) fn new(violations: Violations) -> Self {
        Self {
            begun: Instant::now(),
            stream: None,
            revision: 1,
            objects: BTreeMap::new(),
            changes: Vec::new(),
            trace: Vec::new(),
            addresses: BTreeMap::new(),
            renewals: BTreeMap::new(),
            violations,
        }
    }

    /// Continues with a store that was opened again. Every change that the ledger has must be in it.
    pub(crate) async fn resume(&mut self, store: &dyn Store) {
        match store.watch(all_keys(), self.revision).await {
            Ok(stream) => self.stream = Some(stream),
            Err(error) => {
                let at = self.revision;
                self.violations
                    .report(format!("changes up to {at} were shown, then lost: {error}"));
                return;
            }
        }
        // Neither future waits, so no write comes between them.
        let found = store.range(all_keys(), 0, 0).await.unwrap_or_default();
        self.read();
        let same = found.items.iter().eq(self.objects.values());
        if found.revision != self.revision || !same {
            let differs = found.items.iter().find(|kv| self.objects.get(&kv.key) != Some(kv));
            let missing = self.objects.keys().find(|k| !found.items.iter().any(|kv| kv.key == **k));
            self.violations.report(format!(
                "after a restart the store at {} is not the history up to {}: {differs:?}, missing {missing:?}",
                found.revision, self.revision
            ));
        }
    }

    /// Reads the changes that the store has shown.
    pub(crate) fn read(&mut self) {
        while let Some(message) = self.stream.as_mut().and_then(|s| s.next().now_or_never()) {
            match message {
                Some(WatchMessage::Changes(changes)) => {
                    changes.into_iter().for_each(|change| self.apply(change));
                }
                Some(WatchMessage::Progress(_)) => {}
                None => self.stream = None,
            }
        }
    }

    /// Reads the last changes of a store that has died.
    pub(crate) fn close(&mut self) {
        self.read();
        self.stream = None;
    }

    fn apply(&mut self, change: Change) {
        let KeyValue { key, mod_revision, .. } = &change.kv;
        let after = self.begun.elapsed().as_millis();
        let what = if change.kind == ChangeKind::Put { "put" } else { "delete" };
        // The name of the server's own lease contains its port, which is random.
        let own = "/registry/leases/kube-system/apiserver-";
        let shown = if key.starts_with(own) { own } else { key };
        self.trace.push(format!("{after} {what} {shown} {mod_revision}"));
        if *mod_revision != self.revision + 1 {
            self.violations.report(format!("{key}: {mod_revision} follows {}", self.revision));
        }
        self.revision = *mod_revision;
        let before = match change.kind {
            ChangeKind::Put => self.objects.insert(key.clone(), change.kv.clone()),
            ChangeKind::Delete => self.objects.remove(key),
        };
        self.check(&change, before.as_ref());
        self.changes.push(change);
    }

    fn check(&mut self, change: &Change, before: Option<&KeyValue>) {
        let key = &change.kv.key;
        let (old, new) = (before.map(parse).unwrap_or_default(), parse(&change.kv));
        let mut kept = Vec::new();
        if key.starts_with("/registry/services/specs/") {
            kept.push(self.addresses_are_unique(key, &old, &new));
        }
        if key.starts_with("/registry/volumeattachments/") {
            kept.push(self.attached_once(&new));
        }
        if key.starts_with("/registry/pods/") {
            kept.push(pod_keeps_node(&old, &new));
        }
        if key.starts_with("/registry/leases/") {
            kept.push(self.lease_is_kept(key, &old, &new));
        }
        kept.push(self.within_quota("configmaps", key, MOST_MAPS));
        kept.push(self.within_quota("pods", key, MOST_PODS));
        for broken in kept.into_iter().filter_map(Result::err) {
            self.violations.report(format!("{key} at {}: {broken}", change.kv.mod_revision));
        }
    }

    fn addresses_are_unique(
        &mut self,
        key: &Arc<str>,
        old: &Value,
        new: &Value,
    ) -> Result<(), String> {
        for address in addresses(old) {
            self.addresses.remove(address);
        }
        for address in addresses(new) {
            if let Some(other) = self.addresses.insert(address.to_owned(), key.clone()) {
                return Err(format!("{address} is that of {other} too"));
            }
        }
        Ok(())
    }

    /// The volume of a VolumeAttachment is attached to one node. All volumes of the simulation are ReadWriteOnce.
    fn attached_once(&self, new: &Value) -> Result<(), String> {
        if new["status"]["attached"] != true {
            return Ok(());
        }
        let others = self.under("/registry/volumeattachments/").map(parse);
        let on: Vec<String> = others
            .filter(|other| other["status"]["attached"] == true)
            .filter(|other| other["spec"]["source"] == new["spec"]["source"])
            .map(|other| other["spec"]["nodeName"].to_string())
            .collect();
        if on.len() > 1 { Err(format!("attached to {on:?}")) } else { Ok(()) }
    }

    /// A holder keeps its lease until it gives it up or has not renewed it for the lease's duration.
    fn lease_is_kept(&mut self, key: &Arc<str>, old: &Value, new: &Value) -> Result<(), String> {
        let holder = |lease: &Value| lease["spec"]["holderIdentity"].as_str().map(str::to_owned);
        let renewed = self.renewals.insert(key.clone(), Instant::now());
        let (Some(from), Some(to), Some(renewed)) = (holder(old), holder(new), renewed) else {
            return Ok(());
        };
        let seconds = old["spec"]["leaseDurationSeconds"].as_u64().unwrap_or_default();
        let held = renewed.elapsed();
        let expired = held + LAG >= Duration::from_secs(seconds);
        if expired || from.is_empty() || to.is_empty() || from == to {
            return Ok(());
        }
        Err(format!("{to} took the lease of {from} after {held:?} of {seconds} s"))
    }

    fn within_quota(&self, plural: &str, key: &str, most: usize) -> Result<(), String> {
        let prefix = format!("/registry/{plural}/{LIMITED}/");
        if !key.starts_with(&prefix) {
            return Ok(());
        }
        let there = self.under(&prefix).count();
        if there > most { Err(format!("{there} {plural}, quota {most}")) } else { Ok(()) }
    }

    /// Returns the objects whose keys begin with `prefix`.
    pub(crate) fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a KeyValue> {
        let from = self.objects.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.take_while(move |(key, _)| key.starts_with(prefix)).map(|(_, kv)| kv)
    }
}

pub(crate) fn parse(kv: &KeyValue) -> Value {
    serde_json::from_slice(&kv.value).unwrap_or_default()
}

fn addresses(service: &Value) -> impl Iterator<Item = &str> {
    let all = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
    all.filter_map(Value::as_str).filter(|address| *address != "None")
}

/// A Pod is bound once.
fn pod_keeps_node(old: &Value, new: &Value) -> Result<(), String> {
    let (from, to) = (&old["spec"]["nodeName"], &new["spec"]["nodeName"]);
    if old["metadata"]["uid"] == new["metadata"]["uid"] && from.is_string() && from != to {
        return Err(format!("it moved from {from} to {to}"));
    }
    Ok(())
}

//! The memory index: every retained version of every key, and the order of their revisions.
//!
//! Invariants: each revision above `floor` is exactly one version of one key, found through `history`. At or below
//! `floor`, a key keeps only its newest version, and only if it is not a deletion.

use std::{
    collections::{
        BTreeMap, VecDeque,
        btree_map::Entry::{Occupied, Vacant},
    },
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    error::{Error, Result},
    key_value::{KeyRange, KeyValue, RangeResult, Revision},
    watch::{Change, ChangeKind},
};

/// The revision of an empty store, as in etcd: 0 has a meaning of its own in the API.
pub(super) const FIRST_REVISION: Revision = 1;
/// The approximate memory of a version besides its key and value, in bytes.
const OVERHEAD: u64 = 128;

/// A version of a key; a deletion has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) mod_revision: Revision,
    pub(super) create_revision: Revision,
    pub(super) version: u64,
    /// Milliseconds of Unix time; 0 for never.
    pub(super) expires: u64,
    pub(super) value: Option<Bytes>,
}

impl Version {
    fn cost(&self, key: &str) -> u64 {
        cost(key, self.value.as_ref().map_or(0, Bytes::len))
    }

    fn key_value(&self, key: &Arc<str>) -> Option<KeyValue> {
        self.value.as_ref().map(|value| KeyValue {
            key: key.clone(),
            value: value.clone(),
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
        })
    }
}

pub(super) fn cost(key: &str, value: usize) -> u64 {
    (key.len() + value) as u64 + OVERHEAD
}

struct Entry {
    latest: Version,
    /// Superseded versions, oldest first. Empty for most keys, and then without an allocation.
    older: Vec<Version>,
}

impl Entry {
    fn at(&self, revision: Revision) -> Option<&Version> {
        if self.latest.mod_revision <= revision {
            return Some(&self.latest);
        }
        let after = self.older.partition_point(|version| version.mod_revision <= revision);
        after.checked_sub(1).map(|last| &self.older[last])
    }
}

/// The memory index of a store.
pub(crate) struct Index {
    keys: BTreeMap<Arc<str>, Entry>,
    /// `history[i]` is the key written at revision `floor + 1 + i`.
    history: VecDeque<Arc<str>>,
    floor: Revision,
    revision: Revision,
    bytes: u64,
    superseded: u64,
}

/// A copy of an index's contents that shares its values.
pub(crate) struct Dump {
    pub(crate) revision: Revision,
    pub(super) floor: Revision,
    pub(super) versions: Vec<(Arc<str>, Version)>,
}

impl Dump {
    /// Builds a dump of another engine's keys at one revision. Each item is a key's newest version and its expiry.
    pub(crate) fn from_items(
        revision: Revision,
        items: impl Iterator<Item = (KeyValue, u64)>,
    ) -> Self {
        let version = |(item, expires): (KeyValue, u64)| {
            let version = Version {
                mod_revision: item.mod_revision,
                create_revision: item.create_revision,
                version: item.version,
                expires,
                value: Some(item.value),
            };
            (item.key, version)
        };
        Self { revision, floor: revision, versions: items.map(version).collect() }
    }

    /// Raises the revision. Only the newest version of each live key is kept, so reads between the old and the new
    /// revision fail as compacted.
    pub(crate) fn bump(&mut self, by: u64) {
        let mut versions: Vec<(Arc<str>, Version)> = Vec::new();
        for (key, version) in self.versions.drain(..) {
            if versions.last().is_some_and(|(last, _)| *last == key) {
                versions.pop();
            }
            versions.push((key, version));
        }
        versions.retain(|(_, version)| version.value.is_some());
        self.versions = versions;
        self.revision += by;
        self.floor = self.revision;
    }
}

impl Index {
    pub(super) fn new(revision: Revision, floor: Revision) -> Self {
        Self {
            keys: BTreeMap::new(),
            history: VecDeque::new(),
            floor,
            revision,
            bytes: 0,
            superseded: 0,
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn floor(&self) -> Revision {
        self.floor
    }

    /// Returns the cost of all retained versions, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes that a compaction up to now would free.
    pub(super) fn superseded(&self) -> u64 {
        self.superseded
    }

    pub(super) fn get(&self, key: &str) -> Option<KeyValue> {
        let (key, entry) = self.keys.get_key_value(key)?;
        entry.latest.key_value(key)
    }

    pub(super) fn range(
        &self,
        range: &KeyRange,
        limit: usize,
        revision: Revision,
    ) -> Result<RangeResult> {
        let revision = self.readable(revision)?;
        let mut result = RangeResult { revision, ..RangeResult::default() };
        if !range.end.is_empty() && range.end <= range.start {
            return Ok(result);
        }
        for (key, entry) in self.keys.range::<str, _>(range.bounds()) {
            let Some(version) = entry.at(revision).filter(|version| version.value.is_some()) else {
                continue;
            };
            result.count += 1;
            if limit == 0 || result.items.len() < limit {
                result.items.extend(version.key_value(key));
            } else {
                result.more = true;
            }
        }
        Ok(result)
    }

    fn readable(&self, revision: Revision) -> Result<Revision> {
        if revision > self.revision {
            return Err(Error::FutureRevision { requested: revision, current: self.revision });
        }
        if revision != 0 && revision < self.floor {
            return Err(Error::Compacted { requested: revision, oldest: self.floor });
        }
        Ok(if revision == 0 { self.revision } else { revision })
    }

    /// Applies the change of the next revision.
    pub(super) fn apply(&mut self, change: &Change, expires: u64) {
        let kv = &change.kv;
        debug_assert_eq!(kv.mod_revision, self.revision + 1);
        let value = (change.kind == ChangeKind::Put).then(|| kv.value.clone());
        let version = Version {
            mod_revision: kv.mod_revision,
            create_revision: kv.create_revision,
            version: kv.version,
            expires,
            value,
        };
        self.revision = kv.mod_revision;
        let key = self.insert(&kv.key, version);
        self.history.push_back(key);
    }

    /// Adds a version newer than all others of its key. Returns the index's shared copy of the key.
    fn insert(&mut self, key: &Arc<str>, version: Version) -> Arc<str> {
        let cost = version.cost(key);
        self.bytes += cost;
        if version.value.is_none() {
            self.superseded += cost;
        }
        match self.keys.entry(key.clone()) {
            Vacant(entry) => {
                entry.insert(Entry { latest: version, older: Vec::new() });
                key.clone()
            }
            Occupied(mut occupied) => {
                let entry = occupied.get_mut();
                let old = std::mem::replace(&mut entry.latest, version);
                if old.value.is_some() {
                    self.superseded += old.cost(key);
                }
                if entry.older.is_empty() {
                    // Most keys have few superseded versions at a time, so the default capacity of four would mostly be
                    // wasted.
                    entry.older.reserve_exact(1);
                }
                entry.older.push(old);
                occupied.key().clone()
            }
        }
    }

    /// Returns the changes in `(after, through]` to keys in `range`, oldest first.
    pub(super) fn changes(
        &self,
        range: &KeyRange,
        after: Revision,
        through: Revision,
    ) -> Result<Vec<Change>> {
        if after < self.floor {
            return Err(Error::Compacted { requested: after, oldest: self.floor });
        }
        let from = (after - self.floor) as usize;
        let to = (through.min(self.revision) - self.floor) as usize;
        let mut changes = Vec::new();
        for (offset, key) in self.history.range(from..to.max(from)).enumerate() {
            if range.contains(key) {
                changes.extend(self.change(key, after + 1 + offset as u64));
            }
        }
        Ok(changes)
    }

    fn change(&self, key: &Arc<str>, revision: Revision) -> Option<Change> {
        let entry = self.keys.get(key)?;
        let version = entry.at(revision)?;
        Some(match version.key_value(key) {
            Some(kv) => Change { kind: ChangeKind::Put, kv },
            None => Change { kind: ChangeKind::Delete, kv: tombstone(key, revision) },
        })
    }

    /// Discards versions superseded up to `revision`, at most `steps` revisions per call; returns `true` when done.
    pub(super) fn compact(&mut self, revision: Revision, steps: usize) -> bool {
        for _ in 0..steps {
            if self.floor >= revision.min(self.revision) {
                self.release_history();
                return true;
            }
            self.raise_floor();
        }
        false
    }

    /// Frees the memory of a history that has become much shorter.
    fn release_history(&mut self) {
        if self.history.capacity() / 4 > self.history.len() {
            self.history.shrink_to(2 * self.history.len());
        }
    }

    /// Discards the oldest revisions, at most `steps`, until superseded versions cost at most `limit`; returns `true`
    /// when done.
    pub(super) fn compact_to_bytes(&mut self, limit: u64, steps: usize) -> bool {
        for _ in 0..steps {
            if self.superseded <= limit || self.floor >= self.revision {
                return true;
            }
            self.raise_floor();
        }
        false
    }

    /// Raises the floor by one revision. The key written at that revision loses all earlier versions.
    fn raise_floor(&mut self) {
        self.floor += 1;
        let Some(key) = self.history.pop_front() else { return };
        let Some(entry) = self.keys.get_mut(&key) else { return };
        let floor = self.floor;
        let keep = entry
            .older
            .iter()
            .position(|version| {
                version.mod_revision > floor
                    || (version.mod_revision == floor && version.value.is_some())
            })
            .unwrap_or(entry.older.len());
        for version in entry.older.drain(..keep) {
            self.bytes -= version.cost(&key);
            self.superseded -= version.cost(&key);
        }
        if entry.older.is_empty() {
            entry.older = Vec::new();
            if entry.latest.value.is_none() && entry.latest.mod_revision <= floor {
                self.bytes -= entry.latest.cost(&key);
                self.superseded -= entry.latest.cost(&key);
                self.keys.remove(&key);
            }
        }
    }

    /// Returns the keys that expire, with their expiry and revision.
    pub(super) fn expiring(&self) -> impl Iterator<Item = (u64, Revision, Arc<str>)> + '_ {
        self.keys
            .iter()
            .filter(|(_, entry)| entry.latest.expires != 0)
            .map(|(key, entry)| (entry.latest.expires, entry.latest.mod_revision, key.clone()))
    }

    pub(crate) fn live_keys(&self) -> u64 {
        self.keys.values().filter(|entry| entry.latest.value.is_some()).count() as u64
    }

    pub(crate) fn dump(&self) -> Dump {
        let mut versions = Vec::with_capacity(self.keys.len() + self.history.len());
        for (key, entry) in &self.keys {
            for version in entry.older.iter().chain([&entry.latest]) {
                versions.push((key.clone(), version.clone()));
            }
        }
        Dump { revision: self.revision, floor: self.floor, versions }
    }

    /// Rebuilds an index from a dump's versions, in the order of [`Index::dump`]. Returns `None` if revisions are
    /// missing.
    pub(super) fn load(
        revision: Revision,
        floor: Revision,
        versions: impl Iterator<Item = Result<(Arc<str>, Version)>>,
    ) -> Result<Option<Self>> {
        let mut index = Self::new(revision, floor);
        let mut history = vec![None; revision.saturating_sub(floor) as usize];
        for version in versions {
            let (key, version) = version?;
            let at = version.mod_revision;
            if at > revision {
                return Ok(None);
            }
            let key = index.insert(&key, version);
            if at > floor {
                history[(at - floor - 1) as usize] = Some(key);
            }
        }
        let complete: Option<VecDeque<_>> = history.into_iter().collect();
        Ok(complete.map(|history| Self { history, ..index }))
    }
}

/// Returns the key-value that represents a deletion.
pub(super) fn tombstone(key: &Arc<str>, revision: Revision) -> KeyValue {
    KeyValue {
        key: key.clone(),
        value: Bytes::new(),
        create_revision: 0,
        mod_revision: revision,
        version: 0,
    }
}

/// Returns the key-value that putting `value` at `revision` creates.
pub(super) fn successor(
    previous: Option<&KeyValue>,
    key: &Arc<str>,
    value: Bytes,
    revision: Revision,
) -> KeyValue {
    KeyValue {
        key: previous.map_or(key, |previous| &previous.key).clone(),
        value,
        create_revision: previous.map_or(revision, |previous| previous.create_revision),
        mod_revision: revision,
        version: previous.map_or(1, |previous| previous.version + 1),
    }
}

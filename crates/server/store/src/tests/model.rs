//! A simple model of a store, and a script runner that compares an engine with it.
//!
//! The script is a list of numbers, one per step, so any property-testing library can generate and shrink it. The
//! runner must be the only writer of the store while it runs.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    Change, ChangeKind, Error, Expected, KeyRange, KeyValue, Op, Outcome, Revision, Store,
    WatchMessage, WatchStream, Write,
};

const KEYS: u64 = 6;

/// The result of a check, with the difference in words.
pub type Verdict<T = ()> = Result<T, String>;

/// The expected contents of the store.
pub struct Model {
    prefix: String,
    /// Every change since the model began, oldest first.
    changes: Vec<Change>,
    live: BTreeMap<String, KeyValue>,
    revision: Revision,
    /// The store's revision when the model began; older reads are not compared.
    began: Revision,
    floor: Revision,
    writes: u64,
    watches: Vec<Watching>,
    resumed: u64,
}

struct Watching {
    stream: Box<dyn WatchStream>,
    range: KeyRange,
    /// Everything up to this revision has been delivered and compared.
    seen: Revision,
}

/// Runs a whole script against a store, under keys that begin with `prefix`. Returns how many watches ended early and
/// were resumed.
pub async fn check(store: &dyn Store, prefix: &str, script: &[u64]) -> Verdict<u64> {
    let mut model = Model::begin(store, prefix).await?;
    for number in script {
        model.step(store, *number).await.map_err(|error| format!("step {number}: {error}"))?;
    }
    model.settle(store).await?;
    Ok(model.resumed)
}

impl Model {
    /// Creates a model of the store from its present revision on, for keys that begin with `prefix`.
    pub async fn begin(store: &dyn Store, prefix: &str) -> Verdict<Self> {
        let revision = store.revision().await.map_err(words)?;
        Ok(Self {
            prefix: prefix.to_owned(),
            changes: Vec::new(),
            live: BTreeMap::new(),
            revision,
            began: revision,
            floor: revision,
            writes: 0,
            watches: Vec::new(),
            resumed: 0,
        })
    }

    /// Runs one step of the script.
    pub async fn step(&mut self, store: &dyn Store, number: u64) -> Verdict {
        let mut dice = Dice(number);
        match dice.roll(16) {
            0..=6 => self.write(store, &mut dice).await,
            7 | 8 => self.delete(store, &mut dice).await,
            9 => self.get(store, &mut dice).await,
            10..=12 => self.range(store, &mut dice).await,
            13 => self.watch(store, &mut dice).await,
            14 => self.compact(store, &mut dice).await,
            _ => self.catch_up(store).await,
        }
    }

    /// Compares reads and watches at the end of a script.
    pub async fn settle(&mut self, store: &dyn Store) -> Verdict {
        self.catch_up(store).await?;
        // A change that a watch delivers twice would come before this one.
        let (key, value) = (format!("{}0", self.prefix), Bytes::from_static(b"the end"));
        let op = Op::Put { value: value.clone(), ttl_seconds: None };
        self.submit(store, key, Expected::Any, op, Some(value)).await?;
        self.catch_up(store).await?;
        let all = KeyRange::prefix(&self.prefix);
        for revision in [0].into_iter().chain(self.floor.max(1)..=self.revision) {
            self.compare_range(store, &all, 0, revision).await?;
        }
        let latest = store.revision().await.map_err(words)?;
        same("revision", &latest, &self.revision)
    }

    /// Drops the watches, which end with the store. A model that continues with a reopened store creates new ones.
    pub fn forget_watches(&mut self) {
        self.watches.clear();
    }

    fn key(&self, dice: &mut Dice) -> String {
        format!("{}{}", self.prefix, dice.roll(KEYS))
    }

    fn expected(&self, dice: &mut Dice, key: &str) -> Expected {
        let current = self.live.get(key).map_or(0, |kv| kv.mod_revision);
        match dice.roll(5) {
            0 => Expected::Any,
            1 => Expected::ModRevision(0),
            2 => Expected::ModRevision(current.saturating_sub(1)),
            _ => Expected::ModRevision(current),
        }
    }

    async fn write(&mut self, store: &dyn Store, dice: &mut Dice) -> Verdict {
        let key = self.key(dice);
        let expected = self.expected(dice, &key);
        self.writes += 1;
        let value = Bytes::from(format!("{}-{}", self.writes, "x".repeat(dice.roll(200) as usize)));
        let op = Op::Put { value: value.clone(), ttl_seconds: None };
        self.submit(store, key, expected, op, Some(value)).await
    }

    async fn delete(&mut self, store: &dyn Store, dice: &mut Dice) -> Verdict {
        let key = self.key(dice);
        let expected = self.expected(dice, &key);
        self.submit(store, key, expected, Op::Delete, None).await
    }

    async fn submit(
        &mut self,
        store: &dyn Store,
        key: String,
        expected: Expected,
        op: Op,
        value: Option<Bytes>,
    ) -> Verdict {
        let write = Write { key: key.as_str().into(), expected, op };
        let outcome = store.write(write).await.map_err(words)?;
        let current = self.live.get(&key).cloned();
        let found = current.as_ref().map_or(0, |kv| kv.mod_revision);
        if expected != Expected::Any && expected != Expected::ModRevision(found) {
            return same("outcome", &outcome, &Outcome::Conflict { current });
        }
        if value.is_some() || current.is_some() {
            self.revision += 1;
            self.apply(key, value, current);
        }
        let done = Outcome::Done { revision: self.revision };
        same("outcome", &outcome, &done)
    }

    fn apply(&mut self, key: String, value: Option<Bytes>, previous: Option<KeyValue>) {
        let kind = if value.is_some() { ChangeKind::Put } else { ChangeKind::Delete };
        let kv = KeyValue {
            key: key.as_str().into(),
            create_revision: match (&value, &previous) {
                (None, _) => 0,
                (Some(_), Some(previous)) => previous.create_revision,
                (Some(_), None) => self.revision,
            },
            version: match &value {
                None => 0,
                Some(_) => previous.as_ref().map_or(1, |previous| previous.version + 1),
            },
            value: value.unwrap_or_default(),
            mod_revision: self.revision,
        };
        match kind {
            ChangeKind::Put => self.live.insert(key, kv.clone()),
            ChangeKind::Delete => self.live.remove(&key),
        };
        self.changes.push(Change { kind, kv });
    }

    async fn get(&self, store: &dyn Store, dice: &mut Dice) -> Verdict {
        let key = self.key(dice);
        let (found, revision) = store.get(&key).await.map_err(words)?;
        same("get", &found.as_ref(), &self.live.get(&key))?;
        same("get's revision", &revision, &self.revision)
    }

    async fn range(&self, store: &dyn Store, dice: &mut Dice) -> Verdict {
        let range = self.some_range(dice);
        let limit = dice.roll(4) as usize;
        let revision = match dice.roll(4) {
            0 | 1 => 0,
            2 => self.revision - dice.roll(1 + self.revision - self.began),
            _ => self.revision + dice.roll(2),
        };
        self.compare_range(store, &range, limit, revision).await
    }

    fn some_range(&self, dice: &mut Dice) -> KeyRange {
        let (from, length) = (dice.roll(KEYS), dice.roll(KEYS));
        if length == 0 {
            return KeyRange::prefix(&self.prefix);
        }
        let to = from + length;
        KeyRange { start: format!("{}{from}", self.prefix), end: format!("{}{to:x}", self.prefix) }
    }

    async fn compare_range(
        &self,
        store: &dyn Store,
        range: &KeyRange,
        limit: usize,
        revision: Revision,
    ) -> Verdict {
        let result = match store.range(range.clone(), limit, revision).await {
            Err(Error::Compacted { .. }) if revision < self.floor => return Ok(()),
            Err(Error::FutureRevision { .. }) if revision > self.revision => return Ok(()),
            Err(error) => return Err(format!("range at {revision}: {error}")),
            Ok(_) if revision > self.revision => return Err("read the future".to_owned()),
            Ok(_) if revision != 0 && revision < self.floor => {
                return Err(format!("read {revision}, compacted at {}", self.floor));
            }
            Ok(result) => result,
        };
        let at = if revision == 0 { self.revision } else { revision };
        let all = self.state_at(at, range);
        let wanted = if limit == 0 { &all[..] } else { &all[..limit.min(all.len())] };
        same(&format!("range {range:?} at {at}"), &result.items.as_slice(), &wanted)?;
        same("count", &result.count, &(all.len() as u64))?;
        same("more", &result.more, &(wanted.len() < all.len()))
    }

    fn state_at(&self, revision: Revision, range: &KeyRange) -> Vec<KeyValue> {
        let mut state = BTreeMap::new();
        for change in self.changes.iter().filter(|change| change.kv.mod_revision <= revision) {
            match change.kind {
                ChangeKind::Put => state.insert(change.kv.key.clone(), change.kv.clone()),
                ChangeKind::Delete => state.remove(&change.kv.key),
            };
        }
        state.into_values().filter(|kv| range.contains(&kv.key)).collect()
    }

    async fn watch(&mut self, store: &dyn Store, dice: &mut Dice) -> Verdict {
        let range = self.some_range(dice);
        let back = dice.roll(1 + self.revision - self.began);
        let after = if dice.roll(3) == 0 { 0 } else { self.revision - back };
        match store.watch(range.clone(), after).await {
            Err(Error::Compacted { .. }) if after < self.floor && after != 0 => Ok(()),
            Ok(_) if after < self.floor && after != 0 => {
                Err(format!("watch after {after}, compacted at {}", self.floor))
            }
            Err(error) => Err(format!("watch after {after}: {error}")),
            Ok(stream) => {
                let seen = if after == 0 { self.revision } else { after };
                self.watches.push(Watching { stream, range, seen });
                Ok(())
            }
        }
    }

    async fn compact(&mut self, store: &dyn Store, dice: &mut Dice) -> Verdict {
        // Let the watches catch up first, because compaction may discard their changes.
        self.catch_up(store).await?;
        let revision = self.revision - dice.roll(1 + self.revision - self.began).min(8);
        store.compact(revision).await.map_err(words)?;
        self.floor = self.floor.max(revision);
        Ok(())
    }

    /// Reads every watch until it has delivered all expected changes.
    async fn catch_up(&mut self, store: &dyn Store) -> Verdict {
        store.request_progress().await.map_err(words)?;
        for watching in &mut self.watches {
            let wanted: Vec<Change> = self
                .changes
                .iter()
                .filter(|change| change.kv.mod_revision > watching.seen)
                .filter(|change| watching.range.contains(&change.kv.key))
                .cloned()
                .collect();
            let (mut changes, mut resumed) = (Vec::new(), false);
            while changes.len() < wanted.len() {
                match watching.stream.next().await {
                    None if resumed => return Err(format!("a watch ended after {changes:?}")),
                    None => {
                        // Compaction may overtake a watch that has nothing to deliver.
                        resumed = true;
                        self.resumed += 1;
                        changes.clear();
                        let again = store.watch(watching.range.clone(), watching.seen).await;
                        watching.stream = again.map_err(words)?;
                    }
                    Some(WatchMessage::Changes(more)) => changes.extend(more),
                    Some(WatchMessage::Progress(revision)) => {
                        let missing = &wanted[changes.len()].kv;
                        if revision >= missing.mod_revision {
                            return Err(format!("progress {revision} came before {missing:?}"));
                        }
                    }
                }
            }
            same("watched changes", &changes, &wanted)?;
            watching.seen = self.revision;
        }
        Ok(())
    }
}

/// A number used as a source of random choices, digit by digit.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        let side = self.0 % sides;
        self.0 /= sides;
        side
    }
}

fn words(error: Error) -> String {
    error.to_string()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, wanted: &T) -> Verdict {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what}: found {found:?}, wanted {wanted:?}"))
}

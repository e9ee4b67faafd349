//! A batch: the writes that share one frame and one sync.
//!
//! Each write sees the earlier writes of the batch, as if they came one by one. All replies wait until the frame is
//! durable. Conflicts wait too, because they may report a value of this very frame.

use std::{collections::HashMap, sync::Arc, time::UNIX_EPOCH};

use rt::Clock;

use super::{
    frame,
    index::{Index, cost, successor, tombstone},
    record::{self, Step},
};
use crate::{
    error::{Error, Result},
    key_value::{KeyValue, Revision},
    watch::{Change, ChangeKind},
    write::{Expected, Op, Outcome, Write},
};

const FULL_BYTES: usize = 4 << 20;
const FULL_CHANGES: usize = 4096;

/// A change whose frame is not yet durable.
pub(super) struct StagedChange {
    pub(super) change: Change,
    pub(super) expires: u64,
}

/// A batch that collects writes.
pub(super) struct Batch<'a> {
    index: &'a Index,
    clock: &'a dyn Clock,
    quota: u64,
    frame: Vec<u8>,
    first: Revision,
    staged: Vec<StagedChange>,
    /// The keys written in this batch, with their new values.
    overlay: HashMap<Arc<str>, Option<KeyValue>>,
    bytes: u64,
    records: usize,
}

/// A complete batch, ready to be appended to the log.
pub(super) struct SealedBatch {
    pub(super) frame: Vec<u8>,
    pub(super) first: Revision,
    pub(super) staged: Vec<StagedChange>,
    /// `true` if the frame must be made durable.
    pub(super) writes: bool,
}

impl<'a> Batch<'a> {
    /// Starts a batch. `frame` is a buffer to reuse.
    pub(super) fn new(
        index: &'a Index,
        clock: &'a dyn Clock,
        quota: u64,
        mut frame: Vec<u8>,
    ) -> Self {
        let first = index.revision() + 1;
        frame::begin(&mut frame);
        record::put_first_revision(&mut frame, first);
        Self {
            index,
            clock,
            quota,
            frame,
            first,
            staged: Vec::new(),
            overlay: HashMap::new(),
            bytes: 0,
            records: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.frame.len() >= FULL_BYTES || self.records >= FULL_CHANGES
    }

    pub(super) fn seal(self) -> SealedBatch {
        SealedBatch {
            frame: self.frame,
            first: self.first,
            staged: self.staged,
            writes: self.records > 0,
        }
    }

    /// Returns the revision of the newest write, durable or staged.
    fn revision(&self) -> Revision {
        self.first - 1 + self.staged.len() as u64
    }

    fn current(&self, key: &str) -> Option<KeyValue> {
        match self.overlay.get(key) {
            Some(staged) => staged.clone(),
            None => self.index.get(key),
        }
    }

    /// Stages a write and returns the outcome to send once it is durable.
    pub(super) fn write(&mut self, write: Write) -> Result<Outcome> {
        let current = self.current(&write.key);
        if let Expected::ModRevision(expected) = write.expected
            && expected != current.as_ref().map_or(0, |kv| kv.mod_revision)
        {
            return Ok(Outcome::Conflict { current });
        }
        match write.op {
            Op::Delete if current.is_none() => Ok(Outcome::Done { revision: self.revision() }),
            Op::Delete => Ok(self.delete(&write.key)),
            Op::Put { value, ttl_seconds } => {
                let needed = self.index.bytes() + self.bytes + cost(&write.key, value.len());
                if needed > self.quota {
                    let detail = format!(
                        "writing {} would take {needed} bytes of the {} that are allowed; delete \
                         objects or raise the quota",
                        write.key, self.quota
                    );
                    return Err(Error::NoSpace { detail });
                }
                let expires = ttl_seconds.map_or(0, |ttl| self.expiry(ttl));
                Step::Put { key: &write.key, value: &value, expires }.encode(&mut self.frame);
                let kv = successor(current.as_ref(), &write.key, value, self.revision() + 1);
                Ok(self.stage(ChangeKind::Put, kv, expires))
            }
        }
    }

    /// Stages the deletion of an expired key, unless it has been written since `revision`.
    pub(super) fn expire(&mut self, key: &Arc<str>, revision: Revision) {
        if self.current(key).is_some_and(|kv| kv.mod_revision == revision) {
            self.delete(key);
        }
    }

    /// Stages a compaction; returns `false` if `revision` is already compacted.
    pub(super) fn compact(&mut self, revision: Revision) -> Result<bool> {
        let current = self.revision();
        if revision > current {
            return Err(Error::FutureRevision { requested: revision, current });
        }
        if revision <= self.index.floor() {
            return Ok(false);
        }
        Step::Compact { revision }.encode(&mut self.frame);
        self.records += 1;
        Ok(true)
    }

    fn delete(&mut self, key: &Arc<str>) -> Outcome {
        Step::Delete { key }.encode(&mut self.frame);
        let kv = tombstone(key, self.revision() + 1);
        self.stage(ChangeKind::Delete, kv, 0)
    }

    fn stage(&mut self, kind: ChangeKind, kv: KeyValue, expires: u64) -> Outcome {
        self.records += 1;
        self.bytes += cost(&kv.key, kv.value.len());
        let next = (kind == ChangeKind::Put).then(|| kv.clone());
        self.overlay.insert(kv.key.clone(), next);
        let revision = kv.mod_revision;
        self.staged.push(StagedChange { change: Change { kind, kv }, expires });
        Outcome::Done { revision }
    }

    fn expiry(&self, ttl_seconds: u64) -> u64 {
        unix_millis(self.clock).saturating_add(ttl_seconds.saturating_mul(1000)).max(1)
    }
}

pub(super) fn unix_millis(clock: &dyn Clock) -> u64 {
    clock.now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

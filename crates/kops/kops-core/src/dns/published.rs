//! The names that this process has written, and the writes that are due.

use std::{collections::BTreeMap, time::Duration};

use api_meta::Timestamp;

use super::wanted::Records;

/// The time to live of records in seconds, as upstream's. A name without a claim is removed after this time.
pub const TTL: u32 = 60;
/// The pause after the first failed write of a name. It doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause, as upstream's.
const LONGEST_PAUSE: Duration = Duration::from_secs(160);
/// The most names and records of one request to a provider.
const BATCH_NAMES: usize = 20;
const BATCH_RECORDS: usize = 200;

/// The records that a name needs. Without records, the name is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The name.
    pub name: String,
    /// All A, AAAA and CNAME records of the name.
    pub records: Records,
}

/// The state of a name at the provider, as far as this process knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    /// This process has written nothing, so the records belong to another writer.
    #[default]
    Foreign,
    /// A write has failed with an unknown outcome.
    Unknown,
    /// These records were written.
    Written(Records),
}

#[derive(Clone, Debug, Default)]
struct Entry {
    state: State,
    failures: u32,
    retry_at: Option<Timestamp>,
    /// The time since which no object claims the name.
    unclaimed_since: Option<Timestamp>,
}

impl Entry {
    fn is_waiting(&self, now: Timestamp) -> bool {
        self.retry_at.is_some_and(|retry| now < retry)
    }
}

/// The names that this process has written or tried to write.
#[derive(Clone, Debug, Default)]
pub struct Published {
    names: BTreeMap<String, Entry>,
}

impl Published {
    /// Returns the writes that are due. `wanted` has all claimed names.
    ///
    /// A name without records is not changed while an object claims it. An unclaimed name is removed after [`TTL`], if
    /// this process wrote it. The grace covers static Pods, which the kubelet deletes and creates again.
    pub fn changes(&mut self, wanted: &BTreeMap<String, Records>, now: Timestamp) -> Vec<Change> {
        let mut changes = Vec::new();
        self.names.retain(|name, entry| {
            if wanted.contains_key(name) {
                entry.unclaimed_since = None;
                return true;
            }
            let since = *entry.unclaimed_since.get_or_insert(now);
            if entry.state == State::Foreign {
                return false;
            }
            if now.since(since) >= Duration::from_secs(TTL.into()) && !entry.is_waiting(now) {
                changes.push(Change { name: name.clone(), records: Records::default() });
            }
            true
        });
        for (name, records) in wanted.iter().filter(|(_, records)| !records.is_empty()) {
            let is_due = self.names.get(name).is_none_or(|entry| {
                let is_written = matches!(&entry.state, State::Written(last) if last == records);
                !is_written && !entry.is_waiting(now)
            });
            if is_due {
                changes.push(Change { name: name.clone(), records: records.clone() });
            }
        }
        changes
    }

    /// Records that a change was made.
    pub fn succeeded(&mut self, change: &Change) {
        if change.records.is_empty() {
            self.names.remove(&change.name);
            return;
        }
        let entry = self.names.entry(change.name.clone()).or_default();
        *entry = Entry {
            state: State::Written(change.records.clone()),
            unclaimed_since: entry.unclaimed_since,
            ..Entry::default()
        };
    }

    /// Records that a change failed, and delays the next attempt. `rejected` is `true` if the provider has certainly
    /// not made the change.
    pub fn failed(&mut self, change: &Change, rejected: bool, now: Timestamp) {
        let entry = self.names.entry(change.name.clone()).or_default();
        if !rejected {
            entry.state = State::Unknown;
        }
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(entry.failures.min(10));
        entry.retry_at = Some(now.plus(pause.min(LONGEST_PAUSE)));
        entry.failures += 1;
    }
}

/// Divides changes into requests of bounded size.
pub fn batches(changes: &[Change]) -> Vec<&[Change]> {
    let (mut batches, mut start, mut records) = (Vec::new(), 0, 0);
    for (end, change) in changes.iter().enumerate() {
        let is_full = end - start == BATCH_NAMES || records + change.records.len() > BATCH_RECORDS;
        if is_full && end > start {
            batches.push(&changes[start..end]);
            (start, records) = (end, 0);
        }
        records += change.records.len();
    }
    batches.extend(Some(&changes[start..]).filter(|rest| !rest.is_empty()));
    batches
}

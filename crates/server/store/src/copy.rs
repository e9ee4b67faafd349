//! Copies all keys of one store into another of any engine: to migrate to or from etcd, and to restore.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use crate::{
    compactor::COMPACTION_KEY,
    engine::Store,
    error::{Error, Result},
    key_value::{KeyRange, KeyValue, Revision},
    write::{Expected, Op, Write},
};

/// The number of keys read per page, and the number of concurrent writes.
const PAGE: usize = 1000;
const IN_FLIGHT: usize = 64;
/// The key written until the revision is high enough, then deleted.
const MARK: &str = "/windlass/copy";

/// The roles of keys in a copy, by prefix. The store itself knows none of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keyspace {
    /// The prefix of keys that other keys depend on. They are copied first; empty for none.
    pub first: &'static str,
    /// Prefixes of keys that expire, with their time to live in seconds.
    pub expiring: &'static [(&'static str, u64)],
    /// Prefixes of keys that are not copied.
    pub excluded: &'static [&'static str],
}

impl Keyspace {
    fn keeps(&self, key: &str) -> bool {
        key != COMPACTION_KEY && !self.excluded.iter().any(|prefix| key.starts_with(prefix))
    }

    pub(crate) fn ttl(&self, key: &str) -> Option<u64> {
        let found = self.expiring.iter().find(|(prefix, _)| key.starts_with(prefix));
        found.map(|(_, seconds)| *seconds)
    }
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// The number of copied keys.
    pub keys: u64,
    /// The source's revision.
    pub from: Revision,
    /// The target's revision.
    pub to: Revision,
}

/// Copies every key of `from`, as it is now, into `to`, which must be empty.
///
/// The target continues at the source's revision plus `bump`, so no client meets a revision of the source with another
/// meaning. Older revisions are compacted, so clients list again.
pub async fn copy(
    from: &dyn Store,
    to: &dyn Store,
    bump: u64,
    keyspace: Keyspace,
) -> Result<CopyReport> {
    let existing = to.range(everything(), 1, 0).await?;
    if existing.count > 0 {
        return Err(Error::NotEmpty { keys: existing.count });
    }
    let source = from.revision().await?;
    raise(to, existing.revision, source + bump).await?;
    let first = KeyRange::prefix(keyspace.first);
    let mut keys = 0;
    if !keyspace.first.is_empty() {
        keys += transfer(from, to, first.clone(), source, keyspace, |_| true).await?;
    }
    let rest = |key: &str| keyspace.first.is_empty() || !first.contains(key);
    keys += transfer(from, to, everything(), source, keyspace, rest).await?;
    let arrived = to.range(everything(), 1, 0).await?.count;
    if arrived != keys {
        let detail = format!(
            "{keys} keys were written, but the target holds {arrived}; empty it and copy again"
        );
        return Err(Error::Unavailable { operation: "copy", detail });
    }
    Ok(CopyReport { keys, from: source, to: to.revision().await? })
}

pub(crate) fn everything() -> KeyRange {
    KeyRange::prefix("/")
}

/// Writes until the store is at `target`, then compacts everything up to there.
async fn raise(to: &dyn Store, now: Revision, target: Revision) -> Result<()> {
    let key: Arc<str> = MARK.into();
    let put = || {
        let op = Op::Put { value: Bytes::from_static(b"1"), ttl_seconds: None };
        to.write(Write { key: key.clone(), expected: Expected::Any, op })
    };
    let mut missing = target.saturating_sub(now);
    let mut writes = FuturesUnordered::new();
    loop {
        while missing > 0 && writes.len() < IN_FLIGHT {
            writes.push(put());
            missing -= 1;
        }
        match writes.next().await {
            Some(outcome) => drop(outcome?),
            None => break,
        }
    }
    to.write(Write { key, expected: Expected::Any, op: Op::Delete }).await?;
    to.compact(to.revision().await?).await
}

/// Copies one range page by page at one revision; see [`copy`].
async fn transfer(
    from: &dyn Store,
    to: &dyn Store,
    mut range: KeyRange,
    revision: Revision,
    keyspace: Keyspace,
    is_selected: impl Fn(&str) -> bool,
) -> Result<u64> {
    let mut keys = 0;
    loop {
        let page = from.range(range.clone(), PAGE, revision).await?;
        if let Some(last) = page.items.last() {
            range.start = format!("{}\0", last.key);
        }
        let items =
            page.items.into_iter().filter(|kv| keyspace.keeps(&kv.key) && is_selected(&kv.key));
        let mut writes = FuturesUnordered::new();
        for item in items {
            keys += 1;
            writes.push(create(to, item, keyspace));
            if writes.len() >= IN_FLIGHT
                && let Some(outcome) = writes.next().await
            {
                outcome?;
            }
        }
        while let Some(outcome) = writes.next().await {
            outcome?;
        }
        if !page.more {
            return Ok(keys);
        }
    }
}

async fn create(to: &dyn Store, item: KeyValue, keyspace: Keyspace) -> Result<()> {
    let op = Op::Put { value: item.value, ttl_seconds: keyspace.ttl(&item.key) };
    // A conflict with another writer, such as a running API server, is found by the count at the end.
    to.write(Write { key: item.key, expected: Expected::ModRevision(0), op }).await.map(drop)
}

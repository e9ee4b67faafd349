//! Bringing everything from one store into another, whatever their engines: for moving to etcd and back, and for
//! restoring.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use crate::{
    COMPACTION_KEY, Error, Expected, KeyRange, KeyValue, Op, Result, Revision, Store, Write,
};

/// How many keys are read at once, and how many writes are under way.
const PAGE: usize = 1000;
const IN_FLIGHT: usize = 64;
/// Written until the revision is high enough, then removed.
const MARK: &str = "/windlass/copy";

/// What the keys of a store mean to who copies it, by their prefixes. The store itself does not know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keyspace {
    /// Keys that others are understood by: they are written first.
    pub first: &'static str,
    /// Keys that expire, and after how many seconds.
    pub expiring: &'static [(&'static str, u64)],
    /// Keys that mean nothing in another place.
    pub left: &'static [&'static str],
}

impl Keyspace {
    fn keeps(&self, key: &str) -> bool {
        key != COMPACTION_KEY && !self.left.iter().any(|prefix| key.starts_with(prefix))
    }

    pub(crate) fn ttl(&self, key: &str) -> Option<u64> {
        let found = self.expiring.iter().find(|(prefix, _)| key.starts_with(prefix));
        found.map(|(_, seconds)| *seconds)
    }
}

/// What a copy came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// How many were copied.
    pub keys: u64,
    /// What the source was at.
    pub from: Revision,
    /// What the target is at.
    pub to: Revision,
}

/// Copies every key of `from`, as it is now, into `to`, which must be empty.
///
/// The target's revisions go on from the source's, `bump` further: no client that saw a revision of the source's meets
/// it again with another meaning. What is older answers that it is compacted, so clients list again.
pub async fn copy(
    from: &dyn Store,
    to: &dyn Store,
    bump: u64,
    keyspace: Keyspace,
) -> Result<Copied> {
    let there = to.range(everything(), 1, 0).await?;
    if there.count > 0 {
        return Err(Error::NotEmpty { keys: there.count });
    }
    let source = from.revision().await?;
    raise(to, there.revision, source + bump).await?;
    let first = KeyRange::prefix(keyspace.first);
    let mut keys = 0;
    if !keyspace.first.is_empty() {
        keys += transfer(from, to, first.clone(), source, keyspace, |_| true).await?;
    }
    let rest = |key: &str| keyspace.first.is_empty() || !first.contains(key);
    keys += transfer(from, to, everything(), source, keyspace, rest).await?;
    let arrived = to.range(everything(), 1, 0).await?.count;
    if arrived != keys {
        let detail =
            format!("{keys} keys were written and {arrived} are there; empty it and copy again");
        return Err(Error::Unavailable { operation: "copy", detail });
    }
    Ok(Copied { keys, from: source, to: to.revision().await? })
}

pub(crate) fn everything() -> KeyRange {
    KeyRange::prefix("/")
}

/// Makes writes until the store is at `wanted`, and forgets the revisions up to there.
async fn raise(to: &dyn Store, now: Revision, wanted: Revision) -> Result<()> {
    let key: Arc<str> = MARK.into();
    let put = || {
        let op = Op::Put { value: Bytes::from_static(b"1"), ttl_seconds: None };
        to.write(Write { key: key.clone(), expected: Expected::Any, op })
    };
    let mut missing = wanted.saturating_sub(now);
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

/// Reads page after page at one revision; see [`copy`].
async fn transfer(
    from: &dyn Store,
    to: &dyn Store,
    mut range: KeyRange,
    revision: Revision,
    keyspace: Keyspace,
    wanted: impl Fn(&str) -> bool,
) -> Result<u64> {
    let mut keys = 0;
    loop {
        let page = from.range(range.clone(), PAGE, revision).await?;
        if let Some(last) = page.items.last() {
            range.start = format!("{}\0", last.key);
        }
        let items = page.items.into_iter().filter(|kv| keyspace.keeps(&kv.key) && wanted(&kv.key));
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
    // Somebody else's write, such as of an API server that runs already, is found by the count at the end.
    to.write(Write { key: item.key, expected: Expected::ModRevision(0), op }).await.map(drop)
}

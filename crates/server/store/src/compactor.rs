//! Compacts the store periodically, taking turns with all API servers of a cluster, upstream's included.
//!
//! The server that first writes [`COMPACTION_KEY`] in a turn compacts up to the revision of its own last turn. The
//! other servers see the conflict and wait. History is kept for at least one interval, regardless of the number of
//! servers.

use std::sync::Arc;

use crate::{
    engine::Store,
    error::Result,
    key_value::Revision,
    write::{Expected, Op, Outcome, Write},
};

/// The key that servers compete for: upstream's, outside its prefix for objects.
pub const COMPACTION_KEY: &str = "compact_rev_key";

/// The compaction state of one server.
#[derive(Debug, Default)]
pub struct Compactor {
    /// The mod revision of the key when this server last saw it.
    turn: Revision,
    /// The store's revision at that time.
    revision: Revision,
}

impl Compactor {
    /// Takes one turn. The caller calls it once per interval (upstream's is five minutes). Returns the revision up to
    /// which this server or another one has compacted, if that is known.
    pub async fn step(&mut self, store: &dyn Store) -> Result<Option<Revision>> {
        let value = self.revision.to_string().into();
        let write = Write {
            key: Arc::from(COMPACTION_KEY),
            expected: Expected::ModRevision(self.turn),
            op: Op::Put { value, ttl_seconds: None },
        };
        match store.write(write).await? {
            Outcome::Conflict { current } => {
                self.turn = current.as_ref().map_or(0, |kv| kv.mod_revision);
                self.revision = store.revision().await?;
                let compacted = current.and_then(|kv| compacted_by_other(&kv.value));
                // A key copied from another store has a revision of that store, which may be in this one's future.
                Ok(compacted.filter(|compacted| *compacted <= self.revision))
            }
            Outcome::Done { revision, .. } => {
                let compacted = std::mem::replace(&mut self.revision, revision);
                self.turn = revision;
                // The first turn only records the revision.
                if compacted == 0 {
                    return Ok(None);
                }
                store.compact(compacted).await?;
                Ok(Some(compacted))
            }
        }
    }
}

/// Parses the value of [`COMPACTION_KEY`]: the revision that the winner of the turn compacts. Its first turn has none.
fn compacted_by_other(value: &[u8]) -> Option<Revision> {
    std::str::from_utf8(value).ok()?.parse().ok().filter(|revision| *revision > 0)
}

//! Periodic compaction, in turns with all API servers of a cluster, upstream's included.
//!
//! Whoever writes the key below first in a turn compacts what was current at its own last turn; the others
//! see the conflict and wait. So history is kept for at least one interval, however many servers there are.

use std::sync::Arc;

use crate::{Expected, Op, Outcome, Result, Revision, Store, Write};

/// Upstream's key, outside of its prefix for objects.
pub const COMPACTION_KEY: &str = "compact_rev_key";

/// One server's part in compaction.
#[derive(Debug, Default)]
pub struct Compactor {
    /// The mod revision of the key when this server last saw it.
    turn: Revision,
    /// What was current then.
    revision: Revision,
}

impl Compactor {
    /// To be called once every interval (upstream's is five minutes). Gives the revision that was
    /// compacted, if it was this server's turn.
    pub async fn step(&mut self, store: &dyn Store) -> Result<Option<Revision>> {
        let value = self.revision.to_string().into();
        let write = Write {
            key: Arc::from(COMPACTION_KEY),
            expected: Expected::ModRevision(self.turn),
            op: Op::Put { value, ttl_seconds: None },
        };
        match store.write(write).await? {
            Outcome::Conflict { current } => {
                self.turn = current.map_or(0, |kv| kv.mod_revision);
                self.revision = store.revision().await?;
                Ok(None)
            }
            Outcome::Done { revision, .. } => {
                let compacted = std::mem::replace(&mut self.revision, revision);
                self.turn = revision;
                // The first turn only notes where history stands.
                if compacted == 0 {
                    return Ok(None);
                }
                store.compact(compacted).await?;
                Ok(Some(compacted))
            }
        }
    }
}

//! A watch of the embedded engine: first what history holds, then what comes.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Shared, hub::Watcher};
use crate::{Change, Error, KeyRange, Result, Revision, WatchMessage, WatchStream};

/// How many revisions are replayed at once. A longer way is gone in steps outside of the hub's lock, so
/// that one late watcher does not hold up the writer.
const REPLAY: u64 = 1024;

struct Watch {
    shared: Arc<Shared>,
    range: KeyRange,
    state: State,
}

enum State {
    /// Everything up to this revision has been delivered.
    Replaying(Revision),
    Live(u64, Arc<Watcher>),
}

pub(super) fn watch(
    shared: Arc<Shared>,
    range: KeyRange,
    after: Revision,
) -> Result<Box<dyn WatchStream>> {
    let state = register(&shared, &range, after)?;
    Ok(Box::new(Watch { shared, range, state }))
}

/// Registers a watcher that is near enough to the newest revision to be given the rest at once.
fn register(shared: &Shared, range: &KeyRange, after: Revision) -> Result<State> {
    let mut hub = shared.hub();
    let index = shared.index();
    let current = index.revision();
    let after = if after == 0 { current } else { after };
    if after > current {
        return Err(Error::FutureRevision { requested: after, current });
    }
    if after < index.floor() {
        return Err(Error::Compacted { requested: after, oldest: index.floor() });
    }
    if current - after > REPLAY {
        return Ok(State::Replaying(after));
    }
    let replay = index.changes(range, after, current)?;
    let told = replay.last().map_or(after, |change| change.kv.mod_revision);
    let (id, watcher) = hub.add(range.clone(), shared.options.watch_bytes, told, replay);
    Ok(State::Live(id, watcher))
}

impl Watch {
    /// One step through history; `None` when compaction has overtaken it.
    fn replay(&mut self, after: Revision) -> Option<Vec<Change>> {
        self.state = register(&self.shared, &self.range, after).ok()?;
        if matches!(self.state, State::Live(..)) {
            return Some(Vec::new());
        }
        let index = self.shared.index();
        let through = (after + REPLAY).min(index.revision());
        let changes = index.changes(&self.range, after, through).ok()?;
        self.state = State::Replaying(through);
        Some(changes)
    }
}

impl WatchStream for Watch {
    fn next(&mut self) -> BoxFuture<'_, Option<WatchMessage>> {
        Box::pin(async move {
            loop {
                match &self.state {
                    State::Live(_, watcher) => return watcher.next().await,
                    State::Replaying(after) => {
                        let changes = self.replay(*after)?;
                        if !changes.is_empty() {
                            return Some(WatchMessage::Changes(changes));
                        }
                        tokio::task::yield_now().await;
                    }
                }
            }
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let State::Live(id, _) = &self.state {
            self.shared.hub().remove(*id);
        }
    }
}

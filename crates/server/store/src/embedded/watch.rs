//! A watch of the embedded engine: replays history, then follows new changes.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{hub::Watcher, shared::Shared};
use crate::{
    error::{Error, Result},
    key_value::{KeyRange, Revision},
    watch::{Change, WatchMessage, WatchStream},
};

/// The number of revisions replayed under the hub's lock. A longer history is replayed in steps without the lock, so
/// that a late watcher does not block the writer.
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

/// Registers a live watcher if `after` is at most [`REPLAY`] revisions old; otherwise starts a replay.
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
    let notified = replay.last().map_or(after, |change| change.kv.mod_revision);
    let (id, watcher) = hub.add(range.clone(), shared.options.watch_bytes, notified, replay);
    Ok(State::Live(id, watcher))
}

impl Watch {
    /// Replays one step of history; returns `None` when compaction has overtaken the watch.
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

//! The running watches and the delivery of changes to them.
//!
//! Invariants: a watcher gets every change of its range exactly once, in order, or its stream ends. Each queue is
//! bounded by bytes; a full one is closed, and its queued messages can still be read.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::index::cost;
use crate::{
    key_value::{KeyRange, Revision},
    watch::{Change, WatchMessage},
};

/// The running watches of a store.
#[derive(Default)]
pub(super) struct Hub {
    watchers: BTreeMap<u64, Arc<Watcher>>,
    next: u64,
    closed: bool,
}

/// The queue of one watcher.
pub(super) struct Watcher {
    range: KeyRange,
    limit: u64,
    queue: Mutex<Queue>,
    ready: Notify,
}

struct Queue {
    messages: VecDeque<WatchMessage>,
    bytes: u64,
    /// The newest revision that the watcher knows, counting queued messages.
    notified: Revision,
    closed: bool,
}

impl Hub {
    /// Adds a watcher that has received, or gets in `replay`, everything up to `notified`.
    pub(super) fn add(
        &mut self,
        range: KeyRange,
        limit: u64,
        notified: Revision,
        replay: Vec<Change>,
    ) -> (u64, Arc<Watcher>) {
        let mut queue =
            Queue { messages: VecDeque::new(), bytes: 0, notified, closed: self.closed };
        if !replay.is_empty() {
            queue.push(WatchMessage::Changes(replay));
        }
        let watcher = Watcher { range, limit, queue: Mutex::new(queue), ready: Notify::new() };
        let watcher = Arc::new(watcher);
        let id = self.next;
        self.next += 1;
        self.watchers.insert(id, watcher.clone());
        (id, watcher)
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.watchers.remove(&id);
    }

    /// Delivers the changes of whole revisions, oldest first.
    pub(super) fn publish(&mut self, changes: &[Change]) {
        self.watchers.retain(|_, watcher| watcher.offer(changes));
    }

    /// Sends a progress message to every watcher that has not been notified of `revision`.
    pub(super) fn progress(&mut self, revision: Revision) {
        for watcher in self.watchers.values() {
            watcher.progress(revision);
        }
    }

    /// Ends all watches.
    pub(super) fn close(&mut self) {
        self.closed = true;
        for watcher in std::mem::take(&mut self.watchers).into_values() {
            watcher.close();
        }
    }
}

impl Watcher {
    /// Queues the changes in this watcher's range; returns `false` when it has fallen behind and is closed.
    fn offer(&self, changes: &[Change]) -> bool {
        let wanted: Vec<Change> =
            changes.iter().filter(|change| self.range.contains(&change.kv.key)).cloned().collect();
        let Some(last) = wanted.last() else { return true };
        let mut queue = self.lock();
        queue.notified = last.kv.mod_revision;
        queue.push(WatchMessage::Changes(wanted));
        let keeps_up = queue.bytes <= self.limit || queue.messages.len() == 1;
        if !keeps_up {
            // Drop the overflowing message whole, so that the remaining ones have no gap.
            queue.messages.pop_back();
            queue.closed = true;
            tracing::warn!(
                range = %self.range.start, limit = self.limit,
                "closed a watch that has fallen behind; it resumes from the last revision it saw"
            );
        }
        drop(queue);
        self.ready.notify_one();
        keeps_up
    }

    fn progress(&self, revision: Revision) {
        let mut queue = self.lock();
        if queue.notified >= revision || queue.closed {
            return;
        }
        queue.notified = revision;
        if let Some(WatchMessage::Progress(last)) = queue.messages.back_mut() {
            *last = revision;
        } else {
            queue.push(WatchMessage::Progress(revision));
        }
        drop(queue);
        self.ready.notify_one();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_one();
    }

    /// Returns the next message, merging all queued changes; `None` once the watch is closed and empty.
    pub(super) async fn next(&self) -> Option<WatchMessage> {
        loop {
            {
                let mut queue = self.lock();
                if let Some(message) = queue.pop() {
                    return Some(message);
                }
                if queue.closed {
                    return None;
                }
            }
            self.ready.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

impl Queue {
    fn push(&mut self, message: WatchMessage) {
        self.bytes += size(&message);
        self.messages.push_back(message);
    }

    fn pop(&mut self) -> Option<WatchMessage> {
        let mut message = self.messages.pop_front()?;
        if let WatchMessage::Changes(changes) = &mut message {
            while let Some(WatchMessage::Changes(more)) = self.messages.front_mut() {
                changes.append(more);
                self.messages.pop_front();
            }
        }
        self.bytes -= size(&message);
        Some(message)
    }
}

/// Returns the memory that a message retains. Values are shared with the index, but a queued one outlives compaction.
fn size(message: &WatchMessage) -> u64 {
    let changes = match message {
        WatchMessage::Changes(changes) => changes.as_slice(),
        WatchMessage::Progress(_) => &[],
    };
    changes.iter().map(|change| cost(&change.kv.key, change.kv.value.len())).sum()
}

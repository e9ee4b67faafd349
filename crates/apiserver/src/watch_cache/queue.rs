//! A watcher's queue: bounded by number and by bytes, and emptied at once when its reader is too slow.
//!
//! What waits in the queues of readers that keep up is shared between them and with the history, so that a reader
//! costs pointers. One that does not keep up would hold on to changes that nobody else needs any more: it loses them
//! when it is cut off, though it may never ask again.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::event::Delivery;

/// How many undelivered changes a watcher may have before it is cut off.
const CHANGES: usize = 1024;
/// How many bytes of them, though one change may always wait.
const BYTES: usize = 4 << 20;

#[derive(Default)]
struct Waiting {
    deliveries: VecDeque<Arc<Delivery>>,
    bytes: usize,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that the cache holds. Dropping it ends the watch after what waits.
pub(crate) struct Sender(Arc<Shared>);

/// The end that the watcher holds.
pub(crate) struct Receiver(Arc<Shared>);

pub(crate) fn queue() -> (Sender, Receiver) {
    let shared = Arc::new(Shared::default());
    (Sender(shared.clone()), Receiver(shared))
}

impl Sender {
    /// Hands a change over; false when the watcher has gone, or is too slow and was cut off.
    pub(crate) fn send(&self, delivery: &Arc<Delivery>) -> bool {
        if self.is_closed() {
            return false;
        }
        let mut waiting = self.0.lock();
        let size = delivery.event.object.bytes.len();
        let full = waiting.deliveries.len() >= CHANGES
            || (waiting.bytes > 0 && waiting.bytes + size > BYTES);
        if full {
            *waiting = Waiting { ended: true, ..Waiting::default() };
        } else {
            waiting.bytes += size;
            waiting.deliveries.push_back(delivery.clone());
        }
        drop(waiting);
        self.0.changed.notify_one();
        !full
    }

    pub(crate) fn is_closed(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_one();
    }
}

impl Receiver {
    /// The next change; `None` when the watch has ended.
    pub(crate) async fn recv(&mut self) -> Option<Arc<Delivery>> {
        loop {
            {
                let mut waiting = self.0.lock();
                if let Some(next) = waiting.deliveries.pop_front() {
                    waiting.bytes -= next.event.object.bytes.len();
                    return Some(next);
                }
                if waiting.ended {
                    return None;
                }
            }
            self.0.changed.notified().await;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().deliveries.is_empty()
    }
}

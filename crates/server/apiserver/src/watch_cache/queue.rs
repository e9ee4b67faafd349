//! The queue of a watcher: limited by number and by bytes, and emptied at once if its reader is too slow.
//!
//! Queued events are shared with the history and with other queues, so that a reader that keeps up costs only pointers.
//! The events of a slow reader are freed when it is closed, even if it never reads again.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::event::Delivery;

/// The maximum number of queued events.
const CHANGES: usize = 1024;
/// The maximum size of queued events in bytes. A single event is always accepted.
const BYTES: usize = 4 << 20;

#[derive(Default)]
struct QueuedEvents {
    deliveries: VecDeque<Arc<Delivery>>,
    bytes: usize,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<QueuedEvents>,
    changed: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, QueuedEvents> {
        self.waiting.lock()
    }
}

/// The end that the cache holds. Dropping it ends the watch after the queued events.
pub(crate) struct Sender(Arc<Shared>);

/// The end that the watcher holds.
pub(crate) struct Receiver(Arc<Shared>);

pub(crate) fn queue() -> (Sender, Receiver) {
    let shared = Arc::new(Shared::default());
    (Sender(shared.clone()), Receiver(shared))
}

impl Sender {
    /// Queues an event. Returns `false` if the watcher is gone, or was too slow and has been closed.
    pub(crate) fn send(&self, delivery: &Arc<Delivery>) -> bool {
        if self.is_closed() {
            return false;
        }
        let mut waiting = self.0.lock();
        let size = delivery.event.object.bytes.len();
        let full = waiting.deliveries.len() >= CHANGES
            || (waiting.bytes > 0 && waiting.bytes + size > BYTES);
        if full {
            *waiting = QueuedEvents { ended: true, ..QueuedEvents::default() };
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
    /// Returns the next event, or `None` at the end of the watch.
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

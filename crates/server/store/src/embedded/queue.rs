//! The queue from many callers to the one writer thread, bounded by bytes.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The cost of an item besides its own bytes, so that the number of items is bounded too.
const ITEM: usize = 1024;

/// A queue that is bounded by bytes.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    room: Arc<Semaphore>,
    capacity: usize,
}

struct State<T> {
    items: Vec<QueuedItem<T>>,
    closed: bool,
}

/// An item with its share of the capacity, released on drop.
pub(super) struct QueuedItem<T> {
    item: T,
    room: OwnedSemaphorePermit,
}

impl<T> QueuedItem<T> {
    /// Separates the item from its share of the capacity.
    pub(super) fn split(self) -> (T, QueuedItem<()>) {
        (self.item, QueuedItem { item: (), room: self.room })
    }
}

/// The error of a queue whose other end has closed it.
#[derive(Debug)]
pub(super) struct QueueClosed;

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::new(State { items: Vec::new(), closed: false }),
            filled: Condvar::new(),
            room: Arc::new(Semaphore::new(capacity)),
            capacity,
        }
    }

    /// Waits until there is capacity for an item of this size, and queues it.
    pub(super) async fn push(&self, item: T, bytes: usize) -> Result<(), QueueClosed> {
        let wanted = (bytes + ITEM).min(self.capacity) as u32;
        let room = self.room.clone().acquire_many_owned(wanted).await.map_err(|_| QueueClosed)?;
        let mut state = self.lock();
        if state.closed {
            return Err(QueueClosed);
        }
        state.items.push(QueuedItem { item, room });
        if state.items.len() == 1 {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Returns all queued items, waiting at most `patience` for the first; `None` once the queue is closed and empty.
    pub(super) fn drain(&self, patience: Duration) -> Option<Vec<QueuedItem<T>>> {
        let mut state = self.lock();
        if state.items.is_empty() && !state.closed {
            self.filled.wait_for(&mut state, patience);
        }
        if state.items.is_empty() && state.closed {
            return None;
        }
        Some(std::mem::take(&mut state.items))
    }

    /// Rejects further items; queued ones can still be drained.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.room.close();
        self.filled.notify_all();
    }

    /// Closes the queue and drops its items.
    pub(super) fn abandon(&self) {
        self.close();
        drop(std::mem::take(&mut self.lock().items));
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }
}

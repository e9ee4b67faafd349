use std::{pin::pin, sync::Arc};

use parking_lot::RwLock;
use tokio::sync::Notify;

/// A value that only grows and that tasks can wait for; clones share it. Waiters wake in the order in which they began
/// to wait. Tokio's `watch` wakes them in random order, which would make simulations differ.
#[derive(Clone, Debug, Default)]
pub struct Level<T>(Arc<State<T>>);

#[derive(Debug, Default)]
struct State<T> {
    value: RwLock<T>,
    raised: Notify,
}

impl<T: Copy + PartialOrd> Level<T> {
    /// Returns the current level.
    pub fn get(&self) -> T {
        *self.0.value.read()
    }

    /// Raises the level to `to`, unless it is already as high.
    pub fn raise(&self, to: T) {
        let mut value = self.0.value.write();
        if to > *value {
            *value = to;
            drop(value);
            self.0.raised.notify_waiters();
        }
    }

    /// Waits until the level is at least `level`.
    pub async fn reached(&self, level: T) {
        loop {
            // Register before the check, so that a raise in between is not lost.
            let mut raised = pin!(self.0.raised.notified());
            raised.as_mut().enable();
            if self.get() >= level {
                return;
            }
            raised.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn wakes_waiters_in_order_and_never_falls() {
        let (level, order) = (Level::default(), Mutex::new(Vec::new()));
        let wait = async |number: u32, wanted: u32| {
            level.reached(wanted).await;
            order.lock().push(number);
        };
        let raise = async {
            for to in [1, 3, 2] {
                level.raise(to);
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(wait(0, 2), wait(1, 1), wait(2, 3), wait(3, 0), raise);
        assert_eq!(*order.lock(), [3, 1, 0, 2]);
        assert_eq!(level.get(), 3);
    }
}

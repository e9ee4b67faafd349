use std::{
    pin::pin,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::Notify;

/// A value that only grows, and that others wait for; clones share it. Those who wait are woken in the order in which they
/// came: tokio's `watch` wakes them by chance, and no simulation would happen twice.
#[derive(Clone, Debug, Default)]
pub struct Level<T>(Arc<State<T>>);

#[derive(Debug, Default)]
struct State<T> {
    value: RwLock<T>,
    raised: Notify,
}

impl<T: Copy + PartialOrd> Level<T> {
    /// How high it is now.
    pub fn get(&self) -> T {
        *self.0.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises it, unless it is there already or higher.
    pub fn raise(&self, to: T) {
        let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
        if to > *value {
            *value = to;
            drop(value);
            self.0.raised.notify_waiters();
        }
    }

    /// Returns once it is so high.
    pub async fn reached(&self, level: T) {
        loop {
            // Begins to wait before it looks, so that nothing is raised in between.
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
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn who_waits_longer_goes_first_and_a_level_never_falls() {
        let (level, order) = (Level::default(), Mutex::new(Vec::new()));
        let wait = async |number: u32, wanted: u32| {
            level.reached(wanted).await;
            order.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        };
        let raise = async {
            for to in [1, 3, 2] {
                level.raise(to);
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(wait(0, 2), wait(1, 1), wait(2, 3), wait(3, 0), raise);
        assert_eq!(*order.lock().unwrap_or_else(PoisonError::into_inner), [3, 1, 0, 2]);
        assert_eq!(level.get(), 3);
    }
}

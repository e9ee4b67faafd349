//! The writes of a controller that its informer does not show yet.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use client::WorkQueue;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// The creations and deletions that a controller requested and its informer does not show yet. Until then its snapshot
/// is stale, and a plan based on it would create or delete too much.
#[derive(Default)]
pub(crate) struct Expectations(Mutex<HashMap<String, Expectation>>);

struct Expectation {
    creations: usize,
    deletions: HashSet<String>,
    since: Instant,
}

/// The time after which expectations expire. An object created and deleted between two lists causes no watch event.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(5 * 60);

impl Expectations {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Expectation>> {
        self.0.lock()
    }

    /// Records expectations. Call it before the writes, because their events may arrive before their answers.
    pub(crate) fn expect<'a>(
        &self,
        key: &str,
        creations: usize,
        deletions: impl IntoIterator<Item = &'a str>,
    ) {
        let deletions: HashSet<_> = deletions.into_iter().map(str::to_owned).collect();
        let expected = Expectation { creations, deletions, since: Instant::now() };
        self.lock().insert(key.to_owned(), expected);
    }

    /// Notes that a creation was seen or failed.
    pub(crate) fn created(&self, key: &str) {
        if let Some(expected) = self.lock().get_mut(key) {
            expected.creations = expected.creations.saturating_sub(1);
        }
    }

    /// Notes that a deletion was seen or failed.
    pub(crate) fn deleted(&self, key: &str, uid: &str) {
        if let Some(expected) = self.lock().get_mut(key) {
            expected.deletions.remove(uid);
        }
    }

    pub(crate) fn forget(&self, key: &str) {
        self.lock().remove(key);
    }

    /// Reports whether the informer has caught up. If not, the queue gets the key back when the expectations expire:
    /// after a panic in the middle of the writes, no event would bring it back.
    pub(crate) fn met(&self, key: &str, queue: &WorkQueue<String>) -> bool {
        let waits = self.lock().get(key).and_then(|expected| {
            let open = expected.creations > 0 || !expected.deletions.is_empty();
            open.then(|| FORGOTTEN_AFTER.saturating_sub(expected.since.elapsed()))
        });
        match waits {
            None | Some(Duration::ZERO) => true,
            Some(left) => {
                queue.add_after(key.to_owned(), left);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn expectations_are_met_after_all_events() {
        let queue = WorkQueue::default();
        let expectations = Expectations::default();
        assert!(expectations.met("a", &queue));
        expectations.expect("a", 2, ["u"]);
        expectations.created("a");
        expectations.deleted("a", "other");
        assert!(!expectations.met("a", &queue));
        expectations.created("a");
        assert!(!expectations.met("a", &queue));
        expectations.deleted("a", "u");
        expectations.created("a");
        assert!(expectations.met("a", &queue));
        // An expectation that is never met expires, and the key comes back.
        expectations.expect("b", 1, []);
        assert!(!expectations.met("b", &queue));
        while queue.next().await != "b" {}
        assert!(expectations.met("b", &queue));
    }
}

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use client::WorkQueue;
use tokio::time::Instant;

/// What a controller has asked for and its informer has not shown yet. Until then its snapshot is stale, and
/// planning on it would create or delete too much.
#[derive(Default)]
pub(crate) struct Expectations(Mutex<HashMap<String, Expected>>);

struct Expected {
    creations: usize,
    deletions: HashSet<String>,
    since: Instant,
}

/// A watch event can be missed for good (the object came and went between two lists): then time decides.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(5 * 60);

impl Expectations {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Expected>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called before the writes, as their events may come before their answers.
    pub(crate) fn expect<'a>(
        &self,
        key: &str,
        creations: usize,
        deletions: impl IntoIterator<Item = &'a str>,
    ) {
        let deletions: HashSet<_> = deletions.into_iter().map(str::to_owned).collect();
        let expected = Expected { creations, deletions, since: Instant::now() };
        self.lock().insert(key.to_owned(), expected);
    }

    /// A creation was seen, or failed.
    pub(crate) fn created(&self, key: &str) {
        if let Some(expected) = self.lock().get_mut(key) {
            expected.creations = expected.creations.saturating_sub(1);
        }
    }

    /// A deletion was seen, or failed.
    pub(crate) fn deleted(&self, key: &str, uid: &str) {
        if let Some(expected) = self.lock().get_mut(key) {
            expected.deletions.remove(uid);
        }
    }

    pub(crate) fn forget(&self, key: &str) {
        self.lock().remove(key);
    }

    /// Whether the informer has caught up. If not, the key comes back by the queue when what it waits for is forgotten:
    /// nothing else would bring it, where a reconcile panicked before it had written all that it announced.
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
    async fn are_met_when_everything_was_seen_once() {
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
        // What never comes is forgotten, and the key comes back then.
        expectations.expect("b", 1, []);
        assert!(!expectations.met("b", &queue));
        while queue.next().await != "b" {}
        assert!(expectations.met("b", &queue));
    }
}

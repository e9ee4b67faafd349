use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

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

    /// Whether the informer has caught up.
    pub(crate) fn met(&self, key: &str) -> bool {
        self.lock().get(key).is_none_or(|e| {
            (e.creations == 0 && e.deletions.is_empty()) || e.since.elapsed() > FORGOTTEN_AFTER
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_met_when_everything_was_seen_once() {
        let expectations = Expectations::default();
        assert!(expectations.met("a"));
        expectations.expect("a", 2, ["u"]);
        expectations.created("a");
        expectations.deleted("a", "other");
        assert!(!expectations.met("a"));
        expectations.created("a");
        assert!(!expectations.met("a"));
        expectations.deleted("a", "u");
        expectations.created("a");
        assert!(expectations.met("a"));
    }
}

//! A cache of the API server's reviews.

use std::{collections::HashMap, hash::Hash, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The limit of cached answers. A full cache is cleared.
const SIZE: usize = 4096;

/// A cache of answers with an expiry time each.
pub struct TtlCache<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K, V> Default for TtlCache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq, V: Clone> TtlCache<K, V> {
    /// Returns an answer that has not expired.
    pub fn get(&self, key: &K) -> Option<V> {
        let cache = self.0.lock();
        cache.get(key).filter(|(until, _)| *until > Instant::now()).map(|(_, value)| value.clone())
    }

    /// Stores an answer for a time.
    pub fn put(&self, key: K, value: V, ttl: Duration) {
        let mut cache = self.0.lock();
        if cache.len() >= SIZE {
            cache.clear();
        }
        cache.insert(key, (Instant::now() + ttl, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn forgets_answers_after_their_time_and_stays_small() {
        let cache = TtlCache::default();
        cache.put("a", 1, Duration::from_secs(10));
        assert_eq!(cache.get(&"a"), Some(1));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(cache.get(&"a"), None);
        let cache = TtlCache::default();
        for key in 0..3 * SIZE {
            cache.put(key, (), Duration::from_secs(10));
            assert!(cache.0.lock().len() <= SIZE);
        }
    }
}

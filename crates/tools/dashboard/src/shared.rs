//! Shares the parts of the first page among viewers with the same credentials for a few seconds.

use std::{collections::HashMap, sync::Arc, time::Duration};

use maud::Markup;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

/// The identity of a viewer: the hash of the credentials. Equal identities have equal rights.
pub(crate) type Viewer = [u8; 32];

/// The time for which a reading is shown again.
pub(crate) const FRESH: Duration = Duration::from_secs(3);
/// The number of viewers whose readings are kept. Each request of a further viewer reads the cluster.
const VIEWERS: usize = 64;
/// The number of concurrent readings. Each needs memory for a whole list.
const READINGS: usize = 2;

/// The last reading of one viewer, and the time of its start. The lock is held while the cluster is read.
type Entry = Arc<tokio::sync::Mutex<Option<(Instant, Markup)>>>;

/// The last readings.
pub(crate) struct Readings {
    entries: Mutex<HashMap<Viewer, Entry>>,
    turns: Semaphore,
}

impl Default for Readings {
    fn default() -> Self {
        Self { entries: Mutex::default(), turns: Semaphore::new(READINGS) }
    }
}

impl Readings {
    /// Returns the viewer's last reading if it is fresh, and otherwise a new one. Concurrent calls for one viewer share
    /// a reading, however long it takes: its age is that at the call.
    pub(crate) async fn get(&self, viewer: Viewer, read: impl Future<Output = Markup>) -> Markup {
        let called = Instant::now();
        let entry = self.entry(viewer, called);
        let mut last = entry.lock().await;
        if let Some((_, content)) = last.as_ref().filter(|(at, _)| is_fresh(*at, called)) {
            return content.clone();
        }
        let _turn = self.turns.acquire().await;
        let at = Instant::now();
        let content = read.await;
        *last = Some((at, content.clone()));
        content
    }

    fn entry(&self, viewer: Viewer, called: Instant) -> Entry {
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| match Arc::get_mut(entry) {
            Some(last) => last.get_mut().as_ref().is_some_and(|(at, _)| is_fresh(*at, called)),
            // A call uses it.
            None => true,
        });
        if entries.len() >= VIEWERS && !entries.contains_key(&viewer) {
            return Entry::default();
        }
        entries.entry(viewer).or_default().clone()
    }
}

fn is_fresh(at: Instant, called: Instant) -> bool {
    called.saturating_duration_since(at) < FRESH
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Ready, ready},
        sync::atomic::{AtomicUsize, Ordering},
    };

    use futures_util::future::join_all;
    use maud::PreEscaped;

    use super::*;

    #[derive(Default)]
    struct Cluster {
        readings: AtomicUsize,
    }

    impl Cluster {
        async fn read(&self) -> Markup {
            self.read_in(Duration::from_millis(10)).await
        }

        async fn read_in(&self, time: Duration) -> Markup {
            tokio::time::sleep(time).await;
            PreEscaped(self.readings.fetch_add(1, Ordering::Relaxed).to_string())
        }
    }

    fn page(text: &str) -> Ready<Markup> {
        ready(PreEscaped(text.to_owned()))
    }

    #[tokio::test(start_paused = true)]
    async fn shares_a_reading_with_viewers_of_the_same_credentials_while_it_is_fresh() {
        let (shared, cluster) = (Readings::default(), Cluster::default());
        let pages = join_all((0..8).map(|_| shared.get([1; 32], cluster.read()))).await;
        assert!(pages.iter().all(|page| page.0 == "0"), "{pages:?}");
        assert_eq!(shared.get([2; 32], cluster.read()).await.0, "1");
        assert_eq!(shared.get([1; 32], cluster.read()).await.0, "0");
        tokio::time::advance(FRESH).await;
        assert_eq!(shared.get([1; 32], cluster.read()).await.0, "2");
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_calls_share_a_reading_that_takes_longer_than_it_is_fresh() {
        let (shared, cluster) = (Readings::default(), Cluster::default());
        let get = || shared.get([1; 32], cluster.read_in(2 * FRESH));
        let pages = join_all((0..8).map(|_| get())).await;
        assert!(pages.iter().all(|page| page.0 == "0"), "{pages:?}");
        assert_eq!(get().await.0, "1");
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_a_bounded_number_of_fresh_readings() {
        let shared = Readings::default();
        for number in 0..200 {
            assert_eq!(shared.get([number; 32], page("all")).await.0, "all");
        }
        assert_eq!(shared.entries.lock().len(), VIEWERS);
        assert_eq!(shared.get([199; 32], page("other")).await.0, "other");
        tokio::time::advance(FRESH).await;
        shared.get([1; 32], page("late")).await;
        assert_eq!(shared.entries.lock().len(), 1);
    }

    #[tokio::test]
    async fn next_viewer_reads_when_the_first_one_has_left() {
        let shared = Readings::default();
        let mut left = Box::pin(shared.get([1; 32], std::future::pending()));
        assert!(futures_util::poll!(&mut left).is_pending());
        drop(left);
        assert_eq!(shared.get([1; 32], page("read")).await.0, "read");
    }
}

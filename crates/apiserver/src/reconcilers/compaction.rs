//! Compaction of the store's history.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::watch_cache::WatchCache;

/// Every interval forgets what was superseded before the previous one, in turns with other API servers.
pub(crate) async fn keep(cache: Arc<WatchCache>, interval: Duration) {
    let mut compactor = store::Compactor::default();
    let mut every = tokio::time::interval(interval.max(Duration::from_secs(1)));
    loop {
        every.tick().await;
        if let Ok(size) = cache.store.size_bytes().await {
            cache.size.store(size, Ordering::Relaxed);
        }
        match compactor.step(&*cache.store).await {
            Ok(Some(revision)) => cache.compacted(revision),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "compacting the store"),
        }
    }
}

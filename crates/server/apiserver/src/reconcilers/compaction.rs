//! Compacts the store's history.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::watch_cache::WatchCache;

/// At each interval, drops the revisions superseded before the previous one. API servers that share a store take turns.
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
            Err(error) => {
                tracing::warn!(%error, "failed to compact the store; retrying at the next interval")
            }
        }
    }
}

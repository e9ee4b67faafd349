//! Compacts the history of the stores.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::watch_cache::{Feed, WatchCache};

/// At each interval, drops the revisions superseded before the previous one. API servers that share a store take turns.
pub(crate) async fn keep(cache: Arc<WatchCache>, interval: Duration) {
    let mut compactors: Vec<_> =
        cache.feeds().iter().map(|feed| (feed, store::Compactor::default())).collect();
    let mut every = tokio::time::interval(interval.max(Duration::from_secs(1)));
    loop {
        every.tick().await;
        for (feed, compactor) in &mut compactors {
            step(&cache, feed, compactor).await;
        }
    }
}

async fn step(cache: &WatchCache, feed: &Arc<Feed>, compactor: &mut store::Compactor) {
    if let Ok(size) = feed.store.size_bytes().await {
        feed.size.store(size, Ordering::Relaxed);
    }
    match compactor.step(&*feed.store).await {
        Ok(Some(revision)) => cache.compacted(feed, revision),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(%error, "failed to compact the store; retrying at the next interval")
        }
    }
}

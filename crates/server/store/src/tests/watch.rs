//! Tests of watches under concurrency: no gaps and no duplicate changes.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    KeyRange, Revision, Store, WatchMessage,
    disk::sim::SimDisk,
    embedded::{Embedded, Options},
};

use super::embedded::{brisk, done, open, put};

const WRITERS: u64 = 4;
const EACH: u64 = 400;

/// Follows the store to its last revision, resuming the watch whenever it ends. Returns the revisions in order of
/// arrival.
async fn follow(
    store: Arc<Embedded>,
    from: Revision,
    last: Revision,
    resumed: &AtomicU64,
) -> Vec<Revision> {
    let mut seen = from;
    let mut revisions = Vec::new();
    while seen < last {
        let mut watch = store.watch(KeyRange::prefix("/"), seen).await.unwrap();
        while seen < last {
            match watch.next().await {
                None => break,
                Some(WatchMessage::Progress(revision)) => {
                    assert!(revision >= seen);
                    seen = revision;
                }
                Some(WatchMessage::Changes(changes)) => {
                    revisions.extend(changes.iter().map(|change| change.kv.mod_revision));
                    seen = *revisions.last().unwrap();
                    // A slow reader lets its queue fill up.
                    if seen.is_multiple_of(3) {
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
        resumed.fetch_add(1, Ordering::Relaxed);
    }
    revisions
}

#[test]
fn every_watcher_sees_every_revision_once_and_in_order() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    runtime.unwrap().block_on(async {
        let options = Options { watch_bytes: 4_000, snapshot_log_bytes: 1 << 20, ..brisk() };
        let store = Arc::new(open(&SimDisk::default(), options));
        let last = 1 + WRITERS * EACH;
        let resumed = Arc::new(AtomicU64::new(0));
        let mut writers = tokio::task::JoinSet::new();
        let mut watchers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let (store, resumed) = (store.clone(), resumed.clone());
            writers.spawn(async move {
                let mut started = Vec::new();
                for n in 0..EACH {
                    let revision =
                        done(store.write(put(&format!("/{writer}/{n}"), "v")).await.unwrap());
                    if n % 80 == 0 {
                        let from = 1 + (revision - 1) * (n % 3) / 2;
                        let from = from.min(revision);
                        let (store, resumed) = (store.clone(), resumed.clone());
                        started.push((
                            from,
                            tokio::spawn(async move { follow(store, from, last, &resumed).await }),
                        ));
                    }
                }
                started
            });
        }
        while let Some(started) = writers.join_next().await {
            for (from, watcher) in started.unwrap() {
                watchers.spawn(async move { (from, watcher.await.unwrap()) });
            }
        }
        let mut count = 0;
        while let Some(result) = watchers.join_next().await {
            let (from, revisions) = result.unwrap();
            assert_eq!(revisions, (from + 1..=last).collect::<Vec<_>>());
            count += 1;
        }
        assert_eq!(count, WRITERS * EACH / 80);
    });
}

#[tokio::test]
async fn closes_slow_watcher_after_its_queued_changes() {
    let store = open(&SimDisk::default(), Options { watch_bytes: 2_000, ..brisk() });
    let mut slow = store.watch(KeyRange::prefix("/"), 0).await.unwrap();
    for n in 0..50 {
        store.write(put(&format!("/{n}"), vec![0; 100])).await.unwrap();
    }
    let mut seen = BTreeSet::new();
    let mut last = 1;
    while let Some(message) = slow.next().await {
        if let WatchMessage::Changes(changes) = message {
            for change in changes {
                assert_eq!(change.kv.mod_revision, last + 1);
                last += 1;
                seen.insert(change.kv.key);
            }
        }
    }
    assert!((5..50).contains(&seen.len()), "{}", seen.len());
}

#[tokio::test]
async fn sends_progress_on_request_after_the_changes() {
    let store = open(&SimDisk::default(), brisk());
    let mut watch = store.watch(KeyRange::prefix("/watched/"), 0).await.unwrap();
    let revision = done(store.write(put("/other/a", "1")).await.unwrap());
    store.request_progress().await.unwrap();
    assert!(
        matches!(watch.next().await, Some(WatchMessage::Progress(reported)) if reported == revision)
    );
    let changed = done(store.write(put("/watched/a", "1")).await.unwrap());
    let later = done(store.write(put("/other/a", "2")).await.unwrap());
    store.request_progress().await.unwrap();
    let Some(WatchMessage::Changes(changes)) = watch.next().await else {
        panic!("progress came first")
    };
    assert_eq!(changes[0].kv.mod_revision, changed);
    assert!(
        matches!(watch.next().await, Some(WatchMessage::Progress(reported)) if reported == later)
    );
}

#[tokio::test]
async fn ends_watches_with_the_store() {
    let store = open(&SimDisk::default(), brisk());
    let mut watch = store.watch(KeyRange::prefix("/"), 0).await.unwrap();
    drop(store);
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn dropped_next_future_loses_no_message() {
    let store = open(&SimDisk::default(), brisk());
    let mut wanted = Vec::new();
    for n in 0..6000 {
        let key = if n % 1500 == 0 { "/rare" } else { "/common" };
        let revision = done(store.write(put(key, "v")).await.unwrap());
        wanted.extend((key == "/rare").then_some(revision));
    }
    // The watch steps through history, mostly without a change for it. Each wait is dropped at its first pause.
    let mut watch = store.watch(KeyRange::prefix("/rare"), 1).await.unwrap();
    let mut seen = Vec::new();
    let mut pauses = 0;
    while seen.len() < wanted.len() {
        match futures_util::poll!(watch.next()) {
            std::task::Poll::Pending => pauses += 1,
            std::task::Poll::Ready(Some(WatchMessage::Changes(changes))) => {
                seen.extend(changes.iter().map(|change| change.kv.mod_revision));
            }
            std::task::Poll::Ready(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, wanted);
    assert!(pauses > 0);
}

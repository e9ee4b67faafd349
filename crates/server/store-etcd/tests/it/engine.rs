//! Tests with one member: the model, expiry, limits and errors.

use std::time::Duration;

use proptest::{
    prelude::*,
    test_runner::{TestCaseError, TestRunner},
};
use store::{ChangeKind, Error, KeyRange, Store, WatchMessage, tests::model};

use crate::{
    connect, done, put, put_for,
    server::{self, Server},
};

#[test]
fn agrees_with_the_model() {
    if !server::is_there() {
        return;
    }
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(connect(vec![server.url.clone()]));
    let config = ProptestConfig { cases: 32, failure_persistence: None, ..Default::default() };
    let case = std::cell::Cell::new(0);
    TestRunner::new(config)
        .run(&prop::collection::vec(any::<u64>(), 0..60), |script| {
            case.set(case.get() + 1);
            let prefix = format!("/registry/{}/", case.get());
            let verdict = runtime.block_on(model::check(&store, &prefix, &script));
            verdict.map(drop).map_err(TestCaseError::fail)
        })
        .unwrap();
}

#[tokio::test]
async fn expires_keys_with_ttl_unless_rewritten() {
    if !server::is_there() {
        return;
    }
    let server = Server::start();
    let store = connect(vec![server.url.clone()]).await;
    let mut watch = store.watch(KeyRange::prefix("/"), 0).await.unwrap();
    store.write(put_for("/expires", "v", Some(1))).await.unwrap();
    store.write(put_for("/stays", "v", Some(1))).await.unwrap();
    store.write(put("/stays", "for good")).await.unwrap();
    let deleted = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            if let Some(WatchMessage::Changes(changes)) = watch.next().await
                && let Some(change) = changes.into_iter().find(|c| c.kind == ChangeKind::Delete)
            {
                return change;
            }
        }
    });
    let deleted = deleted.await.unwrap();
    assert_eq!(&*deleted.kv.key, "/expires");
    let (stays, _) = store.get("/stays").await.unwrap();
    assert_eq!(stays.unwrap().value, "for good");
}

#[tokio::test]
async fn errors_of_bad_revisions_name_the_readable_ones() {
    if !server::is_there() {
        return;
    }
    let server = Server::start();
    let store = connect(vec![server.url.clone()]).await;
    assert_eq!(store.revision().await.unwrap(), 1);
    for n in 0..10 {
        store.write(put("/a", n.to_string())).await.unwrap();
    }
    store.compact(7).await.unwrap();
    store.compact(7).await.unwrap();
    let all = || KeyRange::prefix("/");
    let error = store.range(all(), 0, 6).await.unwrap_err();
    assert!(matches!(error, Error::Compacted { requested: 6, oldest: 7 }), "{error}");
    let error = store.watch(all(), 6).await.err().unwrap();
    assert!(matches!(error, Error::Compacted { requested: 6, oldest: 7 }), "{error}");
    let error = store.watch(all(), 12).await.err().unwrap();
    assert!(matches!(error, Error::FutureRevision { requested: 12, current: 11 }), "{error}");
    let error = store.range(all(), 0, 12).await.unwrap_err();
    assert!(matches!(error, Error::FutureRevision { requested: 12, current: 11 }), "{error}");
    let error = store.compact(12).await.unwrap_err();
    assert!(matches!(error, Error::FutureRevision { requested: 12, current: 11 }), "{error}");
    assert_eq!(store.range(all(), 0, 7).await.unwrap().items[0].value, "5");
    assert!(store.size_bytes().await.unwrap() > 0);
}

#[tokio::test]
async fn distinguishes_too_large_from_no_space() {
    if !server::is_there() {
        return;
    }
    let server = Server::start_with(&["--quota-backend-bytes", "4000000"]);
    let store = connect(vec![server.url.clone()]).await;
    let error = store.write(put("/a", vec![0; 1536 * 1024])).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let error = loop {
        if let Err(error) = store.write(put("/a", vec![0; 1_000_000])).await {
            break error;
        }
    };
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert!(store.get("/a").await.unwrap().0.is_some());
}

#[tokio::test]
async fn reads_lists_larger_than_grpcs_default_limit() {
    if !server::is_there() {
        return;
    }
    let server = Server::start();
    let store = connect(vec![server.url.clone()]).await;
    for n in 0..12 {
        done(store.write(put(&format!("/{n:02}"), vec![n; 1_000_000])).await.unwrap());
    }
    let found = store.range(KeyRange::prefix("/"), 0, 0).await.unwrap();
    assert_eq!((found.items.len(), found.count, found.more), (12, 12, false));
    let mut watch = store.watch(KeyRange::prefix("/"), 1).await.unwrap();
    let mut seen = 0;
    while seen < 12 {
        if let Some(WatchMessage::Changes(changes)) = watch.next().await {
            seen += changes.len();
        }
    }
}

//! Tests of members that fail and come back.

use std::time::Duration;

use store::{Error, KeyRange, Revision, Store, WatchMessage, WatchStream};
use testkit::free_port;

use crate::{
    connect, done, put,
    server::{self, Server},
};

/// Reads a watch until revision `last` or its end, and returns the revisions.
async fn read_until(watch: &mut dyn WatchStream, last: Revision) -> Vec<Revision> {
    let mut revisions: Vec<Revision> = Vec::new();
    while revisions.last().is_none_or(|seen| *seen < last) {
        match watch.next().await {
            Some(WatchMessage::Changes(changes)) => {
                revisions.extend(changes.iter().map(|change| change.kv.mod_revision));
            }
            Some(WatchMessage::Progress(_)) => {}
            None => break,
        }
    }
    revisions
}

#[tokio::test]
async fn watch_ends_with_its_member_and_resumes_without_gap() {
    if !server::is_there() {
        return;
    }
    let mut server = Server::start();
    let store = connect(vec![server.url.clone()]).await;
    let mut watch = store.watch(KeyRange::prefix("/"), 0).await.unwrap();
    let first = done(store.write(put("/a", "1")).await.unwrap());
    assert_eq!(read_until(&mut *watch, first).await, [first]);
    server.restart();
    assert_eq!(read_until(&mut *watch, Revision::MAX).await, Vec::<Revision>::new());
    // Reads wait for the member to come back; a write may have to be retried by its caller.
    assert_eq!(store.get("/a").await.unwrap().0.unwrap().value, "1");
    let second = done(store.write(put("/a", "2")).await.unwrap());
    let third = done(store.write(put("/b", "3")).await.unwrap());
    let mut watch = store.watch(KeyRange::prefix("/"), first).await.unwrap();
    assert_eq!(read_until(&mut *watch, third).await, [second, third]);
}

#[tokio::test]
async fn works_without_one_member_but_not_without_two() {
    if !server::is_there() {
        return;
    }
    let mut servers = Server::start_three();
    let dead = format!("http://127.0.0.1:{}", free_port());
    let mut endpoints = vec![dead];
    endpoints.extend(servers.iter().map(|server| server.url.clone()));
    let store = connect(endpoints).await;
    let mut newest = done(store.write(put("/a", "1")).await.unwrap());
    servers[0].kill();
    let end = tokio::time::Instant::now() + Duration::from_secs(30);
    let mut written = 0;
    while written < 20 {
        assert!(tokio::time::Instant::now() < end, "only {written} writes succeeded");
        match store.write(put("/a", written.to_string())).await {
            Ok(outcome) => {
                let revision = done(outcome);
                assert!(revision > newest, "{revision} after {newest}");
                newest = revision;
                written += 1;
            }
            // The outcome is unknown: the write was in flight when the member died.
            Err(Error::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(store.get("/a").await.unwrap().0.unwrap().value, "19");
    servers[1].kill();
    let error = store.write(put("/a", "no quorum")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { operation: "write", .. }), "{error}");

    // A new client waits, and continues when there is a quorum again.
    let options = store_etcd::Options {
        patience: Duration::from_millis(500),
        ..store_etcd::Options::new(vec![servers[2].url.clone()], None)
    };
    let starting = store_etcd::Etcd::connect_patiently(options);
    tokio::pin!(starting);
    let waited = tokio::time::timeout(Duration::from_secs(2), &mut starting).await;
    assert!(waited.is_err(), "without a quorum nothing can be read");
    servers[1].restart();
    let started = tokio::time::timeout(Duration::from_secs(60), starting).await.unwrap().unwrap();
    assert!(started.get("/a").await.unwrap().0.is_some());
}

#[tokio::test]
async fn error_names_absent_etcd_and_cause() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let options = store_etcd::Options {
        patience: Duration::from_millis(100),
        ..store_etcd::Options::new(vec![url.clone()], None)
    };
    let error = store_etcd::Etcd::connect(options).await.err().unwrap().to_string();
    assert!(error.contains("Connection refused") && error.contains(&url), "{error}");
}

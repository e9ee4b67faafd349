//! Tests of concurrent clients while members die and come back: one order must explain all answers.

use std::{sync::Arc, time::Duration};

use store::{
    Change, KeyRange, Revision, Store, WatchMessage,
    tests::history::{self, Call, Clock},
};

use crate::{
    connect,
    server::{self, Server},
};

/// Returns all changes after `from` up to the present revision, resuming the watch if it ends.
async fn changes(store: &dyn Store, from: Revision) -> Vec<Change> {
    let until = store.revision().await.unwrap();
    let (mut seen, mut at) = (Vec::new(), from);
    while at < until {
        let mut stream = store.watch(KeyRange::prefix("/registry/"), at).await.unwrap();
        while at < until {
            store.request_progress().await.unwrap();
            match stream.next().await {
                Some(WatchMessage::Changes(more)) => {
                    at = more.last().map_or(at, |c| c.kv.mod_revision);
                    seen.extend(more);
                }
                Some(WatchMessage::Progress(revision)) => at = at.max(revision),
                None => break,
            }
        }
    }
    seen
}

/// Runs four clients during `disturb`, then checks the history.
async fn work(store: Arc<dyn Store>, calls: usize, disturb: impl Future<Output = ()>) {
    let clock = Arc::new(Clock::default());
    let began = store.revision().await.unwrap();
    let clients = (0..4_u64).map(|n| {
        let (store, clock) = (store.clone(), clock.clone());
        async move {
            let subject: &dyn Store = &*store;
            history::client(&subject, &clock, &format!("c{n}"), n, calls).await
        }
    });
    let (histories, ()) =
        futures_util::future::join(futures_util::future::join_all(clients), disturb).await;
    let history: Vec<Call> = histories.concat();
    let log = changes(&*store, began).await;
    assert!(log.len() > calls, "{} changes", log.len());
    history::check(&history, &log, began).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_linearizable_when_a_member_is_killed() {
    if !server::is_there() {
        return;
    }
    let mut server = Server::start();
    let store = Arc::new(connect(vec![server.url.clone()]).await);
    let kills = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(400)).await;
            server.restart();
        }
    };
    work(store, 150, kills).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_linearizable_when_the_leader_changes() {
    if !server::is_there() {
        return;
    }
    let mut servers = Server::start_three();
    let store = Arc::new(connect(servers.iter().map(|server| server.url.clone()).collect()).await);
    let kills = async {
        for server in &mut servers {
            tokio::time::sleep(Duration::from_millis(500)).await;
            server.kill();
            tokio::time::sleep(Duration::from_millis(1500)).await;
            server.restart();
            tokio::time::sleep(Duration::from_millis(1500)).await;
        }
    };
    work(store, 150, kills).await;
}

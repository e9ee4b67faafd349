//! Tests of the embedded engine under concurrent clients, with and without power loss, and of the checker on impossible
//! histories.

use std::sync::Arc;

use super::{
    embedded::{block_on, brisk, open},
    history::{self, Answer, Call, Clock, Request},
};
use crate::{
    Change, ChangeKind, KeyRange, KeyValue, Revision, Store, WatchMessage,
    disk::sim::SimDisk,
    embedded::{Embedded, Options},
};

/// Returns all changes after `from`, up to the present revision.
async fn changes(store: &dyn Store, from: Revision) -> Vec<Change> {
    let until = store.revision().await.unwrap();
    let mut stream = store.watch(KeyRange::prefix("/registry/"), from).await.unwrap();
    let (mut seen, mut at) = (Vec::new(), from);
    while at < until {
        store.request_progress().await.unwrap();
        match stream.next().await.expect("the watch goes on") {
            WatchMessage::Changes(more) => {
                at = more.last().map_or(at, |c| c.kv.mod_revision);
                seen.extend(more);
            }
            WatchMessage::Progress(revision) => at = at.max(revision),
        }
    }
    seen
}

/// Runs four clients on one store and returns their calls.
async fn concurrently(
    store: &dyn Store,
    clock: &Clock,
    life: u64,
    seed: u64,
    calls: usize,
) -> Vec<Call> {
    let subject = &store;
    let names: Vec<String> = (0..4).map(|n| format!("{life}.{n}")).collect();
    let clients = names.iter().enumerate().map(|(n, name)| {
        history::client(subject, clock, name, seed * 100 + life * 10 + n as u64, calls)
    });
    futures_util::future::join_all(clients).await.concat()
}

#[test]
fn concurrent_clients_see_one_order() {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(2).enable_all().build().unwrap();
    for seed in 0..20 {
        let store: Arc<dyn Store> = Arc::new(open(&SimDisk::default(), Options::default()));
        let clock = Arc::new(Clock::default());
        let began = block_on(store.revision()).unwrap();
        let clients: Vec<_> = (0..4)
            .map(|n| {
                let (store, clock) = (store.clone(), clock.clone());
                runtime.spawn(async move {
                    let subject: &dyn Store = &*store;
                    history::client(&subject, &clock, &format!("c{n}"), seed * 10 + n, 100).await
                })
            })
            .collect();
        let history: Vec<Call> = clients.into_iter().flat_map(|c| block_on(c).unwrap()).collect();
        let log = block_on(changes(&*store, began));
        assert!(log.len() > 100, "{}", log.len());
        history::check(&history, &log, began).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn power_loss_neither_loses_nor_repeats_writes() {
    let options = || Options { history_bytes: 1 << 20, ..brisk() };
    let mut crashes = 0;
    for seed in 0..60 {
        let mut disk = SimDisk::default();
        let clock = Clock::default();
        let (mut history, mut log): (Vec<Call>, Vec<Change>) = Default::default();
        let mut began = None;
        for life in 0..4 {
            disk.crash_at(10 + (seed * 13 + life * 29) % 90);
            if let Ok(store) = Embedded::open_on(Arc::new(disk.clone()), options()) {
                let began = *began.get_or_insert_with(|| block_on(store.revision()).unwrap());
                let calls = block_on(concurrently(&store, &clock, life, seed, 25));
                history.extend(calls);
                // A change that a watcher has received must never be undone.
                let from = log.last().map_or(began, |c| c.kv.mod_revision);
                if !disk.has_crashed() {
                    log.extend(block_on(changes(&store, from)));
                }
            }
            crashes += u64::from(disk.has_crashed());
            disk = disk.after_power_loss(seed * 100 + life);
        }
        let store = open(&disk, options());
        let began = began.unwrap_or_else(|| block_on(store.revision()).unwrap());
        let from = log.last().map_or(began, |c| c.kv.mod_revision);
        log.extend(block_on(changes(&store, from)));
        history::check(&history, &log, began).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(crashes > 60, "power failed {crashes} times only");
}

fn change(revision: Revision, kind: ChangeKind, value: &str) -> Change {
    let kv = KeyValue {
        key: "/registry/k".into(),
        value: value.to_owned().into(),
        create_revision: 0,
        mod_revision: revision,
        version: 0,
    };
    Change { kind, kv }
}

fn write(begun: u64, ended: u64, expected: Revision, value: Option<&str>, answer: Answer) -> Call {
    let key = "/registry/k".to_owned();
    let request = Request::Write { key, expected, value: value.map(str::to_owned) };
    Call { begun, ended, request, answer }
}

fn read(begun: u64, ended: u64, found: &[(Revision, &'static str)], at: Option<Revision>) -> Call {
    let key = "/registry/k".to_owned();
    let found = found.iter().map(|(r, v)| (key.clone(), *r, v.as_bytes().into())).collect();
    Call { begun, ended, request: Request::Get(key), answer: Answer::Read(found, at) }
}

#[test]
fn checker_rejects_impossible_histories() {
    use ChangeKind::{Delete, Put};
    let log = [change(2, Put, "a"), change(3, Put, "b"), change(4, Delete, "")];
    let a = || write(0, 1, 0, Some("a"), Answer::Done(Some(2)));
    let b = || write(2, 3, 2, Some("b"), Answer::Done(Some(3)));
    let gone = || write(4, 5, 3, None, Answer::Done(None));
    let good = [
        vec![a(), b(), gone()],
        vec![a(), b(), read(2, 3, &[(2, "a")], Some(2)), read(2, 3, &[(3, "b")], None), gone()],
        vec![a(), write(2, 3, 2, Some("b"), Answer::Unknown), gone()],
        vec![a(), b(), write(4, 5, 2, Some("x"), Answer::Conflict), gone()],
    ];
    for history in good {
        assert_eq!(history::check(&history, &log, 1), Ok(()), "{history:?}");
    }
    let bad = [
        ("lost", vec![a(), write(2, 3, 0, Some("x"), Answer::Done(Some(3)))]),
        ("a stale read", vec![a(), b(), read(4, 5, &[(2, "a")], Some(2))]),
        ("a stale read that does not say when", vec![a(), b(), read(4, 5, &[(2, "a")], None)]),
        ("a read of the future", vec![a(), read(0, 1, &[(3, "b")], Some(3)), b()]),
        (
            "reordered",
            vec![
                write(4, 5, 0, Some("a"), Answer::Done(Some(2))),
                write(0, 1, 2, Some("b"), Answer::Done(Some(3))),
            ],
        ),
        ("it replaced another", vec![a(), write(2, 3, 0, Some("b"), Answer::Done(Some(3)))]),
        (
            "a conflict with nothing",
            vec![
                a(),
                write(2, 3, 2, Some("x"), Answer::Conflict),
                write(4, 5, 2, Some("b"), Answer::Done(Some(3))),
            ],
        ),
        ("a deletion that was lost", vec![a(), b(), write(4, 5, 2, None, Answer::Done(None))]),
    ];
    for (what, history) in bad {
        assert!(history::check(&history, &log, 1).is_err(), "{what}");
    }
    let twice = [change(2, Put, "a"), change(3, Put, "a")];
    assert!(history::check(&[], &twice, 1).is_err(), "doubled");
    let back = [change(3, Put, "a"), change(2, Put, "b")];
    assert!(history::check(&[], &back, 1).is_err(), "out of order");
    assert!(history::check_watch(&twice[..1], &log, 1).is_ok());
    assert!(history::check_watch(&log[1..2], &log, 1).is_err(), "a gap");
}

//! Tests of the embedded engine against the model, and of its limits.

use std::{path::Path, sync::Arc, time::Duration};

use proptest::prelude::*;
use rt::ManualClock;

use super::model::{self, Model};
use crate::{
    Change, ChangeKind, Error, Expected, KeyRange, Op, Outcome, Revision, Store, WatchMessage,
    Write,
    disk::sim::SimDisk,
    embedded::{Embedded, Options, REQUEST_LIMIT},
};

pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Options under which snapshots and ticks happen often.
pub(super) fn brisk() -> Options {
    Options { snapshot_log_bytes: 4096, tick: Duration::from_millis(5), ..Options::default() }
}

pub(super) fn open(disk: &SimDisk, options: Options) -> Embedded {
    Embedded::open_on(Arc::new(disk.clone()), options).unwrap()
}

pub(super) fn put(key: &str, value: impl Into<Vec<u8>>) -> Write {
    let op = Op::Put { value: value.into().into(), ttl_seconds: None };
    Write { key: key.into(), expected: Expected::Any, op }
}

pub(super) fn delete(key: &str) -> Write {
    Write { key: key.into(), expected: Expected::Any, op: Op::Delete }
}

pub(super) fn done(outcome: Outcome) -> Revision {
    match outcome {
        Outcome::Done { revision, .. } => revision,
        Outcome::Conflict { current } => panic!("conflict with {current:?}"),
    }
}

pub(super) async fn value(store: &Embedded, key: &str) -> Option<Vec<u8>> {
    store.get(key).await.unwrap().0.map(|kv| kv.value.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(script in prop::collection::vec(any::<u64>(), 0..120)) {
        let store = open(&SimDisk::default(), brisk());
        let verdict = block_on(model::check(&store, "/registry/", &script));
        prop_assert_eq!(verdict, Ok(0), "no watch ends before its time");
    }

    #[test]
    fn agrees_with_the_model_across_restarts(
        scripts in prop::collection::vec(prop::collection::vec(any::<u64>(), 0..60), 1..5),
    ) {
        let disk = SimDisk::default();
        let mut store = Some(open(&disk, brisk()));
        let verdict = block_on(async {
            let mut model = Model::begin(store.as_ref().unwrap(), "/registry/").await?;
            for script in &scripts {
                let now = store.as_ref().unwrap();
                for number in script {
                    model.step(now, *number).await?;
                }
                model.settle(now).await?;
                model.forget_watches();
                drop(store.take());
                store = Some(open(&disk, brisk()));
            }
            model.settle(store.as_ref().unwrap()).await
        });
        prop_assert_eq!(verdict, Ok(()));
    }
}

#[test]
fn starts_at_revision_one() {
    let store = open(&SimDisk::default(), brisk());
    block_on(async {
        assert_eq!(store.revision().await.unwrap(), 1);
        assert_eq!(done(store.write(put("/a", "1")).await.unwrap()), 2);
        assert_eq!(done(store.write(delete("/a")).await.unwrap()), 3);
        let nothing = store.write(delete("/a")).await.unwrap();
        assert_eq!(nothing, Outcome::Done { revision: 3 });
    });
}

#[test]
fn expires_keys_unless_rewritten() {
    let clock = Arc::new(ManualClock::new(std::time::SystemTime::now()));
    let options = || Options { clock: clock.clone(), ..brisk() };
    let with_ttl = |key: &str, seconds| Write {
        key: key.into(),
        expected: Expected::Any,
        op: Op::Put { value: "v".into(), ttl_seconds: Some(seconds) },
    };
    let disk = SimDisk::default();
    let expect = |store: &Embedded, deleted: &[&str]| {
        let (deleted, all) = (deleted.len(), KeyRange::prefix("/"));
        block_on(async {
            let mut watch = store.watch(all, 1).await.unwrap();
            let mut seen = Vec::new();
            while seen.len() < deleted {
                if let Some(WatchMessage::Changes(changes)) = watch.next().await {
                    let is_delete = |change: &Change| change.kind == ChangeKind::Delete;
                    seen.extend(changes.into_iter().filter(is_delete));
                }
            }
            seen.into_iter().map(|change| change.kv.key.to_string()).collect::<Vec<_>>()
        })
    };
    let store = open(&disk, options());
    block_on(async {
        store.write(with_ttl("/short", 10)).await.unwrap();
        store.write(with_ttl("/long", 100)).await.unwrap();
        store.write(with_ttl("/renewed", 10)).await.unwrap();
        store.write(put("/renewed", "for good")).await.unwrap();
    });
    clock.advance(Duration::from_secs(11));
    assert_eq!(expect(&store, &["/short"]), ["/short"]);
    assert!(block_on(value(&store, "/long")).is_some());
    drop(store);
    clock.advance(Duration::from_secs(100));
    let store = open(&disk, options());
    assert_eq!(expect(&store, &["/short", "/long"]), ["/short", "/long"]);
    assert_eq!(block_on(value(&store, "/renewed")), Some(b"for good".to_vec()));
}

#[test]
fn rejects_requests_over_the_limit() {
    let store = open(&SimDisk::default(), brisk());
    block_on(async {
        let large = vec![0; REQUEST_LIMIT - "/a".len()];
        store.write(put("/a", large)).await.unwrap();
        let error = store.write(put("/a", vec![0; REQUEST_LIMIT])).await.unwrap_err();
        assert!(matches!(error, Error::TooLarge { size, .. } if size == REQUEST_LIMIT + 2));
    });
}

#[test]
fn rejects_puts_over_quota_until_space_is_freed() {
    let store = open(&SimDisk::default(), Options { quota_bytes: 10_000, ..brisk() });
    block_on(async {
        let mut written = 0;
        let error = loop {
            match store.write(put(&format!("/{written}"), vec![0; 1000])).await {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
        assert!((7..10).contains(&written), "{written}");
        store.write(delete("/0")).await.unwrap();
        store.write(delete("/1")).await.unwrap();
        let now = store.revision().await.unwrap();
        store.compact(now).await.unwrap();
        store.write(put("/again", vec![0; 1000])).await.unwrap();
    });
}

#[test]
fn history_is_bounded_by_bytes() {
    let store = open(&SimDisk::default(), Options { history_bytes: 20_000, ..brisk() });
    block_on(async {
        for _ in 0..200 {
            store.write(put("/a", vec![0; 1000])).await.unwrap();
        }
        let now = store.revision().await.unwrap();
        let all = KeyRange::prefix("/");
        assert!(store.range(all.clone(), 0, now - 10).await.is_ok());
        let error = store.range(all.clone(), 0, now - 30).await.unwrap_err();
        assert!(matches!(error, Error::Compacted { .. }), "{error}");
        assert!(matches!(store.watch(all, now - 30).await, Err(Error::Compacted { .. })));
    });
}

#[test]
fn snapshots_keep_the_disk_near_the_size_of_the_data() {
    let disk = SimDisk::default();
    let store = open(&disk, Options { history_bytes: 5_000, ..brisk() });
    block_on(async {
        for round in 0..400 {
            store.write(put(&format!("/{}", round % 5), vec![0; 500])).await.unwrap();
        }
        // 400 writes are 200 KB; the live data is a twentieth of that.
        let mut size = u64::MAX;
        for _ in 0..1000 {
            size = store.size_bytes().await.unwrap();
            if size < 30_000 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(size < 30_000, "{size}");
    });
    drop(store);
    assert!(disk.names().len() <= 4, "{:?}", disk.names());
    let store = open(&disk, brisk());
    assert_eq!(block_on(store.revision()).unwrap(), 401);
}

#[test]
fn names_lock_holder_to_a_second_process() {
    let directory = tempfile::tempdir().unwrap();
    let path: &Path = &directory.path().join("data");
    let store = Embedded::open(path, Options::default()).unwrap();
    let error = Embedded::open(path, Options::default()).err().unwrap().to_string();
    assert!(error.contains(&format!("process {} holds it", std::process::id())), "{error}");
    drop(store);
    Embedded::open(path, Options::default()).unwrap();
}

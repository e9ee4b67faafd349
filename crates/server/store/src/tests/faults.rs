//! Tests of disks that fail, fill up or lie, and of damaged files.

use crate::{
    Error, KeyRange, Store, WatchMessage,
    disk::sim::SimDisk,
    embedded::{Embedded, Options},
};

use super::embedded::{block_on, brisk, done, open, put, value};

/// The first log segment of a new store.
const LOG: &str = "log-0000000000000001";

fn without_snapshots() -> Options {
    Options { snapshot_log_bytes: 1 << 30, ..brisk() }
}

#[test]
fn shows_and_acknowledges_writes_only_after_sync() {
    let disk = SimDisk::default();
    let store = open(&disk, without_snapshots());
    block_on(async {
        let mut watch = store.watch(KeyRange::prefix("/"), 0).await.unwrap();
        disk.hold_syncs(true);
        let mut write = store.write(put("/a", "1"));
        let mut next = watch.next();
        assert!(futures_util::poll!(&mut write).is_pending());
        disk.wait_for_held_sync();
        assert!(futures_util::poll!(&mut write).is_pending());
        assert!(futures_util::poll!(&mut next).is_pending());
        assert_eq!(value(&store, "/a").await, None);
        let syncs = disk.syncs();
        disk.hold_syncs(false);
        let revision = done(write.await.unwrap());
        assert_eq!(disk.syncs(), syncs + 1);
        assert_eq!(value(&store, "/a").await, Some(b"1".to_vec()));
        let Some(WatchMessage::Changes(changes)) = next.await else { panic!("no change") };
        assert_eq!(changes[0].kv.mod_revision, revision);
    });
}

#[test]
fn queued_writes_share_one_sync() {
    let disk = SimDisk::default();
    let store = open(&disk, without_snapshots());
    block_on(async {
        disk.hold_syncs(true);
        let mut first = store.write(put("/first", "1"));
        assert!(futures_util::poll!(&mut first).is_pending());
        disk.wait_for_held_sync();
        let mut rest: Vec<_> = (0..50).map(|n| store.write(put(&format!("/{n}"), "1"))).collect();
        for write in &mut rest {
            assert!(futures_util::poll!(write).is_pending());
        }
        let syncs = disk.syncs();
        disk.hold_syncs(false);
        first.await.unwrap();
        let revisions: Vec<_> = futures_util::future::join_all(rest)
            .await
            .into_iter()
            .map(|o| done(o.unwrap()))
            .collect();
        assert_eq!(revisions, (3..53).collect::<Vec<_>>());
        assert_eq!(disk.syncs(), syncs + 2);
    });
}

#[test]
fn full_disk_fails_writes_until_space_is_freed() {
    let disk = SimDisk::default();
    let store = open(&disk, without_snapshots());
    block_on(async {
        store.write(put("/before", "1")).await.unwrap();
        let length = disk.length(LOG);
        for space in [0, 1, 20, 100] {
            disk.set_space(Some(space));
            let error = store.write(put("/full", vec![0; 1000])).await.unwrap_err();
            assert!(matches!(error, Error::NoSpace { .. }), "{error}");
            assert_eq!(value(&store, "/full").await, None);
        }
        assert_eq!(disk.length(LOG), length);
        disk.set_space(None);
        assert_eq!(done(store.write(put("/after", "2")).await.unwrap()), 3);
    });
    drop(store);
    for seed in 0..50 {
        let store = open(&disk.after_power_loss(seed), brisk());
        block_on(async {
            assert_eq!(value(&store, "/before").await, Some(b"1".to_vec()));
            assert_eq!(value(&store, "/full").await, None);
            assert_eq!(value(&store, "/after").await, Some(b"2".to_vec()));
        });
    }
}

#[test]
fn starts_new_segment_after_failed_sync() {
    let disk = SimDisk::default();
    let store = open(&disk, without_snapshots());
    block_on(async {
        store.write(put("/before", "1")).await.unwrap();
        disk.fail_syncs(1);
        let error = store.write(put("/lost", vec![0; 1000])).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { operation: "write", .. }), "{error}");
        assert_eq!(value(&store, "/lost").await, None);
        store.write(put("/after", "2")).await.unwrap();
    });
    drop(store);
    for seed in 0..50 {
        let store = open(&disk.after_power_loss(seed), brisk());
        block_on(async {
            assert_eq!(value(&store, "/before").await, Some(b"1".to_vec()));
            assert_eq!(value(&store, "/lost").await, None);
            assert_eq!(value(&store, "/after").await, Some(b"2".to_vec()));
        });
    }
}

#[test]
fn values_read_after_restart_survive_power_loss() {
    let disk = SimDisk::default();
    let store = open(&disk, without_snapshots());
    disk.fail_syncs(1);
    assert!(block_on(store.write(put("/unknown", vec![1; 1000]))).is_err());
    drop(store);
    // The page cache still has the bytes, but the medium does not: once read they must survive.
    let store = open(&disk, brisk());
    let read = block_on(value(&store, "/unknown"));
    assert_eq!(read, Some(vec![1; 1000]));
    for seed in 0..20 {
        let store = open(&disk.after_power_loss(seed), brisk());
        assert_eq!(block_on(value(&store, "/unknown")), read);
    }
}

#[test]
fn failing_syncs_reject_writes_and_serve_reads() {
    let disk = SimDisk::default();
    let store = open(&disk, without_snapshots());
    block_on(async {
        store.write(put("/a", "1")).await.unwrap();
        disk.fail_syncs(5);
        for _ in 0..5 {
            assert!(store.write(put("/a", "2")).await.is_err());
            assert_eq!(value(&store, "/a").await, Some(b"1".to_vec()));
        }
        assert_eq!(done(store.write(put("/a", "3")).await.unwrap()), 3);
    });
}

#[test]
fn cuts_torn_tail_at_any_offset() {
    let disk = SimDisk::default();
    let store = open(&disk, without_snapshots());
    let (mut before, mut after) = (0, 0);
    block_on(async {
        store.write(put("/a", "1")).await.unwrap();
        before = disk.length(LOG);
        store.write(put("/b", vec![7; 700])).await.unwrap();
        after = disk.length(LOG);
    });
    drop(store);
    for length in before..after {
        for zeroes in [false, true] {
            let torn = disk.after_power_loss(0);
            torn.corrupt(LOG, |bytes| {
                bytes.truncate(length);
                if zeroes {
                    bytes.resize(after, 0);
                }
            });
            let store = open(&torn, brisk());
            block_on(async {
                assert_eq!(value(&store, "/a").await, Some(b"1".to_vec()));
                assert_eq!(value(&store, "/b").await, None);
                assert_eq!(done(store.write(put("/c", "3")).await.unwrap()), 3);
            });
            drop(store);
            assert_eq!(block_on(value(&open(&torn, brisk()), "/c")), Some(b"3".to_vec()));
        }
    }
}

#[test]
fn reports_damage_before_tail_with_file_and_offset() {
    let disk = SimDisk::default();
    let store = open(&disk, without_snapshots());
    let mut offsets = Vec::new();
    block_on(async {
        for n in 0..4 {
            offsets.push(disk.length(LOG) as u64);
            store.write(put(&format!("/{n}"), "value")).await.unwrap();
        }
    });
    drop(store);
    for damaged in &offsets[..3] {
        let bad = disk.after_power_loss(0);
        bad.corrupt(LOG, |bytes| bytes[*damaged as usize + 30] ^= 1);
        match Embedded::open_on(std::sync::Arc::new(bad), brisk()).err() {
            Some(Error::Corrupt { file, offset, .. }) => {
                assert_eq!((file.as_str(), offset), ("sim/log-0000000000000001", *damaged));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn damaged_or_missing_file_is_not_an_empty_store() {
    let disk = SimDisk::default();
    let store = open(&disk, Options { history_bytes: 1000, ..brisk() });
    block_on(async {
        while !disk
            .names()
            .iter()
            .any(|name| name.starts_with("snapshot-") && !name.ends_with(".tmp"))
        {
            for n in 0..5 {
                store.write(put(&format!("/{n}"), vec![1; 200])).await.unwrap();
            }
        }
        store.write(put("/last", "1")).await.unwrap();
    });
    drop(store);
    let names = disk.names();
    assert!(names.iter().any(|name| name.starts_with("snapshot-")), "{names:?}");
    for name in &names {
        let bad = disk.after_power_loss(0);
        crate::disk::Disk::remove(&bad, name).unwrap();
        let error = Embedded::open_on(std::sync::Arc::new(bad), brisk()).err();
        assert!(matches!(error, Some(Error::Corrupt { .. })), "{name}: {error:?}");
        if name.starts_with("snapshot-") {
            for at in (0..disk.length(name)).step_by(97) {
                let bad = disk.after_power_loss(0);
                bad.corrupt(name, |bytes| bytes[at] ^= 0x40);
                let error = Embedded::open_on(std::sync::Arc::new(bad), brisk()).err();
                assert!(matches!(error, Some(Error::Corrupt { .. })), "{name} at {at}: {error:?}");
            }
        }
    }
}

//! Tests of snapshots built byte by byte.

use std::io::Cursor;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::*;

const PAGE: usize = 4096;

fn set(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}

fn leaf(number: u64, elements: &[(u32, &[u8], Vec<u8>)]) -> Vec<u8> {
    let mut page = vec![0; 16 + elements.len() * 16];
    set(&mut page, 0, &number.to_le_bytes());
    set(&mut page, 8, &2_u16.to_le_bytes());
    set(&mut page, 10, &(elements.len() as u16).to_le_bytes());
    for (index, (kind, key, value)) in elements.iter().enumerate() {
        let at = 16 + index * 16;
        let place = (page.len() - at) as u32;
        let parts = [*kind, place, key.len() as u32, value.len() as u32];
        parts.iter().zip(0..).for_each(|(part, n)| set(&mut page, at + n * 4, &part.to_le_bytes()));
        page.extend_from_slice(key);
        page.extend_from_slice(value);
    }
    page
}

fn bucket(root: u64, inline: Vec<u8>) -> Vec<u8> {
    [root.to_le_bytes().to_vec(), vec![0; 8], inline].concat()
}

fn meta(number: u64, turn: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    set(&mut page, 0, &number.to_le_bytes());
    set(&mut page, 8, &4_u16.to_le_bytes());
    for (at, value) in [(0, 0xED0C_DAED_u32), (4, 2), (8, PAGE as u32)] {
        set(&mut page, 16 + at, &value.to_le_bytes());
    }
    for (at, value) in [(16, 3_u64), (32, 2), (40, 5), (48, turn)] {
        set(&mut page, 16 + at, &value.to_le_bytes());
    }
    let sum = page[16..72].iter().fold(0xCBF2_9CE4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    set(&mut page, 72, &sum.to_le_bytes());
    page
}

/// Returns a change as etcd stores it: its revision and a message of type KeyValue.
fn change(main: u64, key: &str, deleted: bool) -> (u32, Vec<u8>, Vec<u8>) {
    let mut revision = [&main.to_be_bytes()[..], b"_", &[0; 8]].concat();
    revision.extend_from_slice(if deleted { b"t" } else { b"" });
    let value = [&[0x0A, key.len() as u8], key.as_bytes(), &[0x18, 0x02, 0x2A, 1, b'v']].concat();
    (0, revision, value)
}

const OBJECT: &str = "/registry/namespaces/default";

/// Returns a snapshot as etcd creates it: with inline buckets, a bucket on a page of its own, and the sum.
fn snapshot() -> Vec<u8> {
    snapshot_of(&[change(5, "compact_rev_key", false), change(6, OBJECT, false)])
}

fn snapshot_of(changes: &[(u32, Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let changes: Vec<(u32, &[u8], Vec<u8>)> =
        changes.iter().map(|(kind, key, value)| (*kind, &key[..], value.clone())).collect();
    let old: Vec<(u32, &[u8], Vec<u8>)> = vec![(0, b"aa", b"old".to_vec())];
    let numbers: Vec<(u32, &[u8], Vec<u8>)> =
        vec![(0, b"consistent_index", vec![9; 8]), (0, b"term", vec![9; 8])];
    let root: Vec<(u32, &[u8], Vec<u8>)> = vec![
        (1, b"key", bucket(0, leaf(0, &changes))),
        (1, b"members", bucket(4, Vec::new())),
        (1, b"members_removed", bucket(0, leaf(0, &old))),
        (1, b"meta", bucket(0, leaf(0, &numbers))),
    ];
    let mut pages = [meta(0, 8), meta(1, 7), vec![0; PAGE], leaf(3, &root), leaf(4, &old)];
    pages.iter_mut().for_each(|page| page.resize(PAGE, 0));
    summed(pages.concat())
}

fn summed(mut database: Vec<u8>) -> Vec<u8> {
    let sum = Sha256::digest(&database);
    database.extend_from_slice(&sum);
    database
}

fn initial_cluster() -> InitialCluster {
    InitialCluster::new("token", [("a", "https://a:2380"), ("b", "https://b:2380")])
}

fn prepared(snapshot: Vec<u8>) -> Result<Vec<u8>, Error> {
    let mut file = Cursor::new(snapshot);
    let length = prepare(&mut file, &initial_cluster())?;
    let mut bytes = file.into_inner();
    bytes.truncate(length as usize);
    Ok(bytes)
}

#[test]
fn prepares_snapshot_for_other_members() {
    let snapshot = snapshot();
    assert_eq!(size(&snapshot).unwrap(), snapshot.len() as u64);
    let database = prepared(snapshot).unwrap();
    // Three more pages, one for each replaced bucket.
    assert_eq!(database.len(), 8 * PAGE);
    assert_eq!(size(&database).unwrap(), 8 * PAGE as u64 + 32);
    let added = &database[5 * PAGE..];
    let behind = |text: &[u8]| {
        let at = added.windows(text.len()).position(|window| window == text);
        at.map(|at| u64::from_be_bytes(added[at + text.len()..][..8].try_into().unwrap()))
    };
    assert_eq!(behind(b"consistent_index"), Some(2));
    for name in ["finishedCompactRev", "scheduledCompactRev"] {
        assert_eq!(behind(name.as_bytes()), Some(1_000_000_006), "{name}");
    }
    assert!(behind(br#""peerURLs":["https://b:2380"]"#).is_some(), "no members");
    // The list of free pages is not stored, so bbolt reads all pages.
    assert_eq!(database[16 + 32..][..8], [0xFF; 8]);
    let mut again = Cursor::new(database);
    let end = again.get_ref().len() as u64;
    bolt::Bolt::open(&mut again, end).unwrap().visit(&mut |_, _, _| Ok(())).unwrap();
}

#[test]
fn distinguishes_foreign_from_damaged_files() {
    let error_of = |bytes: Vec<u8>| prepared(bytes).unwrap_err().to_string();
    let whole = snapshot();
    assert!(error_of(Vec::new()).contains("ends before the sum"));
    assert!(error_of(whole[..whole.len() - 1].to_vec()).contains("ends before the sum"));
    assert!(error_of(whole[..whole.len() - 512].to_vec()).contains("its sum differs"));
    assert!(error_of(summed(vec![0; 8 * PAGE])).contains("does not begin as an etcd database"));
    // The sum is right, but the database is shorter than its header says.
    let cut = whole[..3 * PAGE].to_vec();
    assert!(error_of(summed(cut)).contains("shorter than its header says"));
    // A bbolt database of another program.
    let mut other = whole[..5 * PAGE].to_vec();
    for (index, window) in whole[..5 * PAGE].windows(4).enumerate() {
        if window == b"meta" {
            other[index] = b'n';
        }
    }
    assert!(error_of(summed(other)).contains("etcd's buckets are missing"));
}

/// Without objects, the restored store would be empty, and etcd would not even start: it writes the log's index into
/// the database only with the first change.
#[test]
fn rejects_snapshots_without_objects() {
    for changes in [
        vec![],
        vec![change(2, "compact_rev_key", false)],
        vec![change(2, "/registry", false), change(3, "/other/registry/a", false)],
        vec![change(2, OBJECT, false), change(3, OBJECT, true)],
    ] {
        let error = prepared(snapshot_of(&changes)).unwrap_err();
        assert!(matches!(error, Error::NoObjects), "{changes:?}: {error}");
    }
    let deleted = change(3, "/registry/namespaces/other", true);
    prepared(snapshot_of(&[change(2, OBJECT, false), deleted])).unwrap();
}

#[test]
fn rejects_hostile_pages_with_a_right_sum() {
    let last = |main: u64| snapshot_of(&[change(main, OBJECT, false)]);
    let mut cases = vec![(last(u64::MAX - 5), "its revision is larger than any")];
    let order = [change(6, OBJECT, false), change(5, OBJECT, false)];
    cases.push((snapshot_of(&order), "not in order"));
    let mut of = |at: usize, bytes: &[u8], reason: &'static str| {
        let mut whole = snapshot()[..5 * PAGE].to_vec();
        set(&mut whole, at, bytes);
        cases.push((summed(whole), reason));
    };
    let (root, own) = (3 * PAGE, 4 * PAGE);
    // Zero pages, and a page of another number or kind.
    of(own, &[0; PAGE], "number of another");
    of(root, &[0; PAGE], "number of another");
    of(own, &3_u64.to_le_bytes(), "number of another");
    of(own + 8, &16_u16.to_le_bytes(), "wrong kind");
    // Counts of elements and of overflow pages beyond the page and beyond the file.
    of(own + 10, &u16::MAX.to_le_bytes(), "ends before its elements");
    of(own + 12, &1_u32.to_le_bytes(), "beyond the file's end");
    of(own + 12, &u32::MAX.to_le_bytes(), "larger than any");
    // A bucket whose tree is the root's: a loop of buckets.
    let members = snapshot().windows(7).position(|window| window == b"members").unwrap();
    of(members + 7, &3_u64.to_le_bytes(), "used twice");
    of(members + 7, &u64::MAX.to_le_bytes(), "ends before its elements");
    of(members + 7, &1_u64.to_le_bytes(), "used twice");
    // A branch page whose child is itself.
    let mut branch = 4_u64.to_le_bytes().to_vec();
    branch.extend_from_slice(&[1, 0, 1, 0, 0, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0]);
    branch.extend_from_slice(&4_u64.to_le_bytes());
    branch.push(b'a');
    of(own, &branch, "used twice");
    for (index, (bytes, reason)) in cases.into_iter().enumerate() {
        let error = prepared(bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "case {index}: {error}, not {reason:?}");
    }
}

#[test]
fn corrupt_snapshots_do_not_read_out_of_bounds() {
    let whole = snapshot();
    for seed in 0..5_000 {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut bytes = whole[..5 * PAGE].to_vec();
        for _ in 0..random.random_range(1..6) {
            // Bytes in the pages' headers and elements.
            let at = random.random_range(0..5) * PAGE + random.random_range(0..200);
            bytes[at] = random.random();
        }
        if let Ok(database) = prepared(summed(bytes)) {
            assert!(database.len() <= 10 * PAGE, "seed {seed}");
        }
        drop(size(&whole[..random.random_range(0..whole.len())]));
    }
}

#[test]
fn writes_one_log_per_initial_member() {
    let initial_cluster = initial_cluster();
    let (name, a) = log_file(&initial_cluster, "a").unwrap();
    let (_, b) = log_file(&initial_cluster, "b").unwrap();
    assert!(
        name.ends_with(".wal")
            && a != b
            && a.len() % 8 == 0
            && log_file(&initial_cluster, "c").is_none()
    );
    // Another token gives the same members other IDs.
    let other = InitialCluster::new("other", [("a", "https://a:2380"), ("b", "https://b:2380")]);
    assert_ne!(raft_file(&other).1, raft_file(&initial_cluster).1);
    assert_eq!(raft_file(&initial_cluster).0, "0000000000000001-0000000000000002.snap");
}

#[test]
fn computes_crc32c() {
    assert_eq!(log::sum(0, b"123456789"), 0xE306_9283);
    assert_eq!(log::sum(log::sum(0, b"1234"), b"56789"), 0xE306_9283);
}

#[test]
fn damaged_snapshots_are_rejected_or_prepared() {
    let seed = snapshot();
    let database = &seed[..seed.len() - 32];
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "snapshots", &[database], |input| {
        let _ = size(input);
        // With the right sum, the damage reaches the parser of pages.
        let Ok(database) = prepared(summed(input.to_vec())) else { return };
        // A database that was prepared can be read again.
        let (end, mut again) = (database.len() as u64, Cursor::new(database));
        let read =
            bolt::Bolt::open(&mut again, end).and_then(|mut b| b.visit(&mut |_, _, _| Ok(())));
        read.unwrap_or_else(|e| panic!("{e}"));
    });
}

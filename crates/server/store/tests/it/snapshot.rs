//! Tests of saving and restoring a store on a real disk.

use store::{
    Error, Expected, KeyRange, Op, Snapshot, Store, Write,
    embedded::{Embedded, Options},
};

#[tokio::test]
async fn restores_snapshot_to_the_same_store() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let store = Embedded::open(&at("data"), Options::default()).unwrap();
    for n in 0..1000 {
        store.write(crate::put(&format!("/{}", n % 300), vec![0; n])).await.unwrap();
    }
    store.write(Write { key: "/7".into(), expected: Expected::Any, op: Op::Delete }).await.unwrap();
    let saved = Snapshot::save(&store, &at("saved")).unwrap();
    assert_eq!((saved.revision, saved.keys), (1002, 299));
    store.write(crate::put("/later", "not in the snapshot")).await.unwrap();

    let restored = Snapshot::restore(&at("saved"), &at("same"), 0).unwrap();
    assert_eq!(restored, saved);
    let same = Embedded::open(&at("same"), Options::default()).unwrap();
    for revision in [0, 500, 1001] {
        let at_revision = if revision == 0 { 1002 } else { revision };
        let wanted = store.range(KeyRange::prefix("/"), 0, at_revision).await.unwrap();
        let found = same.range(KeyRange::prefix("/"), 0, revision).await.unwrap();
        assert_eq!(found.items, wanted.items);
    }
    assert!(same.watch(KeyRange::prefix("/"), 500).await.is_ok());

    let ahead = Snapshot::restore(&at("saved"), &at("ahead"), 1_000_000).unwrap();
    assert_eq!(ahead.revision, 1_001_002);
    let ahead = Embedded::open(&at("ahead"), Options::default()).unwrap();
    let wanted = store.range(KeyRange::prefix("/"), 0, 1002).await.unwrap();
    assert_eq!(ahead.range(KeyRange::prefix("/"), 0, 0).await.unwrap().items, wanted.items);
    let old = ahead.watch(KeyRange::prefix("/"), 1003).await.err();
    assert!(matches!(old, Some(Error::Compacted { .. })), "{old:?}");
}

#[tokio::test]
async fn rejects_restore_over_store_or_from_damaged_file() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let store = Embedded::open(&at("data"), Options::default()).unwrap();
    store.write(crate::put("/a", "1")).await.unwrap();
    Snapshot::save(&store, &at("saved")).unwrap();
    drop(store);
    let error = Snapshot::restore(&at("saved"), &at("data"), 0).unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");
    let mut bytes = std::fs::read(at("saved")).unwrap();
    bytes.truncate(bytes.len() - 1);
    std::fs::write(at("saved"), bytes).unwrap();
    let error = Snapshot::restore(&at("saved"), &at("new"), 0).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(!at("new").exists());
}

//! Tests of copies between stores, and of snapshots of any store.

use std::time::SystemTime;

use bytes::Bytes;

use crate::{
    Error, Expected, KeyRange, Keyspace, Op, Outcome, Snapshot, Store, Write, copy,
    embedded::{Embedded, Options},
};

const KEYSPACE: Keyspace = Keyspace {
    first: "/registry/kinds/",
    expiring: &[("/registry/events/", 3600)],
    excluded: &["/registry/leases-of-servers/"],
};

fn open(directory: &tempfile::TempDir) -> Embedded {
    Embedded::open(directory.path(), Options::default()).unwrap()
}

async fn put(store: &Embedded, key: &str, value: &str) {
    let op = Op::Put { value: Bytes::copy_from_slice(value.as_bytes()), ttl_seconds: None };
    let write = Write { key: key.into(), expected: Expected::Any, op };
    assert!(matches!(store.write(write).await.unwrap(), Outcome::Done { .. }));
}

async fn content(store: &dyn Store) -> Vec<(String, Bytes)> {
    let found = store.range(KeyRange::prefix("/"), 0, 0).await.unwrap();
    found.items.into_iter().map(|kv| (kv.key.to_string(), kv.value)).collect()
}

/// Writes more than a page of objects, some twice, and deletes some.
async fn filled(store: &Embedded) {
    for n in 0..2500 {
        put(store, &format!("/registry/things/{n:05}"), &format!("{n}")).await;
    }
    for n in 0..100 {
        put(store, &format!("/registry/things/{n:05}"), "again").await;
    }
    for key in ["/registry/kinds/a", "/registry/events/e", "/registry/leases-of-servers/x"] {
        put(store, key, "1").await;
    }
    let op = Op::Delete;
    let delete = Write { key: "/registry/things/00007".into(), expected: Expected::Any, op };
    store.write(delete).await.unwrap();
}

#[tokio::test]
async fn copies_every_object_with_later_revisions() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (open(&a), open(&b));
    filled(&from).await;
    let before = from.revision().await.unwrap();
    let copied = copy(&from, &to, 10, KEYSPACE).await.unwrap();
    assert_eq!((copied.keys, copied.from), (2501, before));
    let mut expected = content(&from).await;
    expected.retain(|(key, _)| !key.starts_with("/registry/leases-of-servers/"));
    assert_eq!(content(&to).await, expected);

    // A client of the old store lists again and never meets one of its revisions with another meaning.
    let range = to.range(KeyRange::prefix("/"), 0, 0).await.unwrap();
    assert!(range.items.iter().all(|kv| kv.mod_revision > before + 10), "{before}");
    let kind = to.get("/registry/kinds/a").await.unwrap().0.unwrap();
    assert!(range.items.iter().all(|kv| kv.mod_revision >= kind.mod_revision), "kinds come first");
    let old = to.range(KeyRange::prefix("/"), 0, before).await;
    assert!(matches!(old, Err(Error::Compacted { .. })), "{old:?}");

    let again = copy(&from, &to, 0, KEYSPACE).await;
    assert!(matches!(again, Err(Error::NotEmpty { keys: 2501 })), "{again:?}");
}

#[tokio::test]
async fn restores_snapshot_with_later_revisions() {
    let (a, b, c) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = open(&a);
    filled(&from).await;
    let file = b.path().join("saved");
    let now = SystemTime::now();
    let saved = Snapshot::save_from(&from, KEYSPACE, &file, now).await.unwrap();
    assert_eq!((saved.keys, saved.revision), (2502, from.revision().await.unwrap()));
    let directory = c.path().join("store");
    Snapshot::restore(&file, &directory, 1000).unwrap();
    let restored = Embedded::open(&directory, Options::default()).unwrap();
    assert_eq!(content(&restored).await, content(&from).await);
    assert_eq!(restored.revision().await.unwrap(), saved.revision + 1000);
}

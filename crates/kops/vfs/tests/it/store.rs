//! Tests of a store in a directory.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use vfs::{Error, Precondition, Secrecy, Store};

use crate::store;

#[test]
fn second_of_two_writers_gets_a_conflict() {
    let (_dir, store) = store();
    let write = |content: &str, since: &Precondition| {
        store.write("a/config", content.as_bytes(), since, Secrecy::Open)
    };
    let first = write("one", &Precondition::Absent).unwrap();
    assert!(matches!(write("two", &Precondition::Absent), Err(Error::Conflict { .. })));
    write("two", &Precondition::Read(first.clone())).unwrap();
    assert!(matches!(
        write("three", &Precondition::Read(first.clone())),
        Err(Error::Conflict { .. })
    ));
    assert!(matches!(store.remove("a/config", &first), Err(Error::Conflict { .. })));
    let (content, version) = store.read("a/config").unwrap().unwrap();
    assert_eq!(content, b"two");
    store.remove("a/config", &version).unwrap();
    assert!(store.read("a/config").unwrap().is_none());
    assert!(matches!(write("x", &Precondition::Read(version)), Err(Error::Conflict { .. })));
}

/// Increments a counter `times` times, each time from its present value.
pub(crate) fn count_up(store: &Store, times: usize) {
    for _ in 0..times {
        loop {
            let read = store.read("count").expect("a store that reads");
            let count = read
                .as_ref()
                .map_or(0, |(c, _)| String::from_utf8_lossy(c).parse().expect("a number"));
            let since =
                read.map_or(Precondition::Absent, |(_, version)| Precondition::Read(version));
            let next: u32 = count + 1;
            match store.write("count", next.to_string().as_bytes(), &since, Secrecy::Open) {
                Ok(_) => break,
                Err(Error::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn concurrent_counter_updates_are_not_lost() {
    let (_dir, store) = store();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| count_up(&store, 25));
        }
    });
    assert_eq!(store.read("count").unwrap().unwrap().0, b"100");
}

#[test]
fn names_do_not_lead_out_of_the_store() {
    let (dir, store) = store();
    store.write("a/config", b"x", &Precondition::Absent, Secrecy::Open).unwrap();
    fs::create_dir(dir.path().join("secret")).unwrap();
    fs::write(dir.path().join("secret/key"), "secret").unwrap();
    let long = "a/".repeat(600);
    for name in [
        "",
        "/etc/passwd",
        "../secret/key",
        "a/../../secret/key",
        "a//b",
        "a/",
        "a\0b",
        "a\nb",
        ".",
        &long,
    ] {
        let written = store.write(name, b"x", &Precondition::Absent, Secrecy::Open);
        assert!(matches!(written, Err(Error::Name { .. })), "{name:?}");
        assert!(matches!(store.read(name), Err(Error::Name { .. })), "{name:?}");
    }
    let base = dir.path().join("state");
    symlink("../secret", base.join("out")).unwrap();
    symlink("../../secret/key", base.join("a/key")).unwrap();
    assert!(store.read("out/key").is_err() && store.read("a/key").is_err());
    assert!(store.write("out/new", b"x", &Precondition::Absent, Secrecy::Open).is_err());
    assert!(store.write("a/key", b"x", &Precondition::Absent, Secrecy::Open).is_err());
    assert_eq!(fs::read_dir(dir.path().join("secret")).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(dir.path().join("secret/key")).unwrap(), "secret");
    assert_eq!(store.list("").unwrap(), ["a/config"]);
}

#[test]
fn hides_unfinished_writes_and_protects_private_objects() {
    let (dir, store) = store();
    store.write("a/pki/key", b"k", &Precondition::Absent, Secrecy::Private).unwrap();
    store.write("a/config", b"c", &Precondition::Absent, Secrecy::Open).unwrap();
    fs::write(dir.path().join("state/a/.new-x"), "cut").unwrap();
    assert_eq!(store.list("a").unwrap(), ["a/config", "a/pki/key"]);
    assert_eq!(store.list("b").unwrap(), [""; 0]);
    let mode = |name: &str| {
        fs::metadata(dir.path().join("state").join(name)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("a/pki/key"), mode("a/config")), (0o600, 0o644));
}

#[test]
fn rejects_unsupported_store_urls() {
    for (url, reason) in [
        (
            "azure://bucket/a",
            "azure is not built yet; name file:///path, s3://bucket/path or gs://bucket/path",
        ),
        ("s3://a/b", "it does not name an S3 bucket"),
        ("/var/state", "it is not a URL"),
        ("file://state", "not absolute"),
    ] {
        let error = Store::open(url).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn copies_large_objects_between_files() {
    let (dir, store) = store();
    let file = |name: &str| dir.path().join(name);
    // More than is read into memory.
    let content = vec![7; (16 << 20) + 1];
    fs::write(file("own"), &content).unwrap();
    store.keep("a/large", &file("own")).unwrap();
    assert!(matches!(store.read("a/large"), Err(Error::TooMuch { .. })));
    let mode = fs::metadata(file("state/a/large")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // An existing object is not overwritten.
    assert!(store.keep("a/large", &file("own")).is_err());
    assert!(store.fetch("a/large", &file("copy")).unwrap().is_some());
    assert!(fs::read(file("copy")).unwrap() == content);
    assert!(store.fetch("a/large", &file("copy")).is_err());
    assert!(store.fetch("a/other", &file("none")).unwrap().is_none() && !file("none").exists());
    symlink(file("own"), file("state/link")).unwrap();
    for name in ["../own", "link", "a/../../own", ""] {
        assert!(store.fetch(name, &file("out")).is_err(), "{name}");
        assert!(!file("out").exists(), "{name}");
        if name != "link" {
            assert!(store.keep(name, &file("own")).is_err(), "{name}");
            assert!(store.discard(name).is_err(), "{name}");
        }
    }
    store.discard("a/large").unwrap();
    assert!(store.discard("a/large").is_err());
    assert!(!file("state/a").exists() && fs::read(file("own")).unwrap() == content);
}

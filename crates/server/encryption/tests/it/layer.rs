use std::sync::Arc;

use encryption::Encryption;
use store::{Expected, KeyRange, Op, Outcome, Store, WatchMessage, Write};

use crate::harness::{Bench, SECRET, get, key, of_keys, put, secrets, value};

/// Every provider decrypts its own values, and the stored prefix names the provider.
#[tokio::test]
async fn stores_values_with_their_providers_prefix() {
    for provider in ["aesgcm", "aescbc", "secretbox"] {
        let bench = Bench::new();
        let store = bench.encrypted(&secrets(&of_keys(provider, &[("key1", 1)]))).await;
        put(&store, SECRET, "plain").await.unwrap();
        let stored = value(&*bench.raw, SECRET).await.unwrap();
        let prefix = format!("k8s:enc:{provider}:v1:key1:");
        assert!(stored.starts_with(prefix.as_bytes()), "{provider}");
        assert!(!stored.windows(5).any(|part| part == b"plain"), "{provider}");
        assert_eq!(value(&store, SECRET).await.unwrap(), b"plain");
        assert!(!store.is_stale(SECRET).await.unwrap());
        // A resource without an entry is stored unencrypted.
        put(&store, "/registry/configmaps/default/one", "open").await.unwrap();
        let open = value(&*bench.raw, "/registry/configmaps/default/one").await.unwrap();
        assert_eq!(open, b"open");
    }
}

/// All values are readable with keys and providers in another order. Values of other providers than the first are
/// stale until they are written again.
#[tokio::test]
async fn first_provider_encrypts_and_all_decrypt() {
    let bench = Bench::new();
    let (old, new) = (of_keys("aescbc", &[("a", 1)]), of_keys("aescbc", &[("b", 2), ("a", 1)]));
    let steps = [
        ("{identity: {}}".to_owned(), ""),
        (format!("{old}, {{identity: {{}}}}"), "k8s:enc:aescbc:v1:a:"),
        (format!("{new}, {{identity: {{}}}}"), "k8s:enc:aescbc:v1:b:"),
        (format!("{}, {new}", of_keys("aescbc", &[("c", 3)])), "k8s:enc:aescbc:v1:c:"),
        (
            format!("{}, {}", of_keys("secretbox", &[("a", 1)]), of_keys("aescbc", &[("c", 3)])),
            "k8s:enc:secretbox:v1:a:",
        ),
        (format!("{{identity: {{}}}}, {}", of_keys("secretbox", &[("a", 1)])), ""),
    ];
    for (number, (providers, prefix)) in steps.iter().enumerate() {
        let store = bench.encrypted(&secrets(providers)).await;
        if number > 0 {
            assert_eq!(value(&store, SECRET).await.unwrap(), b"plain", "{providers}");
            assert!(store.is_stale(SECRET).await.unwrap(), "{providers}");
        }
        put(&store, SECRET, "plain").await.unwrap();
        assert!(value(&*bench.raw, SECRET).await.unwrap().starts_with(prefix.as_bytes()));
        assert!(!store.is_stale(SECRET).await.unwrap(), "{providers}");
    }
}

#[tokio::test]
async fn wrong_key_gives_upstreams_error_and_keeps_values() {
    let bench = Bench::new();
    for (provider, wrong) in [
        ("aesgcm", "cipher: message authentication failed"),
        ("secretbox", "output array was not large enough for encryption"),
    ] {
        let right = secrets(&of_keys(provider, &[("key1", 1)]));
        put(&bench.encrypted(&right).await, SECRET, "plain").await.unwrap();
        let what = if provider == "secretbox" { "Secretbox" } else { "AES" };
        let other = format!("no matching key was found for the provided {what} transformer");
        for (providers, error) in [
            (of_keys(provider, &[("key1", 2)]), wrong),
            (of_keys(provider, &[("key2", 1)]), &*other),
            (of_keys("aescbc", &[("key1", 1)]), "no matching prefix found"),
            ("{identity: {}}".to_owned(), "no matching prefix found"),
        ] {
            let store = bench.encrypted(&secrets(&providers)).await;
            assert_eq!(value(&store, SECRET).await.unwrap_err(), error, "{providers}");
            // A conflict returns the same error, and the value stays.
            let write =
                Write { key: SECRET.into(), expected: Expected::ModRevision(0), op: Op::Delete };
            let Outcome::Conflict { current: Some(current) } = store.write(write).await.unwrap()
            else {
                panic!("nothing was there");
            };
            assert_eq!(store::why_unreadable(&current.value).as_deref(), Some(error));
        }
        assert_eq!(value(&bench.encrypted(&right).await, SECRET).await.unwrap(), b"plain");
        // Without a configuration, the encrypted value is not mistaken for an object.
        let none = bench.wrap(Arc::new(Encryption::none()));
        let error = value(&none, SECRET).await.unwrap_err();
        assert_eq!(error, "no matching prefix found");
    }
}

/// An entry with the resource's name wins over one with its group, and that over one for all resources.
#[tokio::test]
async fn more_specific_entries_win_over_wildcards() {
    let bench = Bench::new();
    let by = |name| of_keys("aesgcm", &[(name, 1)]);
    let entry =
        |resource: &str, name| format!("{{resources: ['{resource}'], providers: [{}]}}", by(name));
    let entries = [
        "{resources: [events], providers: [{identity: {}}]}".to_owned(),
        entry("secrets", "named"),
        entry("*.", "core"),
        entry("pandas.awesome.example", "custom"),
        entry("*.awesome.example", "group"),
        entry("*.*", "all"),
    ];
    let store = bench.encrypted(&format!("[{}]", entries.join(", "))).await;
    for (key, name) in [
        ("/registry/events/default/one", ""),
        ("/registry/secrets/default/one", "named"),
        ("/registry/configmaps/default/one", "core"),
        ("/registry/awesome.example/pandas/one", "custom"),
        ("/registry/awesome.example/bears/one", "group"),
        ("/registry/apiregistration.k8s.io/apiservices/one", "all"),
    ] {
        put(&store, key, "plain").await.unwrap();
        let stored = value(&*bench.raw, key).await.unwrap();
        let prefix = format!("k8s:enc:aesgcm:v1:{name}:");
        let wanted = if name.is_empty() { "plain" } else { &prefix };
        assert!(stored.starts_with(wanted.as_bytes()), "{key}");
        assert_eq!(value(&store, key).await.unwrap(), b"plain", "{key}");
    }
    // Keys that hold no objects are never encrypted.
    put(&store, "compact_rev_key", "7").await.unwrap();
    assert_eq!(get(&*bench.raw, "compact_rev_key").await.value, "7");
}

#[tokio::test]
async fn decrypts_lists_and_watches() {
    let bench = Bench::new();
    let store = bench.encrypted(&secrets(&of_keys("secretbox", &[("key1", 1)]))).await;
    let range = KeyRange::prefix("/registry/secrets/");
    let mut watch = store.watch(range.clone(), 1).await.unwrap();
    put(&store, SECRET, "first").await.unwrap();
    put(&store, SECRET, "second").await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        if let Some(WatchMessage::Changes(changes)) = watch.next().await {
            seen.extend(changes);
        }
    }
    let values: Vec<_> = seen.iter().map(|change| &change.kv.value[..]).collect();
    assert_eq!(values, [&b"first"[..], b"second"]);
    let listed = store.range(range, 0, 0).await.unwrap();
    assert_eq!(listed.items[0].value, "second");
}

#[tokio::test]
async fn activates_new_configuration_if_valid() {
    let bench = Bench::new();
    bench.configure(&secrets("{identity: {}}"));
    let encryption = bench.load().await.unwrap();
    let store = bench.wrap(encryption.clone());
    let changes = encryption.changes();
    assert!(!encryption.reload(&bench.file()).await.unwrap(), "nothing changed");
    for bad in ["not yaml: [", "", "kind: Pod"] {
        std::fs::write(bench.file(), bad).unwrap();
        encryption.reload(&bench.file()).await.unwrap_err();
        put(&store, SECRET, "plain").await.unwrap();
        assert_eq!(get(&*bench.raw, SECRET).await.value, "plain");
    }
    assert!(!changes.has_changed().unwrap());
    bench.configure(&secrets(&format!("{}, {{identity: {{}}}}", of_keys("aesgcm", &[("a", 1)]))));
    assert!(encryption.reload(&bench.file()).await.unwrap());
    assert!(changes.has_changed().unwrap());
    assert!(store.is_stale(SECRET).await.unwrap());
    put(&store, SECRET, "plain").await.unwrap();
    assert!(get(&*bench.raw, SECRET).await.value.starts_with(b"k8s:enc:aesgcm:v1:a:"));
    assert_eq!(value(&store, SECRET).await.unwrap(), b"plain");
    assert!(
        !format!("{:?}", encryption::Key { name: "a".into(), secret: key(1) }).contains(&key(1))
    );
}

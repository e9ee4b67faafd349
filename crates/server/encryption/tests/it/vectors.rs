//! Tests that values written by upstream v1.36 can be read. The table's rows are upstream's: provider, key in base64,
//! storage key, value, and the stored form in hexadecimal.

use std::sync::Arc;

use data_encoding::HEXLOWER;

use crate::{
    harness::{Bench, put, secrets, value},
    kms::Plugin,
};

const ROWS: &str = include_str!("vectors.tsv");

struct Row {
    provider: &'static str,
    key: &'static str,
    place: &'static str,
    value: &'static str,
    stored: Vec<u8>,
}

fn rows() -> Vec<Row> {
    let row = |line: &'static str| {
        let columns: Vec<_> = line.split('\t').collect();
        let [provider, key, place, value, stored] = columns[..] else { panic!("{line}") };
        let stored = HEXLOWER.decode(stored.as_bytes()).unwrap();
        Row { provider, key, place, value, stored }
    };
    ROWS.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

fn entries(row: &Row, bench: &Bench) -> String {
    let provider = if row.provider.starts_with("kms") {
        bench.kms("plugin")
    } else {
        format!("{{{}: {{keys: [{{name: key1, secret: {}}}]}}}}", row.provider, row.key)
    };
    secrets(&provider)
}

#[tokio::test]
async fn reads_upstreams_values_at_their_storage_key_only() {
    let bench = Bench::new();
    let _plugin = Plugin::new("1").serve(&bench, "plugin");
    let rows = rows();
    assert!(rows.len() >= 36, "{} rows", rows.len());
    for row in rows {
        let name = format!("{} of {:?} with a key {}", row.provider, row.value, row.key);
        let store = bench.encrypted(&entries(&row, &bench)).await;
        put(&*bench.raw, row.place, row.stored.clone()).await.unwrap();
        assert_eq!(value(&store, row.place).await.as_deref(), Ok(row.value.as_bytes()), "{name}");
        // A copy at another key cannot be read, if the cipher authenticates the storage key.
        let elsewhere = "/registry/secrets/default/other";
        put(&*bench.raw, elsewhere, row.stored).await.unwrap();
        let bound = matches!(row.provider, "aesgcm" | "kms" | "kmskey");
        let read = value(&store, elsewhere).await;
        assert_eq!(
            read.err().as_deref(),
            bound.then_some("cipher: message authentication failed"),
            "{name}"
        );
    }
}

/// Checks our stored form. `WINDLASS_VECTORS` writes a table of our values, for upstream's code to read.
#[tokio::test]
async fn writes_upstreams_form() {
    let bench = Bench::new();
    let _plugin = Plugin::new("1").serve(&bench, "plugin");
    let mut table = String::new();
    for row in rows() {
        let store = bench.encrypted(&entries(&row, &bench)).await;
        put(&store, row.place, row.value).await.unwrap();
        let stored = value(&*bench.raw, row.place).await.unwrap();
        // Each value is as long as upstream's, with prefix, nonce, padding and tag in the same positions.
        if row.provider != "kmskey" {
            assert_eq!(stored.len(), row.stored.len(), "{}: {:?}", row.provider, row.value);
            let prefix = row.stored.iter().rposition(|byte| *byte == b':').unwrap_or(0).min(22);
            assert_eq!(stored[..prefix], row.stored[..prefix]);
        }
        assert_ne!(stored, row.stored, "two nonces are the same");
        let hex = HEXLOWER.encode(&stored);
        let provider = if row.provider == "kmskey" { "kms" } else { row.provider };
        table += &[provider, row.key, row.place, row.value, &hex].join("\t");
        table.push('\n');
    }
    if let Ok(path) = std::env::var("WINDLASS_VECTORS") {
        std::fs::write(path, table).unwrap();
    }
}

/// Damaged values return errors, and are kept.
#[tokio::test]
async fn damaged_values_return_errors_and_are_kept() {
    let bench = Bench::new();
    let _plugin = Plugin::new("1").serve(&bench, "plugin");
    for row in rows().into_iter().filter(|row| row.value.len() == 1) {
        let store = Arc::new(bench.encrypted(&entries(&row, &bench)).await);
        for cut in 0..row.stored.len() {
            let damaged = row.stored[..cut].to_vec();
            put(&*bench.raw, row.place, damaged.clone()).await.unwrap();
            // An empty value is not encrypted.
            if cut > 0 {
                let read = value(&*store, row.place).await;
                assert!(read.is_err(), "{} cut to {cut}", row.provider);
            }
            assert_eq!(value(&*bench.raw, row.place).await.unwrap(), damaged);
        }
    }
}

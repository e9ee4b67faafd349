//! What upstream v1.36's code has written can be read. The table's rows are its: provider, key in base64, where the value is
//! stored, the value, and what is stored in hexadecimal.

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
    secrets(&match row.provider.starts_with("kms") {
        true => bench.kms("plugin"),
        false => {
            format!("{{{}: {{keys: [{{name: key1, secret: {}}}]}}}}", row.provider, row.key)
        }
    })
}

#[tokio::test]
async fn what_upstream_wrote_is_read_at_its_place_only() {
    let bench = Bench::new();
    let _plugin = Plugin::new("1").serve(&bench, "plugin");
    let rows = rows();
    assert!(rows.len() >= 36, "{} rows", rows.len());
    for row in rows {
        let name = format!("{} of {:?} with a key {}", row.provider, row.value, row.key);
        let store = bench.encrypted(&entries(&row, &bench)).await;
        put(&*bench.raw, row.place, row.stored.clone()).await.unwrap();
        assert_eq!(value(&store, row.place).await.as_deref(), Ok(row.value.as_bytes()), "{name}");
        // Copied to another place, it is not read there, where the cipher knows of places.
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

/// With `WINDLASS_VECTORS` it writes a table of ours, for upstream's code to read.
#[tokio::test]
async fn what_is_written_has_upstreams_form() {
    let bench = Bench::new();
    let _plugin = Plugin::new("1").serve(&bench, "plugin");
    let mut table = String::new();
    for row in rows() {
        let store = bench.encrypted(&entries(&row, &bench)).await;
        put(&store, row.place, row.value).await.unwrap();
        let stored = value(&*bench.raw, row.place).await.unwrap();
        // Each is as long as upstream's: prefix, nonce, padding and tag are where they were.
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

/// Whatever is damaged gives an error, and what is there stays.
#[tokio::test]
async fn damaged_values_are_errors_and_stay() {
    let bench = Bench::new();
    let _plugin = Plugin::new("1").serve(&bench, "plugin");
    for row in rows().into_iter().filter(|row| row.value.len() == 1) {
        let store = Arc::new(bench.encrypted(&entries(&row, &bench)).await);
        for cut in 0..row.stored.len() {
            let damaged = row.stored[..cut].to_vec();
            put(&*bench.raw, row.place, damaged.clone()).await.unwrap();
            // An empty value is none.
            if cut > 0 {
                let read = value(&*store, row.place).await;
                assert!(read.is_err(), "{} cut to {cut}", row.provider);
            }
            assert_eq!(value(&*bench.raw, row.place).await.unwrap(), damaged);
        }
    }
}

//! Tests a process that is killed while it writes. The test runs itself as that process.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use store::{
    KeyRange, Outcome, Store,
    embedded::{Embedded, Options},
};

const DIRECTORY: &str = "STORE_TEST_KILL_DIRECTORY";
const WRITERS: u64 = 8;
/// The number of acknowledgements that the parent awaits before it kills the child.
const ENOUGH: usize = 3000;

fn options() -> Options {
    Options { snapshot_log_bytes: 100_000, history_bytes: 100_000, ..Options::default() }
}

/// Returns the `n`-th value of a writer.
fn content(writer: u64, n: u64) -> Vec<u8> {
    format!("{writer}/{n};").into_bytes().repeat(1 + (n % 50) as usize)
}

#[test]
#[ignore = "the process that is killed; kill_9_loses_nothing_acknowledged starts it"]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let store = Embedded::open(Path::new(&directory), options()).unwrap();
    let store = std::sync::Arc::new(store);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let store = store.clone();
            writers.spawn(async move {
                for n in 0.. {
                    let key = format!("/{writer}/{}", n % 10);
                    let outcome = store.write(crate::put(&key, content(writer, n))).await.unwrap();
                    let Outcome::Done { revision, .. } = outcome else { panic!("{outcome:?}") };
                    // One write call per line, bypassing the test harness's capture: every line the parent reads was
                    // acknowledged.
                    let line = format!("\nacknowledged {writer} {n} {revision}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            });
        }
        writers.join_next().await
    });
}

#[test]
fn kill_9_loses_nothing_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let mut newest = 0;
    for round in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::child", "--ignored", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acknowledged = BTreeMap::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut count = 0;
        while let Some(Ok(line)) = lines.next() {
            let Some(rest) = line.strip_prefix("acknowledged ") else { continue };
            let numbers: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
            // The kill may cut the last line short.
            let [writer, n, revision] = numbers[..] else { continue };
            acknowledged.insert(writer, n);
            newest = newest.max(revision);
            count += 1;
            if count == ENOUGH {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(count >= ENOUGH, "round {round}: the child ended after {count} writes");
        check(directory.path(), &acknowledged, newest);
    }
}

fn check(directory: &Path, acknowledged: &BTreeMap<u64, u64>, newest: u64) {
    let store = Embedded::open(directory, options()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let found = runtime.block_on(store.range(KeyRange::prefix("/"), 0, 0)).unwrap();
    assert!(found.revision >= newest, "at {}, acknowledged {newest}", found.revision);
    let values: BTreeMap<String, Vec<u8>> =
        found.items.iter().map(|kv| (kv.key.to_string(), kv.value.to_vec())).collect();
    for (writer, last) in acknowledged {
        // Each writer waits for its writes, so at most one write after the last acknowledged may exist.
        for n in last.saturating_sub(8)..=*last {
            let value = &values[&format!("/{writer}/{}", n % 10)];
            assert!(
                *value == content(*writer, n) || *value == content(*writer, n + 10),
                "writer {writer} was told that {n} is durable"
            );
        }
    }
}

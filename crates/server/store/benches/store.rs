//! `cargo bench -p store`: writes a second, one at a time and 64 in flight, and the time to start with
//! 100,000 objects. The directory is `$STORE_BENCH_DIR` or the system's temporary one.

use std::{path::Path, sync::Arc, time::Instant};

use store::{
    Expected, KeyRange, Op, Store, Write,
    embedded::{Embedded, Options},
};

const VALUE: usize = 1024;

fn put(n: usize) -> Write {
    let op = Op::Put { value: vec![b'x'; VALUE].into(), ttl_seconds: None };
    Write {
        key: format!("/registry/configmaps/default/{n:07}").into(),
        expected: Expected::Any,
        op,
    }
}

async fn puts(store: &Arc<Embedded>, from: usize, count: usize, in_flight: usize) -> f64 {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for lane in 0..in_flight {
        let store = store.clone();
        tasks.spawn(async move {
            for n in (lane..count).step_by(in_flight) {
                store.write(put(from + n)).await.expect("write");
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.expect("writer");
    }
    count as f64 / started.elapsed().as_secs_f64()
}

fn start(directory: &Path) -> Arc<Embedded> {
    Arc::new(Embedded::open(directory, Options::default()).expect("open"))
}

fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn main() {
    let base = std::env::var_os("STORE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let directory = tempfile::tempdir_in(base).expect("temporary directory");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("runtime");
    let store = start(directory.path());
    let alone = runtime.block_on(puts(&store, 0, 5_000, 1));
    println!("puts of {VALUE} bytes, one at a time: {alone:.0}/s");
    let together = runtime.block_on(puts(&store, 5_000, 95_000, 64));
    println!("puts of {VALUE} bytes, 64 in flight: {together:.0}/s");
    println!("resident with 100,000 objects: {} MB", resident_kb() / 1024);
    let many = runtime.block_on(puts(&store, 0, 100_000, 1000));
    println!("puts of {VALUE} bytes, 1000 in flight: {many:.0}/s");
    println!("resident with as many superseded, history bounded: {} MB", resident_kb() / 1024);
    drop(store);
    let started = Instant::now();
    let store = start(directory.path());
    println!("start with 100,000 objects: {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    let started = Instant::now();
    let found = runtime.block_on(store.range(KeyRange::prefix("/registry/"), 0, 0)).expect("range");
    assert_eq!(found.count, 100_000);
    println!("range of 100,000 keys: {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
    println!("disk: {} MB", runtime.block_on(store.size_bytes()).expect("size") >> 20);
}

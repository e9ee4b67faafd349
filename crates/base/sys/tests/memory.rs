//! Free memory returns to the kernel. The test is alone in its process, because it reads the process's memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::{
    thread,
    time::{Duration, Instant},
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Returns the resident memory of this process, in megabytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() / 1000
}

#[test]
fn returns_memory_of_idle_process() {
    let before = resident();
    let objects: Vec<Vec<u8>> = (0..30_000).map(|_| vec![1; 4000]).collect();
    assert!(resident() >= before + 100);
    drop(objects);
    let deadline = Instant::now() + Duration::from_secs(60);
    while resident() > before + 30 {
        assert!(Instant::now() < deadline, "{} MB are resident, {before} MB before", resident());
        thread::yield_now();
        sys::return_free_memory();
    }
}

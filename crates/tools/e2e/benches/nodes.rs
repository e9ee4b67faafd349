//! Measures the cost of five nodes on one machine: `cargo xtask bench nodes`.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use e2e::{Cluster, lock_machine, processes, proportional_size};

const NODES: u32 = 5;
/// The time for which the nodes settle before they are measured.
const SETTLE: Duration = Duration::from_secs(20);

fn main() {
    let _turn = lock_machine();
    let cluster = Cluster::new("bench");
    let started = Instant::now();
    let shown = cluster.up_with(&["--nodes", &NODES.to_string()]);
    let up = started.elapsed();
    eprintln!("{}", shown.stderr);
    shown.ok();
    thread::sleep(SETTLE);
    let memory = memory(&cluster) / f64::from(NODES);
    for (what, value) in [
        ("up --nodes 5, to all Ready and cluster DNS", format!("{:.2} s", up.as_secs_f64())),
        ("memory, idle, a node without the runtime", format!("{memory:.1} MB")),
    ] {
        println!("{what:<44} {value:>20}");
    }
}

/// Returns the PSS of all windlass processes of the cluster in megabytes, including those in Pods.
fn memory(cluster: &Cluster) -> f64 {
    let is_ours = |pid: &u32| {
        let program = fs::read_link(format!("/proc/{pid}/exe"));
        program.is_ok_and(|program| program.ends_with("windlass"))
    };
    let pids = processes(cluster).into_iter().map(|(pid, _)| pid);
    pids.filter(is_ours).map(proportional_size).sum::<u64>() as f64 / 1e6
}

//! What a cluster costs: `cargo xtask bench`. Prints a table that README and the project's budgets can quote.

use std::{
    fs,
    time::{Duration, Instant},
};

use e2e::{Cluster, Session, alone};

/// How long an idle cluster is watched.
const IDLE: Duration = Duration::from_secs(30);
const ROLES: [&str; 3] = ["supervisor", "control-plane", "agent"];

fn main() {
    let _turn = alone();
    let cluster = Cluster::new("bench");
    let started = Instant::now();
    let shown = cluster.up();
    let up = started.elapsed();
    eprintln!("{}", shown.stderr);
    shown.ok();
    cluster.build_images();
    let s = Session::own(&cluster);
    let mut table =
        vec![("up, to cluster DNS answering".to_owned(), format!("{:.2} s", up.as_secs_f64()))];
    table.push(("kubectl run, to a Pod that is Ready".to_owned(), pod(&s)));
    let binary = fs::metadata(cluster.root().join("bin/windlass")).map_or(0, |m| m.len());
    table.push(("static binary".to_owned(), format!("{:.1} MB", binary as f64 / 1e6)));
    let before = ticks(&cluster);
    std::thread::sleep(IDLE);
    let used = (ticks(&cluster) - before) as f64 / IDLE.as_secs_f64();
    // The kernel counts in hundredths of a second.
    table.push(("processor, idle".to_owned(), format!("{used:.1} % of a core")));
    table.push(("memory, idle, without the runtime".to_owned(), memory(&cluster)));
    for (what, value) in table {
        println!("{what:<44} {value:>20}");
    }
}

fn pod(s: &Session<'_>) -> String {
    let started = Instant::now();
    s.toolbox();
    format!("{:.2} s", started.elapsed().as_secs_f64())
}

fn pids(cluster: &Cluster) -> Vec<String> {
    let read = |role: &str| {
        fs::read_to_string(cluster.root().join("run").join(format!("{role}.pid"))).ok()
    };
    ROLES
        .iter()
        .filter_map(|role| Some(read(role)?.split_whitespace().next()?.to_owned()))
        .collect()
}

/// Processor time that the cluster's processes have used.
fn ticks(cluster: &Cluster) -> u64 {
    let of = |pid: &String| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>()
    };
    pids(cluster).iter().map(of).sum()
}

/// The proportional set size of the cluster's processes.
fn memory(cluster: &Cluster) -> String {
    let of = |pid: &String| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or_default();
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0)
    };
    format!("{:.0} MB", pids(cluster).iter().map(of).sum::<u64>() as f64 * 1024.0 / 1e6)
}

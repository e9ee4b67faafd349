//! Measures the cost of a cluster: `cargo xtask bench`. Prints a table that README and the project's budgets can quote.

use std::{
    fs,
    time::{Duration, Instant},
};

use e2e::{Cluster, Session, lock_machine, proportional_size};

/// The time for which an idle cluster is measured.
const IDLE: Duration = Duration::from_secs(30);
const ROLES: [&str; 3] = ["supervisor", "control-plane", "agent"];

fn main() {
    let _turn = lock_machine();
    let cluster = Cluster::new("bench");
    let started = Instant::now();
    let shown = cluster.up();
    let up = started.elapsed();
    eprintln!("{}", shown.stderr);
    shown.ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    let mut table =
        vec![("up, to cluster DNS answering".to_owned(), format!("{:.2} s", up.as_secs_f64()))];
    table.push(("kubectl run, to a Pod that is Ready".to_owned(), pod(&s)));
    let binary = fs::metadata(cluster.root().join("bin/windlass")).map_or(0, |m| m.len());
    table.push(("static binary".to_owned(), format!("{:.1} MB", binary as f64 / 1e6)));
    let before = ticks(&cluster);
    std::thread::sleep(IDLE);
    let used = (ticks(&cluster) - before) as f64 / IDLE.as_secs_f64();
    // A tick is a hundredth of a second, so ticks per second are percent of a core.
    table.push(("processor, idle".to_owned(), format!("{used:.1} % of a core")));
    table.push(("memory, idle, without the runtime".to_owned(), memory(&cluster)));
    table.extend(load(&s));
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

/// Returns the processor time that the cluster's processes have used, in clock ticks.
fn ticks(cluster: &Cluster) -> u64 {
    let of = |pid: &String| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>()
    };
    pids(cluster).iter().map(of).sum()
}

/// Returns the proportional set size (PSS) of the cluster's processes.
fn memory(cluster: &Cluster) -> String {
    let of = |pid: &String| pid.parse().map_or(0, proportional_size);
    format!("{:.0} MB", pids(cluster).iter().map(of).sum::<u64>() as f64 / 1e6)
}

/// Measures requests per second with h2load, authenticated by an administrator's token.
fn load(s: &Session<'_>) -> Vec<(String, String)> {
    s.kubectl("create serviceaccount loader").ok();
    s.kubectl("create clusterrolebinding loader --clusterrole=cluster-admin --serviceaccount=default:loader").ok();
    let token = format!("authorization: Bearer {}", s.kubectl("create token loader").ok().trim());
    let body = s.cluster.directory.join("body");
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"load-"},"data":{"key":"value"}}"#;
    fs::write(&body, object).unwrap_or_else(|e| panic!("writing {}: {e}", body.display()));
    let body = body.display().to_string();
    let maps = "https://192.0.2.10:6443/api/v1/namespaces/default/configmaps";
    let pod = "https://192.0.2.10:6443/api/v1/namespaces/default/pods/box";
    let runs: [(&str, &str, &[&str]); 4] = [
        ("create ConfigMaps, 64 in flight", maps, &["-n20000", "-c8", "-m8", "-d", &body]),
        ("get a Pod, one at a time", pod, &["-n5000", "-c1", "-m1"]),
        ("get a Pod, 64 in flight", pod, &["-n50000", "-c8", "-m8"]),
        ("list those ConfigMaps", maps, &["-n50", "-c1", "-m1"]),
    ];
    let run = |(what, url, args): (&str, &str, &[&str])| {
        let common = ["-H", &token, "-H", "content-type: application/json"];
        let output = s.on_node("h2load", &[args, &common, &[url]].concat()).ok();
        let line = output.lines().find(|line| line.starts_with("finished in")).unwrap_or(&output);
        let rate = line.split(", ").nth(1).unwrap_or(line).replace(" req/s", " a second");
        let failed =
            output.lines().find(|line| line.starts_with("status codes:")).unwrap_or_default();
        eprintln!("{what}: {line}; {failed}");
        (what.to_owned(), rate)
    };
    runs.into_iter().map(run).collect()
}

//! Measures the effect of a tenant with silent connections, and with as many watches as it can open, on all others.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::{
    api::{Bench, NAMESPACE, config_map},
    h2load::{Load, percentiles, records, succeeded},
    table::{Better, Column},
    watch,
};
use crate::{
    error::{During, Error, Result, fail},
    run::{join, output},
};

pub(super) const TENANT: &str = "tenant";
/// The silent connections, which are reopened when the server closes them, and the rate of opening them.
const SILENT: usize = 10_000;
const SILENT_A_SECOND: usize = 2_000;
/// The watches: their number, their number on each connection, which the server limits, and the rate of opening them,
/// which flow control limits.
const WATCHES: u32 = 50_000;
const ON_EACH: u32 = 250;
const WATCHES_A_SECOND: u32 = 5_000;
/// The time for which the watches are open, in seconds, which limits the whole measurement.
const OPEN: u32 = 75;
/// The time for which the requests of others are measured, in seconds.
const MEASURED_SECONDS: u32 = 20;
/// The target for the latency of others, in milliseconds.
const WANTED: f64 = 100.0;

pub(super) fn measure(mut bench: Bench) -> Result<Column> {
    bench.prepare_namespace()?;
    let (tenant, node) = prepare(&bench)?;
    let revision = watch::revision(&bench)?;
    let (silent, connections) = affordable(open_files());
    let watches = connections * ON_EACH;
    let url = format!(
        "{}/api/v1/namespaces/{TENANT}/configmaps?watch=1&timeoutSeconds={OPEN}&resourceVersion={revision}",
        bench.control_plane.url()
    );
    let crowd = Load {
        url,
        connections,
        streams: ON_EACH,
        rate: Some(WATCHES_A_SECOND.max(connections)),
        ..bench.load("", watches, 1, 1)
    };
    let address = bench.control_plane.url().trim_start_matches("https://").to_owned();
    let address: SocketAddr = address.parse().during("parsing", &address)?;
    for when in ["alone", "beside the tenant"] {
        let over = AtomicBool::new(false);
        let others = thread::scope(|scope| {
            let attack = (when != "alone").then(|| {
                let watching = scope.spawn(|| output(&mut crowd.command(&tenant)));
                thread::sleep(Duration::from_secs(u64::from(watches / WATCHES_A_SECOND) + 3));
                let silence = scope.spawn(|| be_silent(address, silent, &over));
                thread::sleep(Duration::from_secs((silent / SILENT_A_SECOND) as u64 + 1));
                (watching, silence)
            });
            let others = others(&bench, &node, when, MEASURED_SECONDS);
            over.store(true, Ordering::Relaxed);
            let attack = attack.map(|(watching, silence)| {
                let opened = join(silence)?;
                let report = join(watching)??;
                Ok::<_, Error>((opened, succeeded(&report).unwrap_or_default(), report))
            });
            Ok::<_, Error>((others?, attack.transpose()?))
        })?;
        let (others, attack) = others;
        if let Some((opened, watched, report)) = attack {
            bench.note("silent connections, opened", "", Better::More, None, opened as f64);
            bench.note("watches of the tenant", "", Better::More, None, f64::from(watched));
            if watched < watches / 10 * 9 {
                return fail(format!("only {watched} of {watches} watches were opened:\n{report}"));
            }
        }
        for (what, half, most) in others {
            bench.note(&format!("{what} {when}, p50"), "ms", Better::Less, None, half);
            let title = format!("{what} {when}, p99 (wanted: below {WANTED} ms)");
            bench.note(&title, "ms", Better::Less, None, most);
        }
    }
    bench.memory("with the tenant's watches ended", None);
    Ok(bench.measured())
}

/// Creates a tenant with all permissions in its own namespace, and a user that flow control treats like a kubelet.
/// Creates the objects that a node updates. Returns the tokens of both users.
pub(super) fn prepare(bench: &Bench) -> Result<(String, String)> {
    let kubectl = |args: &[&str]| output(bench.control_plane.kubectl().args(args));
    let account = format!("--serviceaccount={TENANT}:default");
    kubectl(&["create", "namespace", TENANT])?;
    kubectl(&["-n", TENANT, "create", "serviceaccount", "default"])?;
    // The ClusterRole admin has no rules here, because its aggregation needs a controller, and none runs.
    kubectl(&["-n", TENANT, "create", "role", TENANT, "--verb=*", "--resource=configmaps"])?;
    kubectl(&[
        "-n",
        TENANT,
        "create",
        "rolebinding",
        TENANT,
        &format!("--role={TENANT}"),
        &account,
    ])?;
    kubectl(&["-n", "kube-system", "create", "serviceaccount", "bench-node"])?;
    let account = "--serviceaccount=kube-system:bench-node";
    kubectl(&["create", "clusterrolebinding", "node", "--clusterrole=cluster-admin", account])?;
    let objects = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "read", "namespace": NAMESPACE}},
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "n1", "namespace": NAMESPACE}, "spec": {"holderIdentity": "n1"}},
    ]});
    let path = bench.body("objects", &objects.to_string())?;
    kubectl(&["apply", "-f", &path.display().to_string()])?;
    let token = |namespace: &str, name: &str| {
        let token = kubectl(&["-n", namespace, "create", "token", name, "--duration=2h"]);
        token.map(|token| token.trim().to_owned())
    };
    Ok((token(TENANT, "default")?, token("kube-system", "bench-node")?))
}

/// A kind of request that others send.
struct OtherRequest {
    what: &'static str,
    url: String,
    /// The body: a patch or a new object.
    body: Option<PathBuf>,
    patch: bool,
    by_node: bool,
}

/// Sends the requests of others, and returns the 50th and the 99th percentile of each kind.
pub(super) fn others(
    bench: &Bench,
    node: &str,
    when: &str,
    seconds: u32,
) -> Result<Vec<(&'static str, f64, f64)>> {
    let server = bench.control_plane.url();
    let maps = format!("{server}/api/v1/namespaces/{NAMESPACE}/configmaps");
    let lease = format!("{server}/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/n1");
    let status = format!("{server}/api/v1/nodes/n1/status");
    let mut all = Vec::new();
    let mut add = |what, url: &String, body: Option<PathBuf>, patch, by_node| {
        all.push(OtherRequest { what, url: url.clone(), body, patch, by_node });
    };
    add("get a ConfigMap", &format!("{maps}/read"), None, false, false);
    let map = bench.body("config-map", &config_map())?;
    add("create a ConfigMap", &maps, Some(map), false, false);
    // Alternate between two values, because an unchanged object is not written.
    for turn in [40, 41] {
        let renewed = serde_json::json!({"spec": {"leaseDurationSeconds": turn}});
        let renewed = bench.body(&format!("lease-{turn}"), &renewed.to_string())?;
        add("renew a Lease", &lease, Some(renewed), true, true);
        let alive = serde_json::json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "reason": format!("Turn{turn}")},
        ]}});
        let alive = bench.body(&format!("heartbeat-{turn}"), &alive.to_string())?;
        add("a node's heartbeat", &status, Some(alive), true, true);
    }
    let directory = bench.control_plane.directory.clone();
    let logs: Vec<PathBuf> =
        (0..all.len()).map(|n| directory.join(format!("other-{when}-{n}.tsv"))).collect();
    let rate = 20;
    thread::scope(|scope| {
        let running: Vec<_> = all
            .iter()
            .zip(&logs)
            .map(|(other, log)| {
                let load = Load {
                    url: other.url.clone(),
                    body: other.body.as_deref(),
                    patch: other.patch,
                    rate: Some(rate),
                    log: Some(log),
                    ..bench.load("", rate * seconds, 1, 8)
                };
                let token = if other.by_node { node } else { bench.token.as_str() };
                scope.spawn(move || load.run(token))
            })
            .collect();
        running.into_iter().try_for_each(|running| join(running)?.map(drop))
    })?;
    let mut measured: Vec<(&'static str, Vec<u64>)> = Vec::new();
    for (other, log) in all.iter().zip(&logs) {
        let took = records(log)?.into_iter().map(|record| record.micros);
        match measured.iter_mut().find(|(what, _)| *what == other.what) {
            Some((_, times)) => times.extend(took),
            None => measured.push((other.what, took.collect())),
        }
    }
    let shares = measured.into_iter().map(|(what, took)| {
        let (half, most) = percentiles(took);
        (what, half, most)
    });
    Ok(shares.collect())
}

/// Keeps silent connections open, and replaces those that the server closes. Returns how many were opened.
fn be_silent(address: SocketAddr, count: usize, over: &AtomicBool) -> usize {
    const STEP: Duration = Duration::from_millis(50);
    let (mut open, mut opened) = (Vec::with_capacity(count), 0);
    while !over.load(Ordering::Relaxed) {
        open.retain(is_open);
        for _ in 0..(SILENT_A_SECOND / 20).min(count - open.len()) {
            let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else {
                break;
            };
            if stream.set_nonblocking(true).is_ok() {
                open.push(stream);
                opened += 1;
            }
        }
        thread::sleep(STEP);
    }
    opened
}

fn is_open(stream: &TcpStream) -> bool {
    let nothing = stream.peek(&mut [0]);
    nothing.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Returns the numbers of silent connections and of connections with watches that the limit of open files allows.
fn affordable(files: u64) -> (usize, u32) {
    let spare = files.saturating_sub(100);
    let silent = usize::try_from(spare).unwrap_or(SILENT).min(SILENT);
    let connections = u32::try_from(spare / 4).unwrap_or(u32::MAX).clamp(1, WATCHES / ON_EACH);
    (silent, connections)
}

/// Returns the soft limit of open files (`ulimit -n`).
fn open_files() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    soft.unwrap_or(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_connections_into_open_file_limit() {
        assert_eq!(affordable(1 << 20), (10_000, 200));
        assert_eq!(affordable(500), (400, 100));
        assert_eq!(affordable(0), (0, 1));
    }

    #[test]
    fn detects_closed_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert!(is_open(&client));
        drop(server);
        while is_open(&client) {
            thread::yield_now();
        }
    }
}

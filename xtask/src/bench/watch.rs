//! Measures many watchers of one resource: whether each receives every change, and how soon.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use super::{
    api::{Bench, NAMESPACE},
    h2load::{Load, Record, body_bytes, percentiles, records},
    table::{Better, Column},
    usage,
};
use crate::{
    error::{During, Error, Result, fail},
    run::{join, output, program},
};

/// The watchers whose events are timed, each in its own process.
const SAMPLED: u32 = 16;
/// The other watchers. Only their received bytes are counted.
const CONNECTIONS: u32 = 41;
const ON_EACH: u32 = 24;
const CHANGES: u32 = 1_000;
const A_SECOND: u32 = 200;
/// The number of concurrent writes, so that a write of more than 5 ms does not delay the next one.
const WRITERS: u32 = 4;
/// The time for which the watches are open, in seconds. The changes take five seconds of it, or more on a slow server.
const OPEN: u32 = 120;
/// The time after which all watches are open.
const BEFORE: Duration = Duration::from_secs(8);

pub(super) fn measure(mut bench: Bench) -> Result<Column> {
    bench.prepare_namespace()?;
    let body = bench.body("change", &change())?;
    let log = bench.control_plane.directory.join("changes.tsv");
    let path =
        format!("configmaps?watch=1&timeoutSeconds={OPEN}&resourceVersion={}", revision(&bench)?);
    let crowd = bench.load(&path, CONNECTIONS * ON_EACH, CONNECTIONS, ON_EACH);
    let write = bench.load("configmaps", CHANGES, WRITERS, 1);
    let write = Load { body: Some(&body), rate: Some(A_SECOND), log: Some(&log), ..write };
    let pids = bench.control_plane.pids();
    let before = usage::processor_seconds(&pids);
    let (rate, logs, report) = thread::scope(|scope| {
        let watch = || scope.spawn(|| follow(watcher(&bench, &crowd.url)));
        let sampled: Vec<_> = (0..SAMPLED).map(|_| watch()).collect();
        let crowd = scope.spawn(|| output(&mut crowd.command(&bench.token)));
        thread::sleep(BEFORE);
        let rate = write.run(&bench.token)?;
        let logs: Result<Vec<WatcherLog>> =
            sampled.into_iter().map(|thread| join(thread)?).collect();
        Ok::<_, Error>((rate, logs?, join(crowd)??))
    })?;
    let used = usage::processor_seconds(&pids) - before;
    let (half, most) = percentiles(delays(records(&log)?, &logs));
    let what = "1,000 watchers";
    bench.note(&format!("{what}, changes of 200 wanted"), "a second", Better::More, None, rate);
    bench.note(&format!("{what}, delivered"), "%", Better::More, None, delivered(&logs, &report)?);
    bench.note(&format!("{what}, p50"), "ms", Better::Less, None, half);
    bench.note(&format!("{what}, p99"), "ms", Better::Less, None, most);
    bench.note(&format!("{what}, in all"), "s of processor", Better::Less, None, used);
    bench.memory("1,000 watchers", None);
    Ok(bench.measured())
}

/// Returns a ConfigMap of a kilobyte.
fn change() -> String {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"generateName": "change-"},
        "data": {"key": "x".repeat(600)},
    });
    object.to_string()
}

/// Returns the resourceVersion at which all watches begin, so that they receive the same events.
pub(super) fn revision(bench: &Bench) -> Result<String> {
    let mut list = bench.control_plane.kubectl();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps?limit=1");
    let list: Value = serde_json::from_str(&output(list.args(["get", "--raw", &path]))?)
        .during("parsing", "the list of ConfigMaps")?;
    Ok(list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
}

fn watcher(bench: &Bench, url: &str) -> Command {
    let ca = bench.control_plane.directory.join("etc/kubernetes/pki/ca.crt");
    let mut curl = program("curl", ["--silent", "--no-buffer", "--http2", "--cacert"]);
    curl.arg(ca).args(["--header", &format!("authorization: Bearer {}", bench.token)]);
    // With its own user agent, curl would receive indented JSON of many lines.
    curl.args(["--user-agent", "bench", url]);
    curl
}

/// The events that one watcher received.
#[derive(Debug, Default)]
struct WatcherLog {
    bytes: u64,
    /// The time of each event, in microseconds since 1970.
    came: Vec<u64>,
}

fn follow(mut curl: Command) -> Result<WatcherLog> {
    let mut child = curl.stdout(Stdio::piped()).spawn().during("starting", "curl")?;
    let mut log = WatcherLog::default();
    if let Some(report) = child.stdout.take() {
        for line in BufReader::new(report).lines() {
            let line = line.during("reading from", "curl")?;
            log.bytes += line.len() as u64 + 1;
            if line.starts_with("{\"type\":\"ADDED\"") {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                log.came.push(now.as_micros() as u64);
            }
        }
    }
    child.wait().during("waiting for", "curl")?;
    Ok(log)
}

/// Returns the delay of each event since the start of its write. The events have the order of the writes, except for
/// concurrent ones. Those may be swapped, which changes no delay by more than the duration of a write.
fn delays(mut writes: Vec<Record>, logs: &[WatcherLog]) -> Vec<u64> {
    writes.sort_unstable_by_key(|write| write.sent);
    let one = |log: &WatcherLog| -> Vec<u64> {
        let pairs = writes.iter().zip(&log.came);
        pairs.map(|(write, came)| came.saturating_sub(write.sent)).collect()
    };
    logs.iter().flat_map(one).collect()
}

/// Returns the percentage of delivered events: counted for the sampled watchers, estimated from the bytes for the
/// others.
fn delivered(logs: &[WatcherLog], report: &str) -> Result<f64> {
    let whole = logs.iter().find(|log| log.came.len() == CHANGES as usize);
    let Some(whole) = whole else {
        let received: Vec<usize> = logs.iter().map(|log| log.came.len()).collect();
        return fail(format!(
            "no watcher received all {CHANGES} changes; they received {received:?}"
        ));
    };
    let bytes =
        body_bytes(report).ok_or_else(|| format!("the watches were answered:\n{report}"))?;
    let rest = f64::from(CONNECTIONS * ON_EACH);
    let others = bytes as f64 / whole.bytes as f64;
    let sampled: f64 = logs.iter().map(|log| log.came.len() as f64 / f64::from(CHANGES)).sum();
    Ok((others + sampled) / (rest + logs.len() as f64) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_delay_since_write_of_event() {
        let writes = vec![Record { sent: 200, micros: 1 }, Record { sent: 100, micros: 9 }];
        let seen = |came: &[u64]| WatcherLog { bytes: 0, came: came.to_vec() };
        assert_eq!(delays(writes, &[seen(&[101, 205]), seen(&[103])]), [1, 5, 3]);
    }

    #[test]
    fn counts_missing_events_as_not_delivered() {
        let all = || WatcherLog { bytes: 1000, came: vec![0; CHANGES as usize] };
        let report =
            |bytes: u64| format!("traffic: 1MB (1) total, 1B (1) headers, 1MB ({bytes}) data");
        assert!((delivered(&[all()], &report(984_000)).unwrap() - 100.0).abs() < f64::EPSILON);
        assert!(delivered(&[all()], &report(983_000)).unwrap() < 100.0);
        assert!(delivered(&[all(), WatcherLog::default()], &report(984_000)).unwrap() < 100.0);
        assert!(delivered(&[], &report(1)).is_err());
    }
}

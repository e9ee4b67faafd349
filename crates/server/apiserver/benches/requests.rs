//! Measures creates, gets and lists per second, in process and over TLS, and their processor time: `cargo bench -p
//! apiserver`. An argument after `--` selects benchmarks whose name contains it.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::{Value, json};

#[path = "../tests/it/harness.rs"]
#[allow(dead_code, reason = "benchmarks use a part of the tests' harness")]
mod harness;

use harness::{Api, Identity, TestServer, start, validity};

const IN_FLIGHT: usize = 64;
const SECONDS: u64 = 3;

/// Returns the processor time of this process in seconds. The kernel counts it in hundredths.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// Repeats a request for a while, `in_flight` at a time. Prints the rate, and the processor time per request of server
/// and client together.
async fn measure<F, R>(what: &str, in_flight: usize, request: F)
where
    F: Fn(usize, usize) -> R + Send + Sync + Clone + 'static,
    R: Future<Output = ()> + Send,
{
    let chosen = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    if chosen.is_some_and(|word| !what.contains(&word)) {
        return;
    }
    let (started, before) = (Instant::now(), processor());
    let until = started + Duration::from_secs(SECONDS);
    let workers = (0..in_flight).map(|worker| {
        let request = request.clone();
        tokio::spawn(async move {
            let mut count = 0;
            while Instant::now() < until {
                request(worker, count).await;
                count += 1;
            }
            count
        })
    });
    let total: usize = join_all(workers).await.into_iter().map(Result::unwrap).sum();
    let (rate, each) =
        (total as f64 / started.elapsed().as_secs_f64(), (processor() - before) / total as f64);
    println!("{what:50} {rate:10.0}/s {:10.1} µs of processor each", each * 1e6);
}

/// A Pod as a Deployment creates it.
static POD: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("pod.json")).unwrap());

fn pod(name: &str) -> Value {
    let mut pod = POD.clone();
    let metadata = pod["metadata"].as_object_mut().unwrap();
    metadata.remove("generateName");
    metadata.insert("name".to_owned(), name.into());
    pod
}

async fn all(server: &TestServer, api: Api, how: &str) {
    let namespace = api.namespace().await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let (client, path) = (api.clone(), maps.clone());
    measure(&format!("create ConfigMaps, {IN_FLIGHT} in flight, {how}"), IN_FLIGHT, move |w, i| {
        let (client, path) = (client.clone(), path.clone());
        async move {
            let map = harness::config_map(&format!("m-{w}-{i}"), json!({"k": "v"}));
            client.post(&path, &map).await.ok();
        }
    })
    .await;
    let (client, path) = (api.clone(), pods.clone());
    measure(&format!("create Pods, {IN_FLIGHT} in flight, {how}"), IN_FLIGHT, move |w, i| {
        let (client, path) = (client.clone(), path.clone());
        async move {
            client.post(&path, &pod(&format!("p-{w}-{i}"))).await.ok();
        }
    })
    .await;
    for in_flight in [1, IN_FLIGHT] {
        let (client, path) = (api.clone(), format!("{pods}/p-0-0"));
        measure(&format!("get a Pod, {in_flight} in flight, {how}"), in_flight, move |_, _| {
            let (client, path) = (client.clone(), path.clone());
            async move { assert_eq!(client.get(&path).await.code, 200) }
        })
        .await;
    }
    let count = api.get(&pods).await.ok()["items"].as_array().map_or(0, Vec::len);
    let (client, path) = (api.clone(), pods.clone());
    measure(&format!("list {count} Pods, 1 at a time, {how}"), 1, move |_, _| {
        let (client, path) = (client.clone(), path.clone());
        async move { assert_eq!(client.get(&path).await.code, 200) }
    })
    .await;
    assert!(!server.tasks.shutdown().is_stopping());
}

#[tokio::main]
async fn main() {
    let server = start(|_| {}).await;
    all(&server, server.admin(), "in process").await;
    let subject = pki::Subject::new("admin").in_group("system:masters");
    let identity = Identity::issued(&server.authority, subject, validity());
    all(&server, server.tls(identity), "over TLS").await;
    server.tasks.drain(Duration::from_secs(5)).await;
}

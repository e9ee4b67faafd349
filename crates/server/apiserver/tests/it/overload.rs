//! Overload: requests that keep the cluster alive are served, others are rejected for a later retry.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::json;

use crate::harness::{Api, Identity, config_map, start, validity};

/// The results of many requests.
#[derive(Default, Debug)]
struct Tally {
    served: usize,
    turned_away: usize,
    others: Vec<u16>,
}

/// Sends many requests at once from one user.
async fn crowd(api: &Api, path: &str, size: usize) -> Tally {
    let requests = (0..size).map(|n| async move {
        match n % 2 {
            0 => api.get(path).await,
            _ => api.post(path, &config_map(&format!("m{n}"), json!({"n": "x".repeat(500)}))).await,
        }
    });
    let mut tally = Tally::default();
    for answer in futures_util::future::join_all(requests).await {
        match answer.code {
            200 | 201 | 409 => tally.served += 1,
            429 => {
                assert_eq!(answer.header("retry-after"), "1");
                let message = answer.refused(429, "TooManyRequests");
                assert_eq!(message, "Too many requests, please try again later.");
                tally.turned_away += 1;
            }
            other => tally.others.push(other),
        }
    }
    tally
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn serves_heartbeats_during_overload() {
    let server = start(|config| config.seats = 20).await;
    let admin = server.admin();
    let namespace = admin.namespace().await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let binding = json!({
        "metadata": {"name": "noise"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": "noise", "apiGroup": "rbac.authorization.k8s.io"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    admin.post(bindings, &binding).await.ok();
    let node = server.user("system:node:n1", &["system:nodes"]);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let nodes = json!({"metadata": {"name": "kube-node-lease"}});
    admin.post("/api/v1/namespaces", &nodes).await;
    node.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).await.ok();
    let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}});
    node.post(leases, &lease).await.ok();
    let noise = server.user("noise", &[]);
    // The start continues for a while after the server listens.
    let probe = server.tls(Identity::Nobody);
    let live = async || if probe.get("/livez").await.code == 200 { Ok(()) } else { Err(()) };
    rt::retry(Duration::from_secs(10), Duration::from_millis(20), |()| true, live).await.unwrap();

    let stop = rt::Shutdown::new();
    let beating = {
        let (stop, node, probe) = (stop.clone(), node.clone(), probe.clone());
        let one = format!("{leases}/n1");
        tokio::spawn(async move {
            let (mut beats, mut slowest) = (0, Duration::ZERO);
            while !stop.is_stopping() {
                let started = Instant::now();
                let renewed = json!({"spec": {"leaseDurationSeconds": 40 + beats % 2}});
                assert_eq!(node.patch(&one, "merge", &renewed).await.code, 200, "beat {beats}");
                let alive = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": beats.to_string()}]}});
                let status = node.patch("/api/v1/nodes/n1/status", "strategic", &alive).await;
                assert_eq!(status.code, 200, "beat {beats}");
                assert_eq!(probe.get("/livez").await.code, 200, "beat {beats}");
                slowest = slowest.max(started.elapsed());
                beats += 1;
            }
            (beats, slowest)
        })
    };
    // Flow control has seats for one or two of these requests, and queues for 300 of one user.
    let tally = crowd(&noise, &maps, 2000).await;
    stop.stop();
    let (beats, slowest) = beating.await.unwrap();
    assert!(tally.others.is_empty(), "{tally:?}");
    assert!(tally.served > 50 && tally.turned_away > 1000, "{tally:?}");
    assert!(
        beats > 0 && slowest < Duration::from_secs(5),
        "{beats} beats, the slowest {slowest:?}"
    );
    // After the overload, all requests are served again.
    assert_eq!(crowd(&noise, &maps, 20).await.turned_away, 0);
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_excessive_requests() {
    let server = start(|_| {}).await;
    let admin = server.admin();
    let namespace = admin.namespace().await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let api = server.tls(Identity::Token(server.powerful_token(&namespace).await));
    let json_type = [("content-type", "application/json")];
    // `Content-Length` is checked before the body is read.
    let large = api.send("POST", &maps, &json_type, vec![b' '; 4 << 20]).await;
    large.refused(413, "RequestEntityTooLarge");
    for (what, kind, body) in [
        ("deep JSON", "application/json", "{\"data\":".to_owned() + &"[".repeat(100_000)),
        ("deep YAML", "application/yaml", "a: ".to_owned() + &"[".repeat(100_000)),
        ("deeper YAML", "application/yaml", "- ".repeat(100_000)),
        ("nothing", "application/json", String::new()),
    ] {
        let answer = api.send("POST", &maps, &[("content-type", kind)], body).await;
        assert_eq!(answer.code, 400, "{what}: {:?}", String::from_utf8_lossy(&answer.body));
    }
    let copies =
        format!("[{}]", vec![r#"{"op":"copy","from":"/data","path":"/data/x"}"#; 10_001].join(","));
    api.post(&maps, &config_map("a", json!({"k": "v"}))).await.ok();
    let patch = [("content-type", "application/json-patch+json")];
    let answer = api.send("PATCH", &format!("{maps}/a"), &patch, copies).await;
    assert_eq!(answer.code, 413, "{:?}", answer.body);
    // An invalid timeout. Zero, none and a timeout that is too long mean the server's own.
    for (time, code) in [("soon", 400), ("-", 400), ("0s", 200), ("", 200), ("999999h", 200)] {
        let answer = api.get(&format!("{maps}?timeout={time}")).await;
        assert_eq!(answer.code, code, "{time:?}: {:?}", String::from_utf8_lossy(&answer.body));
    }
    let selector = format!("{maps}?labelSelector={}", "a%3Db,".repeat(8_000) + "c");
    let answer = api.0.request(http::Request::get(selector).body(client::full("")).unwrap()).await;
    assert!(answer.is_err() || answer.unwrap().status().as_u16() < 500, "long URLs break nothing");
    api.get("/livez").await;
    assert_eq!(api.get(&format!("{maps}/a")).await.ok()["data"]["k"], "v");
    server.tasks.shutdown().stop();
}

/// A list that takes a second must not delay other requests, even on a single thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn serves_others_during_large_list() {
    let server = start(|_| {}).await;
    let admin = server.admin();
    let namespace = admin.namespace().await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let all: Vec<_> =
        (0..600).map(|n| config_map(&format!("m{n}"), json!({"n": "x".repeat(500)}))).collect();
    let posted = futures_util::future::join_all(all.iter().map(|map| admin.post(&maps, map))).await;
    posted.into_iter().for_each(|answer| drop(answer.ok()));
    let listed = {
        let (admin, maps) = (admin.clone(), maps.clone());
        let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
        tokio::spawn(async move { admin.send("GET", &maps, &table, Vec::new()).await.ok() })
    };
    // On the same worker as the list.
    let beating = tokio::spawn(async move {
        let mut beats = 0;
        while !listed.is_finished() {
            assert_eq!(admin.get("/livez/etcd").await.code, 200);
            beats += 1;
            tokio::task::yield_now().await;
        }
        (listed.await.unwrap(), beats)
    });
    let (listed, beats) = beating.await.unwrap();
    assert_eq!(listed["rows"].as_array().map(Vec::len), Some(600));
    assert!(beats > 10, "{beats} requests were served meanwhile");
    server.tasks.shutdown().stop();
}

/// Returns a request to create an object whose body never ends.
fn endless_post(path: &str) -> http::Request<client::Body> {
    let begun = Bytes::from_static(b"{\"metadata\": {");
    let first = futures_util::stream::iter([Ok(Frame::data(begun))]);
    let body = StreamBody::new(first.chain(futures_util::stream::pending())).boxed_unsync();
    let request = http::Request::post(path).header("content-type", "application/json");
    request.body(body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_requests_without_flow_control() {
    let limits = apiserver::InFlightLimits { reading: 0, mutating: 1 };
    let server = start(|config| config.in_flight = Some(limits)).await;
    let admin = server.admin();
    let namespace = admin.namespace().await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let api = server.tls(Identity::Token(server.powerful_token(&namespace).await));
    // The start of the server may have the place first.
    let (holder, path) = (api.clone(), maps.clone());
    let holding = tokio::spawn(async move {
        loop {
            holder.0.request(endless_post(&path)).await.ok();
        }
    });
    let post = async || api.post(&maps, &config_map("a", json!({"k": "v"}))).await;
    let until = async |code: u16| {
        let once = async || Some(post().await).filter(|answer| answer.code == code).ok_or(());
        rt::retry(Duration::from_secs(10), Duration::from_millis(20), |()| true, once).await
    };
    let rejected = until(429).await.unwrap();
    assert_eq!(rejected.header("retry-after"), "1");
    rejected.refused(429, "TooManyRequests");
    assert_eq!(api.get(&maps).await.code, 200, "reads have places of their own");
    let by_admin = admin.post(&maps, &config_map("b", json!({"k": "v"}))).await;
    assert_eq!(by_admin.code, 201, "administrators need no place");
    holding.abort();
    until(409).await.unwrap();
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn times_out_endless_body() {
    // The writes of the start have this time, too.
    let server = start(|config| config.request_timeout = Duration::from_secs(3)).await;
    let admin = server.admin();
    let maps = format!("/api/v1/namespaces/{}/configmaps", admin.namespace().await);
    let subject = pki::Subject::new("admin").in_group("system:masters");
    let api = server.tls(Identity::issued(&server.authority, subject, validity()));
    let answer = api.0.request(endless_post(&maps)).await.unwrap();
    assert_eq!(answer.status(), 504);
    let status = answer.into_body().collect().await.unwrap().to_bytes();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["reason"], "Timeout");
    assert_eq!(status["message"], "Timeout: request did not complete within the allotted timeout");
    // The connection is still usable.
    assert_eq!(api.post(&maps, &config_map("a", json!({"k": "v"}))).await.code, 201);
    server.tasks.shutdown().stop();
}

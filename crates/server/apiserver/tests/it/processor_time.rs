//! Requests that compute for long: each ends within its budget without delaying other requests.

use std::time::{Duration, Instant};

use admission::{AdmissionResult, Outcome, Plugin, Request};
use api_meta::steps;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::harness::{Api, Identity, TestServer, config_map, start_with};

/// Computes endlessly for objects with the name "slow", and reports the start.
struct Slow(mpsc::UnboundedSender<()>);

impl Plugin for Slow {
    fn validate(&self, _: &Request<'_>, object: &Value, _: &mut Outcome) -> AdmissionResult {
        if object["metadata"]["name"] != "slow" {
            return Ok(());
        }
        let _ = self.0.send(());
        loop {
            steps::spend(1);
        }
    }
}

struct Setting {
    server: TestServer,
    /// A client that shares no thread with the server.
    api: Api,
    maps: String,
    began: mpsc::UnboundedReceiver<()>,
}

/// Starts a server with this processor time per request.
async fn setting(processor_time: Duration) -> Setting {
    let (sender, began) = mpsc::unbounded_channel();
    let change = |config: &mut apiserver::Config| config.processor_time = processor_time;
    let server = start_with(change, |chain| chain.and(Slow(sender))).await;
    let namespace = server.admin().namespace().await;
    let token = server.powerful_token(&namespace).await;
    let api = server.tls(Identity::Token(token));
    // The start continues for a while after the server listens.
    let live = async || if api.get("/livez").await.code == 200 { Ok(()) } else { Err(()) };
    rt::retry(Duration::from_secs(20), Duration::from_millis(20), |()| true, live).await.unwrap();
    Setting { server, api, maps: format!("/api/v1/namespaces/{namespace}/configmaps"), began }
}

fn large(name: &str) -> Value {
    config_map(name, json!({"k": "v".repeat(100_000)}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_others_while_a_request_computes() {
    const BUDGET: Duration = Duration::from_secs(4);
    let Setting { server, api, maps, .. } = setting(BUDGET).await;
    let probe = server.tls(Identity::Nobody);
    for slow in [config_map("slow", json!({})), large("slow")] {
        let began = Instant::now();
        let mut slowest = Duration::ZERO;
        let computing = api.post(&maps, &slow);
        tokio::pin!(computing);
        let answer = loop {
            let asked = Instant::now();
            let others = async {
                assert_eq!(probe.get("/livez").await.code, 200);
                api.get("/api/v1/namespaces/default").await.ok();
            };
            tokio::select! {
                answer = &mut computing => {
                    // Requests that still wait count as well.
                    slowest = slowest.max(asked.elapsed());
                    break answer;
                }
                () = others => slowest = slowest.max(asked.elapsed()),
            }
        };
        let message = answer.refused(413, "RequestEntityTooLarge");
        let reason = "the request takes more than 4 seconds of processor time";
        assert!(message.contains(reason), "{message}");
        assert!(began.elapsed() >= BUDGET, "{:?}", began.elapsed());
        assert!(slowest < BUDGET / 2, "{slowest:?}");
        api.get(&format!("{maps}/slow")).await.refused(404, "NotFound");
    }
    api.post(&maps, &large("fast")).await.ok();
    server.tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn ends_a_request_at_its_deadline() {
    let Setting { server, api, maps, .. } = setting(Duration::from_secs(600)).await;
    let answer = api.post(&format!("{maps}?timeout=1s"), &large("slow")).await;
    let message = answer.refused(504, "Timeout");
    assert_eq!(message, "Timeout: request did not complete within the allotted timeout");
    api.get(&format!("{maps}/slow")).await.refused(404, "NotFound");
    server.tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn ends_a_request_whose_client_has_gone() {
    let Setting { server, api, maps, mut began } = setting(Duration::from_secs(600)).await;
    let slow = large("slow");
    // More requests than the gate admits at once.
    for _ in 0..100 {
        tokio::select! {
            _ = api.post(&maps, &slow) => unreachable!("it computes for ten minutes"),
            begun = began.recv() => begun.unwrap(),
        }
    }
    api.post(&maps, &large("fast")).await.ok();
    server.tasks.drain(Duration::from_secs(5)).await;
}

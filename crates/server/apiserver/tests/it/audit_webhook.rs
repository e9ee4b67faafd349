//! The audit webhook, including a misbehaving one.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use apiserver::{AuditBatch, AuditOptions, AuditWebhookMode, AuditWebhookOptions};
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serve::{Body, Handler};

use crate::harness::{MAPS, TestServer, config_map, start, webhook};

const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// A webhook that records what it receives, with adjustable behavior.
struct Hook {
    kubeconfig: PathBuf,
    mode: Mutex<&'static str>,
    lists: Mutex<Vec<Vec<Value>>>,
    calls: AtomicUsize,
}

impl Hook {
    async fn start(mode: &'static str) -> Arc<Self> {
        webhook("/audit", |kubeconfig| {
            let (lists, calls) = (Mutex::default(), AtomicUsize::new(0));
            Self { kubeconfig, mode: Mutex::new(mode), lists, calls }
        })
        .await
    }

    fn set(&self, mode: &'static str) {
        *self.mode.lock() = mode;
    }

    fn events(&self) -> Vec<Value> {
        self.lists.lock().concat()
    }

    fn options(&self, mode: AuditWebhookMode) -> AuditWebhookOptions {
        let usual = AuditWebhookOptions::to(self.kubeconfig.clone());
        AuditWebhookOptions { mode, initial_backoff: Duration::from_millis(1), ..usual }
    }
}

impl Handler for Hook {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            assert_eq!(request.uri().path(), "/audit");
            assert_eq!(request.headers()["authorization"], "Bearer secret");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let list: Value = serde_json::from_slice(&body).unwrap();
            let head = json!([list["kind"], list["apiVersion"], list["metadata"]]);
            assert_eq!(head, json!(["EventList", "audit.k8s.io/v1", {}]));
            let mode = *self.mode.lock();
            match mode {
                "hangs" => return std::future::pending().await,
                "fails" => {
                    let mut answer = Response::new(client::full("no"));
                    *answer.status_mut() = StatusCode::FORBIDDEN;
                    return answer;
                }
                _ => {}
            }
            self.lists.lock().push(list["items"].as_array().unwrap().clone());
            let endless = "x".repeat(if mode == "large" { 10 << 20 } else { 0 });
            Response::new(client::full(endless))
        })
    }
}

/// Starts a server whose policy audits the administrator.
async fn audited(webhook: AuditWebhookOptions) -> TestServer {
    let policy = tempfile::tempdir().unwrap().keep().join("policy.yaml");
    let rules = "[{level: Request, users: [admin]}]";
    let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: {rules}\n");
    std::fs::write(&policy, text).unwrap();
    let audit = AuditOptions { policy: Some(policy), log: None, webhook: Some(webhook) };
    start(|config| config.audit = audit).await
}

async fn figure(server: &TestServer, line: &str) -> u64 {
    let page = server.user("reader", &["system:masters"]).get("/metrics").await;
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    let value = page.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

fn batch(buffer: usize, max_size: usize, max_wait: Duration) -> AuditWebhookMode {
    AuditWebhookMode::Batch(AuditBatch { buffer, max_size, max_wait, ..AuditBatch::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_events_in_batches_and_at_shutdown() {
    let hook = Hook::start("").await;
    let server = audited(hook.options(batch(100, 4, Duration::from_secs(3600)))).await;
    let admin = server.admin();
    // Two events each: the request's arrival and its completion.
    for name in ["a", "b", "c"] {
        admin.post(MAPS, &config_map(name, json!({"x": "y"}))).await.ok();
    }
    assert!(rt::wait_until(PATIENCE, PAUSE, || hook.events().len() == 4).await);
    assert_eq!(hook.lists.lock().len(), 1);
    let events = hook.events();
    assert!(events.iter().all(|e| e.get("kind").is_none() && e.get("apiVersion").is_none()));
    assert_eq!(events[1]["stage"], "ResponseComplete");
    assert_eq!(events[1]["requestObject"]["metadata"]["name"], "a");
    assert_eq!(events[1]["user"]["username"], "admin");
    // Queued events are sent at shutdown.
    assert!(server.tasks.drain(PATIENCE).await.unfinished.is_empty());
    let names: Vec<Value> =
        hook.events().iter().map(|e| e["requestObject"]["metadata"]["name"].clone()).collect();
    assert_eq!(names, json!([null, "a", null, "b", null, "c"]).as_array().unwrap().as_slice());
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_requests_and_fails_in_strict_mode() {
    let hook = Hook::start("").await;
    let blocking = audited(hook.options(AuditWebhookMode::Blocking)).await;
    blocking.admin().get(MAPS).await.ok();
    assert_eq!(hook.events().len(), 2, "they were sent before the answer");
    let strict = audited(hook.options(AuditWebhookMode::BlockingStrict)).await;
    strict.admin().get(MAPS).await.ok();
    assert_eq!(hook.events().len(), 4);
    hook.set("fails");
    blocking.admin().get(MAPS).await.ok();
    let told = strict.admin().get(MAPS).await.refused(500, "InternalError");
    assert_eq!(told, "Internal error occurred: failed to store audit event");
    // Users that the policy does not name are not affected.
    strict.user("other", &["system:masters"]).get(MAPS).await.ok();
    let lost = "apiserver_audit_error_total{plugin=\"webhook\"}";
    // A rejected request has a final event as well, which is sent without waiting.
    assert!(figure(&strict, lost).await >= 1);
    assert_eq!(figure(&strict, "apiserver_audit_requests_rejected_total").await, 1);
    assert_eq!(figure(&blocking, lost).await, 2);
    // A response that is too long does not confirm the events.
    hook.set("large");
    blocking.admin().get(MAPS).await.ok();
    assert_eq!(figure(&blocking, lost).await, 4);
    assert_eq!(figure(&blocking, "apiserver_audit_level_total{level=\"Request\"}").await, 3);
    // Each event was tried five times, regardless of the response.
    assert!(hook.calls.load(Ordering::Relaxed) >= 4 + 15);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_queue_of_hanging_webhook() {
    let hook = Hook::start("hangs").await;
    let server = audited(hook.options(batch(5, 1, Duration::ZERO))).await;
    let admin = server.admin();
    // Sixteen calls hang, one batch waits for them, and five events wait behind it.
    for _ in 0..20 {
        admin.get(MAPS).await.ok();
    }
    let lost = "apiserver_audit_error_total{plugin=\"buffered\"}";
    assert!(figure(&server, lost).await >= 40 - 16 - 5 - 2);
    assert_eq!(figure(&server, "apiserver_audit_event_total").await, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn truncates_or_drops_large_events() {
    let hook = Hook::start("").await;
    let truncated = AuditWebhookOptions {
        max_event_bytes: Some(2000),
        max_batch_bytes: Some(1200),
        ..hook.options(batch(100, 4, Duration::from_secs(3600)))
    };
    let server = audited(truncated).await;
    let large = config_map("a", json!({"x": "y".repeat(5000)}));
    server.admin().post(MAPS, &large).await.ok();
    server.admin().get(&format!("{MAPS}?labelSelector={}", "x".repeat(3000))).await;
    server.admin().post(MAPS, &config_map("b", json!({}))).await.ok();
    assert!(server.tasks.drain(PATIENCE).await.unfinished.is_empty());
    let events = hook.events();
    let whole = events.iter().filter(|event| event["requestObject"].is_object()).count();
    assert_eq!((events.len(), whole), (4, 1), "{events:?}");
    let cut = |event: &&Value| event["annotations"]["audit.k8s.io/truncated"] == "true";
    assert_eq!(events.iter().filter(cut).count(), 1, "{events:?}");
    assert!(hook.lists.lock().len() > 1, "a batch that is too long comes in parts");
    let sizes = hook.lists.lock().iter().map(|list| json!(list).to_string().len()).max();
    assert!(sizes.unwrap() < 2600);
}

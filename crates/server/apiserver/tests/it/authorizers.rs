//! The authorizer chain of a configuration file, with a webhook that may misbehave.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serve::{Body, Handler};

use crate::harness::{MAPS, TestServer, config_map, start, webhook};

const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// A webhook that decides by user name, with adjustable behavior.
struct Hook {
    kubeconfig: PathBuf,
    mode: Mutex<&'static str>,
    asked: Mutex<Vec<Value>>,
    calls: AtomicUsize,
}

impl Hook {
    async fn start() -> Arc<Self> {
        webhook("/may", |kubeconfig| Self {
            kubeconfig,
            mode: Mutex::new(""),
            asked: Mutex::default(),
            calls: AtomicUsize::new(0),
        })
        .await
    }

    fn set(&self, mode: &'static str) {
        *self.mode.lock() = mode;
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns a chain with this webhook before RBAC.
    fn chain(&self, with: Value) -> Value {
        let mut webhook = json!({
            "timeout": "500ms", "subjectAccessReviewVersion": "v1", "failurePolicy": "Deny",
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": self.kubeconfig},
            "matchConditionSubjectAccessReviewVersion": "v1",
            "matchConditions": [
                {"expression": "!('system:nodes' in request.groups) && !request.user.startsWith('system:')"}],
        });
        for (name, value) in with.as_object().unwrap() {
            webhook[name] = value.clone();
        }
        json!({
            "kind": "AuthorizationConfiguration", "apiVersion": "apiserver.config.k8s.io/v1",
            "authorizers": [{"type": "Webhook", "name": "hook", "webhook": webhook}, {"type": "RBAC", "name": "rbac"}],
        })
    }
}

impl Handler for Hook {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            assert_eq!(request.uri().path(), "/may");
            assert_eq!(request.headers()["authorization"], "Bearer secret");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&body).unwrap();
            let spec = review["spec"].clone();
            self.asked.lock().push(spec.clone());
            let mode = *self.mode.lock();
            let answered = |text: String| Response::new(client::full(text));
            let status = match (mode, spec["user"].as_str().unwrap_or_default()) {
                ("hangs", _) => std::future::pending().await,
                ("garbage", _) => return answered("<html>".to_owned()),
                ("large", _) => return answered("x".repeat(10 << 20)),
                ("both", _) => json!({"allowed": true, "denied": true}),
                ("moved" | "fails", _) => {
                    let mut answer = answered("no".to_owned());
                    let code = if mode == "moved" {
                        StatusCode::TEMPORARY_REDIRECT
                    } else {
                        StatusCode::FORBIDDEN
                    };
                    *answer.status_mut() = code;
                    answer.headers_mut().insert("location", "/may".parse().unwrap());
                    return answer;
                }
                (_, "allowed") => json!({"allowed": true, "reason": "he is so called"}),
                (_, "reader") => {
                    json!({"allowed": spec["resourceAttributes"]["verb"] != "create"})
                }
                (_, "denied") => json!({"allowed": false, "denied": true, "reason": "never"}),
                _ => json!({"allowed": false, "reason": "unknown here"}),
            };
            let answer = json!({"kind": "SubjectAccessReview", "apiVersion": review["apiVersion"], "status": status});
            answered(answer.to_string())
        })
    }
}

async fn governed(chain: &Value) -> (TestServer, PathBuf) {
    let path = tempfile::tempdir().unwrap().keep().join("authorization.json");
    std::fs::write(&path, chain.to_string()).unwrap();
    let file = Some(path.clone());
    (start(|config| config.authorization.file = file).await, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_webhook_before_rbac() {
    let hook = Hook::start().await;
    let (server, _) = governed(&hook.chain(json!({}))).await;
    server.user("allowed", &[]).get(MAPS).await.ok();
    let told = server.user("denied", &[]).get(MAPS).await.refused(403, "Forbidden");
    assert!(told.ends_with("in the namespace \"default\": never"), "{told}");
    let told = server.user("stranger", &[]).get(MAPS).await.refused(403, "Forbidden");
    assert!(told.ends_with(": unknown here"), "{told}");
    // Responses are cached. The webhook is not called for users excluded by conditions, nor for system:masters.
    let calls = hook.calls();
    server.user("allowed", &[]).get(MAPS).await.ok();
    server.user("stranger", &[]).get(MAPS).await.refused(403, "Forbidden");
    server.user("system:x", &[]).get(MAPS).await.refused(403, "Forbidden");
    server.admin().get(MAPS).await.ok();
    assert_eq!(hook.calls(), calls);
    // Checks in the middle of a request use the same chain: an apply that creates.
    let map = config_map("made", json!({}));
    let path = format!("{MAPS}/made?fieldManager=t");
    let reader = server.user("reader", &[]);
    let told = reader.patch(&path, "apply", &map).await.refused(403, "Forbidden");
    assert!(told.contains("cannot create resource"), "{told}");
    server.user("allowed", &[]).patch(&path, "apply", &map).await.ok();
    let verbs: Vec<Value> = hook
        .asked
        .lock()
        .iter()
        .filter(|spec| spec["user"] == "reader")
        .map(|spec| spec["resourceAttributes"]["verb"].clone())
        .collect();
    assert_eq!(verbs, ["patch", "create"]);
    // Reviews use the same chain.
    let review = json!({"spec": {"user": "denied", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let status = server.admin().post(path, &review).await.ok()["status"].clone();
    assert_eq!(status, json!({"allowed": false, "denied": true, "reason": "never"}));
    let page = server.admin().get("/metrics").await.body;
    let page = String::from_utf8(page.to_vec()).unwrap();
    for line in [
        "apiserver_authorization_decisions_total{decision=\"denied\",name=\"hook\",type=\"Webhook\"}",
        "apiserver_authorization_webhook_evaluations_total{name=\"hook\",result=\"success\"}",
        "apiserver_authorization_match_condition_exclusions_total{name=\"hook\",type=\"Webhook\"}",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn denies_when_webhook_misbehaves() {
    let hook = Hook::start().await;
    let (denies, _) = governed(&hook.chain(json!({}))).await;
    let (passes, _) = governed(&hook.chain(json!({"failurePolicy": "NoOpinion"}))).await;
    // The last mode is a valid response, which is cached.
    for mode in ["hangs", "garbage", "large", "moved", "fails", "both"] {
        hook.set(mode);
        // RBAC alone would allow public endpoints.
        for (server, path, code) in [
            (&denies, "/version", 500),
            (&denies, MAPS, 500),
            (&passes, MAPS, 500),
            (&passes, "/version", if mode == "both" { 500 } else { 200 }),
        ] {
            let answer = server.user("allowed", &[]).get(path).await;
            assert_eq!(answer.code, code, "{mode} {path}: {:?}", answer.body);
            if code == 500 {
                let told = String::from_utf8(answer.body.to_vec()).unwrap();
                assert!(
                    told.starts_with(&format!("Internal Server Error: \"{path}\": ")),
                    "{told}"
                );
            }
        }
        denies.admin().get(MAPS).await.ok();
    }
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    hook.set("");
    let status = denies.user("allowed", &[]).post(path, &review).await.ok()["status"].clone();
    assert_eq!(status["allowed"], true);
    hook.set("fails");
    let review =
        json!({"spec": {"user": "x", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let status = denies.admin().post(path, &review).await.ok()["status"].clone();
    assert_eq!((&status["allowed"], &status["denied"]), (&json!(false), &json!(true)));
    assert_eq!(status["evaluationError"], "no");
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_chain_from_file() {
    let hook = Hook::start().await;
    let chain = hook.chain(json!({}));
    let (server, path) = governed(&chain).await;
    let bob = server.user("allowed", &[]);
    bob.get(MAPS).await.ok();
    let becomes = async |code: u16| {
        let seen = rt::retry(
            PATIENCE,
            PAUSE,
            |_: &()| true,
            || async { (bob.get(MAPS).await.code == code).then_some(()).ok_or(()) },
        );
        seen.await.unwrap_or_else(|()| panic!("it does not become {code}"));
    };
    let mut without = chain.clone();
    without["authorizers"].as_array_mut().unwrap().remove(0);
    std::fs::write(&path, without.to_string()).unwrap();
    becomes(403).await;
    std::fs::write(&path, chain.to_string()).unwrap();
    becomes(200).await;
    // A file without RBAC, which the initial chain had, is rejected, and the previous chain stays in use.
    let mut less = chain.clone();
    less["authorizers"].as_array_mut().unwrap().pop();
    for broken in [less.to_string(), "{".to_owned()] {
        std::fs::write(&path, broken).unwrap();
        let line = "apiserver_authorization_config_controller_automatic_reloads_total";
        let failures = async || {
            let page = server.admin().get("/metrics").await.body;
            let page = String::from_utf8(page.to_vec()).unwrap();
            let found = page.lines().find(|l| l.starts_with(line) && l.contains("failure"));
            found.map_or(0, |l| l.rsplit_once(' ').unwrap().1.parse::<u32>().unwrap())
        };
        let before = failures().await;
        let seen = rt::retry(
            PATIENCE,
            PAUSE,
            |_: &()| true,
            || async { (failures().await > before).then_some(()).ok_or(()) },
        );
        seen.await.expect("a failure is counted");
        bob.get(MAPS).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_others_while_webhook_is_slow() {
    let hook = Hook::start().await;
    let (server, _) =
        governed(&hook.chain(json!({"timeout": "20s", "failurePolicy": "NoOpinion"}))).await;
    // The first check is answered. The second one, in the middle of the request, blocks a thread.
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let users: Vec<_> = (0..200).map(|i| server.user(&format!("u{i}"), &[])).collect();
    hook.set("hangs");
    let mut waiting = tokio::task::JoinSet::new();
    for user in users {
        let review = review.clone();
        waiting.spawn(async move { user.post(path, &review).await.code });
    }
    let arrived = rt::wait_until(PATIENCE, PAUSE, || hook.calls() > 100).await;
    assert!(arrived, "{}", hook.calls());
    server.admin().get(MAPS).await.ok();
    server.user("system:x", &[]).get("/version").await.ok();
    waiting.shutdown().await;
}

//! The dashboard in front of an API server that answers as scripted.

use std::sync::Arc;

use bytes::Bytes;
use client::{Client, Transport};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{Method, Request, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use serve::Handler as _;

use crate::{access::Access, handler::Dashboard};

/// An API server that notes requests and answers with the first entry whose path is a prefix.
struct Script {
    answers: Vec<(&'static str, u16, Value)>,
    requests: Mutex<Vec<String>>,
}

/// The connection to it.
struct Link(Arc<Script>);

impl Transport for Link {
    fn send(
        &self,
        request: Request<client::Body>,
    ) -> BoxFuture<'_, Result<Response<client::Body>, client::Error>> {
        let path = request.uri().to_string();
        let line = format!("{} {path}", request.method());
        self.0.requests.lock().push(line);
        let found = self.0.answers.iter().find(|(prefix, ..)| path.starts_with(prefix));
        let (code, body) = found
            .map_or((404, json!({"message": "not found"})), |(_, code, body)| {
                (*code, body.clone())
            });
        let mut response = Response::new(client::full(Bytes::from(body.to_string())));
        *response.status_mut() = StatusCode::from_u16(code).unwrap();
        async move { Ok(response) }.boxed()
    }
}

/// A dashboard and its API server.
struct Scene {
    script: Arc<Script>,
    dashboard: Dashboard,
}

impl Scene {
    fn new(answers: Vec<(&'static str, u16, Value)>) -> Self {
        let script = Arc::new(Script { answers, requests: Mutex::default() });
        let dashboard = Dashboard {
            client: Client::new(Arc::new(Link(script.clone())), "test"),
            access: Access::new("127.0.0.1:8001".parse().unwrap()),
            measurements: Arc::default(),
            timelines: Vec::new(),
        };
        Self { script, dashboard }
    }

    /// Sends a request as a browser that has the cookie.
    async fn get(&self, path: &str) -> (StatusCode, String) {
        let cookie = self.dashboard.access.set_cookie();
        self.send(Method::GET, path, "localhost:8001", cookie.split(';').next().unwrap()).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        host: &str,
        cookie: &str,
    ) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path).header(header::HOST, host);
        let request = request.header(header::COOKIE, cookie).body(serve::full("")).unwrap();
        let response = self.dashboard.handle(request).await;
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        let (head, mut body) = response.into_parts();
        let mut text = Vec::new();
        while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
            text.extend(frame.unwrap().into_data().unwrap());
        }
        (head.status, String::from_utf8(text).unwrap())
    }

    fn requests(&self) -> Vec<String> {
        self.script.requests.lock().clone()
    }
}

#[tokio::test]
async fn asks_nothing_for_strangers_and_changes() {
    let scene = Scene::new(Vec::new());
    let cookie = scene.dashboard.access.set_cookie();
    let cookie = cookie.split(';').next().unwrap();
    for (method, host, cookie, status) in [
        (Method::GET, "localhost:8001", "", 401),
        (Method::GET, "localhost:8001", "windlass-dashboard-8001=0123", 401),
        (Method::GET, "evil.example:8001", cookie, 403),
        (Method::POST, "localhost:8001", cookie, 405),
        (Method::DELETE, "127.0.0.1:8001", cookie, 405),
    ] {
        let path = "/list/core/v1/secrets";
        let (found, text) = scene.send(method.clone(), path, host, cookie).await;
        assert_eq!(found.as_u16(), status, "{method} {host} {cookie}: {text}");
    }
    assert_eq!(scene.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn passes_no_path_of_its_own_to_the_api_server() {
    let scene = Scene::new(Vec::new());
    for path in [
        "/list/core/v1/..",
        "/list/core/v1/pods%2Flog",
        "/list/core/v1/pods?namespace=a/b",
        "/object/core/v1/pods/-/..",
        "/object/core/v1/pods/a/b/c",
        "/log/a/b/c%3Fd",
        "/log/a/..%2F/c",
        "/api/v1/secrets",
        "//api/v1",
    ] {
        let (status, _) = scene.get(path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(scene.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn shows_reasons_where_the_user_may_not_read() {
    let denied =
        json!({"kind": "Status", "message": "nodes is forbidden: User \"eve\" cannot list <b>"});
    let scene = Scene::new(vec![("/api/v1/nodes", 403, denied)]);
    let (status, text) = scene.get("/").await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("User &quot;eve&quot; cannot list &lt;b&gt;"), "{text}");
    let (status, text) = scene.get("/list/core/v1/nodes").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(text.contains("cannot list"), "{text}");
}

#[tokio::test]
async fn shows_a_pod_with_cause_events_and_logs_by_reads_alone() {
    let pod = json!({
        "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "uid": "u-1"},
        "spec": {"containers": [{"name": "app"}, {"name": "../x"}]},
        "status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "unready: [app]"},
        ]},
    });
    let events = json!({
        "columnDefinitions": [{"name": "Message"}],
        "rows": [{"cells": ["Back-off pulling image"], "object": {"metadata": {"name": "e"}}}],
    });
    let scene = Scene::new(vec![
        ("/api/v1/namespaces/shop/pods/web/log", 200, "hello".into()),
        ("/api/v1/namespaces/shop/pods/web", 200, pod),
        ("/api/v1/namespaces/shop/events", 200, events),
    ]);
    let (status, text) = scene.get("/object/core/v1/pods/shop/web").await;
    assert_eq!(status, StatusCode::OK);
    for part in ["ContainersNotReady", "Back-off pulling image", "href=\"/log/shop/web/app\""] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("/log/shop/web/.."), "{text}");
    let (_, text) = scene.get("/log/shop/web/app").await;
    assert!(text.contains("hello"), "{text}");
    let requests = scene.requests();
    assert!(requests.iter().all(|line| line.starts_with("GET ")), "{requests:?}");
    assert!(requests[1].contains("fieldSelector=involvedObject.uid%3Du-1"), "{requests:?}");
}

//! The dashboard in front of an API server that answers as scripted.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use client::{Client, Transport};
use futures_util::{
    FutureExt as _,
    future::{self, BoxFuture},
};
use http::{Method, Request, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use serve::Handler as _;

use crate::{
    access::Access,
    handler::{Dashboard, Users},
    login::{Login, PAGES},
    shared::Readings,
};

/// An API server that notes requests and answers with the first entry whose path is a prefix.
pub(crate) struct Script {
    answers: Vec<(&'static str, u16, Value)>,
    requests: Mutex<Vec<String>>,
}

impl Script {
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

/// Returns a script and a client of it.
pub(crate) fn scripted(answers: Vec<(&'static str, u16, Value)>) -> (Arc<Script>, Client) {
    let script = Arc::new(Script { answers, requests: Mutex::default() });
    (script.clone(), Client::new(Arc::new(Link(script)), "test"))
}

/// The connection to it.
struct Link(Arc<Script>);

impl Transport for Link {
    fn send(
        &self,
        request: Request<client::Body>,
    ) -> BoxFuture<'_, Result<Response<client::Body>, client::Error>> {
        let path = request.uri().to_string();
        let bearer = request.headers().get(header::AUTHORIZATION);
        let user = bearer.map(|bearer| format!("{} ", bearer.to_str().unwrap()));
        let line = format!("{}{} {path}", user.unwrap_or_default(), request.method());
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

/// The connection to an API server that does not answer.
struct Hanging;

impl Transport for Hanging {
    fn send(
        &self,
        _: Request<client::Body>,
    ) -> BoxFuture<'_, Result<Response<client::Body>, client::Error>> {
        future::pending().boxed()
    }
}

/// The connection to an API server that answers no search of whole lists.
struct Searching(Link);

impl Transport for Searching {
    fn send(
        &self,
        request: Request<client::Body>,
    ) -> BoxFuture<'_, Result<Response<client::Body>, client::Error>> {
        let is_search = request.uri().query().is_some_and(|query| query.contains("limit=5000"));
        if is_search { future::pending().boxed() } else { self.0.send(request) }
    }
}

/// A dashboard and its API server.
struct Scene {
    script: Arc<Script>,
    dashboard: Dashboard,
}

impl Scene {
    fn new(answers: Vec<(&'static str, u16, Value)>) -> Self {
        let (script, client) = scripted(answers);
        let access = Access::new("127.0.0.1:8001".parse().unwrap());
        Self::of(script, Users::Local { access, client })
    }

    /// Creates a dashboard with a login. The API server notes the tokens.
    fn remote(answers: Vec<(&'static str, u16, Value)>) -> Self {
        let (script, server) = scripted(answers);
        Self::of(script, Users::Remote(Login::new(server)))
    }

    fn of(script: Arc<Script>, users: Users) -> Self {
        let dashboard = Dashboard {
            users,
            measurements: Arc::default(),
            counts: Readings::default(),
            problems: Arc::default(),
            watches: Arc::default(),
            tasks: rt::Tasks::new(rt::Shutdown::new()),
            timelines: Vec::new(),
        };
        Self { script, dashboard }
    }

    /// Returns the cookie of the user of this machine.
    fn cookie(&self) -> String {
        let Users::Local { access, .. } = &self.dashboard.users else { panic!("users log in") };
        access.set_cookie().split(';').next().unwrap().to_owned()
    }

    /// Sends the form of the login, and returns the status, the cookie and the page.
    async fn log_in(&self, form: &str, origin: &str) -> (StatusCode, String, String) {
        self.post("/login", form, origin).await
    }

    async fn post(&self, path: &str, form: &str, origin: &str) -> (StatusCode, String, String) {
        let request = Request::builder().method(Method::POST).uri(path);
        let request = request.header(header::HOST, "node:8443").header(header::ORIGIN, origin);
        let request = request.body(serve::full(form.to_owned())).unwrap();
        let response = self.dashboard.handle(request).await;
        let cookie = response.headers().get(header::SET_COOKIE);
        let cookie = cookie.map(|cookie| cookie.to_str().unwrap().to_owned()).unwrap_or_default();
        let (status, text) = read(response).await;
        (status, cookie, text)
    }

    /// Sends a request as a browser that has the cookie.
    async fn get(&self, path: &str) -> (StatusCode, String) {
        self.send(Method::GET, path, "localhost:8001", &self.cookie()).await
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
        read(response).await
    }

    fn requests(&self) -> Vec<String> {
        self.script.requests()
    }
}

async fn read(response: Response<serve::Body>) -> (StatusCode, String) {
    let (head, mut body) = response.into_parts();
    let mut text = String::new();
    while let Some(part) = frame(&mut body).await {
        text += &part;
    }
    (head.status, text)
}

/// Returns the next part of a body.
async fn frame(body: &mut serve::Body) -> Option<String> {
    let frame = http_body_util::BodyExt::frame(body).await?;
    Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
}

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
pub(crate) const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const SITE: &str = "https://node:8443";

fn known() -> Value {
    json!({"status": {"userInfo": {"username": "eve"}}})
}

#[tokio::test]
async fn user_of_another_machine_has_the_rights_of_a_token_alone() {
    let nodes = json!({"columnDefinitions": [], "rows": []});
    let scene = Scene::remote(vec![(REVIEWS, 201, known()), ("/api/v1/nodes", 200, nodes)]);
    let (status, cookie, _) = scene.log_in("token=abc.d-e_f%3D", SITE).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    assert!(cookie.starts_with("__Host-windlass-dashboard=abc.d-e_f=; Path=/; Secure; HttpOnly"));
    let cookie = cookie.split(';').next().unwrap();
    let path = "/list/core/v1/nodes";
    let (status, text) = scene.send(Method::GET, path, "node:8443", cookie).await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("Log out") && !text.contains("abc.d"), "{text}");
    let requests = scene.requests();
    assert_eq!(requests[0], format!("Bearer abc.d-e_f= POST {REVIEWS}"));
    assert!(requests[1].starts_with("Bearer abc.d-e_f= GET /api/v1/nodes"), "{requests:?}");
    let (status, cookie, _) = scene.post("/logout", "", "https://evil.example").await;
    assert_eq!((status, cookie.as_str()), (StatusCode::FORBIDDEN, ""));
    let (status, cookie, _) = scene.post("/logout", "", SITE).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    assert!(cookie.starts_with("__Host-windlass-dashboard=; ") && cookie.ends_with("; Max-Age=0"));
}

#[tokio::test]
async fn link_of_another_site_does_not_log_the_user_out() {
    let scene = Scene::remote(Vec::new());
    let request = Request::builder().uri("/").header(header::HOST, "node:8443");
    let response = scene.dashboard.handle(request.body(serve::full("")).unwrap()).await;
    assert_eq!(response.headers()[header::LOCATION], "/login");
    assert!(!response.headers().contains_key(header::SET_COOKIE));
}

#[tokio::test]
async fn asks_nothing_for_users_without_a_token() {
    let scene = Scene::remote(vec![(REVIEWS, 401, json!({"message": "Unauthorized"}))]);
    for (method, path, cookie, status) in [
        (Method::GET, "/", "", 303),
        (Method::GET, "/list/core/v1/secrets", "__Host-windlass-dashboard=", 303),
        (Method::GET, "/timeline", "__Host-windlass-dashboard=a b", 303),
        (Method::GET, "/measurements", "windlass-dashboard-8443=abc", 303),
        (Method::POST, "/list/core/v1/secrets", "__Host-windlass-dashboard=abc", 405),
        (Method::DELETE, "/login", "", 405),
        (Method::GET, "/login", "", 200),
        (Method::GET, "/style.css", "", 200),
    ] {
        let (found, text) = scene.send(method.clone(), path, "node:8443", cookie).await;
        assert_eq!(found.as_u16(), status, "{method} {path} {cookie}: {text}");
    }
    let large = format!("token={}", "x".repeat(20_000));
    for form in ["", "token=", "token=a+b", "token=a%0d%0aSet-Cookie:x", "tok=abc", &large] {
        let (status, cookie, _) = scene.log_in(form, SITE).await;
        assert_eq!((status, cookie.as_str()), (StatusCode::BAD_REQUEST, ""), "{form:.40}");
    }
    let (status, cookie, _) = scene.log_in("token=abc", "https://evil.example").await;
    assert_eq!((status, cookie.as_str()), (StatusCode::FORBIDDEN, ""));
    assert_eq!(scene.requests(), Vec::<String>::new());
    let (status, cookie, text) = scene.log_in("token=abc", SITE).await;
    assert_eq!((status, cookie.as_str()), (StatusCode::UNAUTHORIZED, ""));
    assert!(text.contains("does not accept this token") && !text.contains("abc"), "{text}");
}

#[tokio::test]
async fn sends_one_request_for_a_token_that_the_api_server_does_not_know() {
    let scene = Scene::remote(vec![("/", 401, json!({"message": "Unauthorized"}))]);
    for path in ["/", "/kinds", "/list/core/v1/pods", "/object/core/v1/pods/a/b"] {
        scene.script.requests.lock().clear();
        let cookie = "__Host-windlass-dashboard=abc";
        let (status, _) = scene.send(Method::GET, path, "node:8443", cookie).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(scene.requests().len(), 1, "{path}: {:?}", scene.requests());
    }
}

#[tokio::test]
async fn rejects_pages_while_too_many_are_read() {
    let script = Arc::new(Script { answers: Vec::new(), requests: Mutex::default() });
    let server = Client::new(Arc::new(Hanging), "test");
    let scene = Scene::of(script, Users::Remote(Login::new(server)));
    let cookie = "__Host-windlass-dashboard=abc";
    let page = || Box::pin(scene.send(Method::GET, "/", "node:8443", cookie));
    let mut pages: Vec<_> = (0..PAGES).map(|_| page()).collect();
    for page in &mut pages {
        assert!(page.now_or_never().is_none());
    }
    let (status, text) = page().now_or_never().unwrap();
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text}");
    let form = scene.send(Method::GET, "/login", "node:8443", "");
    assert_eq!(form.await.0, StatusCode::OK);
    // A browser that leaves gives its place back.
    pages.pop();
    assert!(page().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn sends_the_counts_while_the_cluster_is_searched() {
    let nodes = json!({"metadata": {"remainingItemCount": 6}, "items": [{}]});
    let answers = vec![("/version", 200, json!({})), ("/api/v1/nodes", 200, nodes)];
    let script = Arc::new(Script { answers, requests: Mutex::default() });
    let server = Client::new(Arc::new(Searching(Link(script.clone()))), "test");
    let scene = Scene::of(script, Users::Remote(Login::new(server)));
    let cookie = "__Host-windlass-dashboard=abc";
    let page = || async {
        let request = Request::builder().uri("/").header(header::COOKIE, cookie);
        scene.dashboard.handle(request.body(serve::full("")).unwrap()).await.into_body()
    };
    let mut body = page().await;
    let head = frame(&mut body).await.unwrap();
    assert!(head.contains("<b>7</b>Nodes") && head.contains("<b>?</b>Pods"), "{head}");
    assert!(head.contains("Searching nodes") && !head.contains("</html>"), "{head}");
    assert_eq!(frame(&mut body).now_or_never(), None);
    // A page that is being searched has its place.
    let mut pages = future::join_all((1..PAGES).map(|_| page())).await;
    let status = || scene.send(Method::GET, "/", "node:8443", cookie);
    assert_eq!(status().await.0, StatusCode::TOO_MANY_REQUESTS);
    pages.pop();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(frame(&mut page().await).await.unwrap().contains("Searching nodes"));
    let rest = frame(&mut body).await.unwrap();
    assert!(rest.contains("has not answered for 20 seconds"), "{rest}");
    assert!(rest.ends_with("</html>") && frame(&mut body).await.is_none(), "{rest}");
    // Pages that no browser reads have no place after the deadline.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for mut body in future::join_all((0..PAGES).map(|_| page())).await {
        assert!(frame(&mut body).await.unwrap().contains("Searching nodes"));
    }
    assert_eq!(pages.len(), PAGES - 2);
}

#[tokio::test]
async fn shows_this_machine_only_to_users_who_may_get_its_metrics() {
    for (allowed, status) in [(false, StatusCode::FORBIDDEN), (true, StatusCode::OK)] {
        let review = json!({"status": {"allowed": allowed}});
        let scene = Scene::remote(vec![(ACCESS_REVIEWS, 201, review)]);
        for path in ["/timeline", "/measurements"] {
            let cookie = "__Host-windlass-dashboard=abc";
            let (found, text) = scene.send(Method::GET, path, "node:8443", cookie).await;
            assert_eq!(found, status, "{path}: {text}");
        }
    }
}

#[tokio::test]
async fn asks_nothing_for_strangers_and_changes() {
    let scene = Scene::new(Vec::new());
    let cookie = &scene.cookie();
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

#[tokio::test]
async fn first_page_is_shared_by_users_with_the_same_token_alone() {
    let scene = Scene::remote(vec![("/version", 200, json!({})), ("/", 403, json!({}))]);
    let view = |token: &str| {
        let cookie = format!("__Host-windlass-dashboard={token}");
        let scene = &scene;
        async move {
            scene.script.requests.lock().clear();
            let (status, _) = scene.send(Method::GET, "/", "node:8443", &cookie).await;
            assert_eq!(status, StatusCode::OK);
            scene.requests().len()
        }
    };
    let all = view("abc").await;
    assert!(all > 1, "{:?}", scene.requests());
    assert_eq!(view("abd").await, all);
    // The token is checked nonetheless.
    assert_eq!(view("abc").await, 1);
}

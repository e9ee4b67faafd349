//! Aggregated API servers: proxied requests, their documents, and what they cannot do. They listen at a non-loopback
//! address of this machine, because loopback is rejected.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use pki::AltName;
use serde_json::{Value, json};
use serve::{Body, Connection, Handler};
use tokio::sync::Notify;

use crate::{
    harness::{Api, FORGED_IDENTITY, Identity, admin, check_echo, listen_at, shared, spawn_echo},
    proxy_targets::{Trap, own_address},
    records::{API_SERVICES, until},
    watches::Events,
};

const VERSION: &str = "v1alpha1";

/// An aggregated API server. Its group is derived from its namespace, so that tests do not interfere.
struct Extension {
    address: SocketAddr,
    group: String,
    mode: Mutex<&'static str>,
    calls: AtomicUsize,
    /// Notified when the body of a watch is dropped.
    left: Arc<Notify>,
    tasks: rt::Tasks,
}

struct Leaving(Arc<Notify>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Extension {
    fn said(&self, path: &str) -> Response<Body> {
        let kind = json!({"group": self.group, "version": VERSION, "kind": "Thing"});
        let verbs = ["get", "list", "watch"];
        let (body, content) = match (path, *self.mode.lock()) {
            ("/apis", "huge") => ("x".repeat(5 << 20), "application/json;as=APIGroupDiscoveryList"),
            ("/apis", "deep") => (
                "[".repeat(100) + &"]".repeat(100),
                "application/json;as=APIGroupDiscoveryList",
            ),
            ("/apis", "wrong") => (
                json!({"items": [{"metadata": {"name": self.group}, "versions": "v1"}]}).to_string(),
                "application/json;as=APIGroupDiscoveryList",
            ),
            ("/apis", "old") => (json!({"groups": []}).to_string(), "application/json"),
            ("/apis", _) => (
                json!({"items": [
                    {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [{"resource": "stolen"}]}]},
                    {"metadata": {"name": self.group}, "versions": [{"version": VERSION, "resources": [
                        {"resource": "things", "scope": "Namespaced", "responseKind": kind, "verbs": verbs}]}]},
                ]})
                .to_string(),
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            ),
            ("/openapi/v3", _) => (
                json!({"paths": {format!("apis/{}/{VERSION}", self.group): {"serverRelativeURL": "/openapi/v3/x?hash=AB12\"}"}, "api/v1": {"serverRelativeURL": "/evil"}}})
                    .to_string(),
                "application/json",
            ),
            ("/openapi/v2", _) => (
                json!({"paths": {format!("/apis/{}/{VERSION}/things", self.group): {"get": {}}, "/api/v1/pods": {"get": {"evil": true}}}})
                    .to_string(),
                "application/json",
            ),
            _ => (
                json!({"kind": "APIResourceList", "groupVersion": format!("{}/{VERSION}", self.group), "resources": [
                    {"name": "things", "namespaced": true, "kind": "Thing", "verbs": verbs}]})
                .to_string(),
                "application/json",
            ),
        };
        let mut response = Response::new(client::full(body));
        response.headers_mut().insert(header::CONTENT_TYPE, content.parse().unwrap());
        response
    }

    /// Returns the received request, for comparison with what the API server sends.
    async fn echo(request: Request<Body>) -> Response<Body> {
        let connection = request.extensions().get::<Arc<Connection>>().cloned().unwrap();
        let (parts, body) = request.into_parts();
        let length = body.collect().await.unwrap().to_bytes().len();
        let mut headers = json!({});
        for (name, value) in &parts.headers {
            let value = json!(String::from_utf8_lossy(value.as_bytes()));
            match headers.get_mut(name.as_str()).and_then(Value::as_array_mut) {
                Some(values) => values.push(value),
                None => headers[name.as_str()] = json!([value]),
            }
        }
        let echoed = json!({
            "method": parts.method.as_str(), "query": parts.uri.query(), "headers": headers, "length": length,
            "certificates": connection.client_certificates.len(),
        });
        let mut response = Response::new(client::full(echoed.to_string()));
        for (name, value) in [("access-control-allow-origin", "*"), ("x-own", "yes")] {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    }

    fn watch(&self) -> Response<Body> {
        let leaving = Leaving(self.left.clone());
        let events = futures_util::stream::unfold((0, leaving), |(n, leaving)| async move {
            if n == 1 {
                // The stream stays open without further events.
                std::future::pending::<()>().await;
            }
            let event =
                Bytes::from("{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"}}}\n");
            Some((Ok::<_, Infallible>(Frame::data(event)), (n + 1, leaving)))
        });
        Response::new(StreamBody::new(events).map_err(|never| match never {}).boxed_unsync())
    }

    fn upgrade(&self, mut request: Request<Body>) -> Response<Body> {
        spawn_echo(&self.tasks, &mut request);
        let user = request.headers().get("x-remote-user").cloned();
        let head = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "echo")
            .header("x-user", user.unwrap());
        head.body(client::full("")).unwrap()
    }
}

impl Handler for Extension {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let own = format!("/apis/{}/{VERSION}", self.group);
            match path.strip_prefix(&own).unwrap_or_default() {
                "" if path.starts_with("/openapi/v3/") => Self::echo(request).await,
                "" => self.said(&path),
                "/things" if request.uri().query() == Some("watch=1") => self.watch(),
                "/upgrade" => self.upgrade(request),
                "/moved" => {
                    let moved =
                        Response::builder().status(302).header("location", "https://127.0.0.1/");
                    moved.body(client::full("")).unwrap()
                }
                "/missing" => {
                    let missing = Response::builder().status(404);
                    missing.body(client::full("{\"kind\":\"Status\"}")).unwrap()
                }
                _ => {
                    self.calls.fetch_add(1, Ordering::Relaxed);
                    Self::echo(request).await
                }
            }
        })
    }
}

struct Cluster {
    api: Api,
    namespace: String,
    name: String,
    extension: Arc<Extension>,
}

impl Cluster {
    /// Starts an API server for a group of its own. Returns `None` if this machine has only loopback addresses.
    async fn start() -> Option<Self> {
        let Some(address) = own_address() else {
            eprintln!("skipped: this machine has no address but loopback's");
            return None;
        };
        let api = admin();
        let namespace = api.namespace().await;
        let group = format!("{namespace}.example.com");
        let named = vec![AltName::Dns(format!("ext.{namespace}.svc"))];
        let extension =
            listen_at(address, &shared().authority, named, |address, tasks| Extension {
                address,
                group: group.clone(),
                mode: Mutex::new(""),
                calls: AtomicUsize::new(0),
                left: Arc::default(),
                tasks,
            });
        let (extension, name) = (extension.await, format!("{VERSION}.{group}"));
        Some(Self { api, namespace, name, extension })
    }

    fn own(&self) -> String {
        format!("/apis/{}/{VERSION}", self.extension.group)
    }

    fn spec(&self) -> Value {
        let ca = STANDARD.encode(shared().authority.cert().to_pem());
        json!({
            "group": self.extension.group, "version": VERSION, "groupPriorityMinimum": 2000, "versionPriority": 10,
            "caBundle": ca, "service": {"namespace": self.namespace, "name": "ext", "port": 443},
        })
    }

    async fn register(&self, spec: Value) {
        let service = json!({"metadata": {"name": self.name}, "spec": spec});
        self.api.post(API_SERVICES, &service).await.ok();
    }

    async fn service(&self) {
        let services = format!("/api/v1/namespaces/{}/services", self.namespace);
        let service = json!({"metadata": {"name": "ext"}, "spec": {"ports": [{"name": "https", "port": 443}]}});
        self.api.post(&services, &service).await.ok();
    }

    fn slice(&self, ip: &str, port: u16, port_name: &str) -> Value {
        json!({
            "metadata": {"name": "ext", "labels": {"kubernetes.io/service-name": "ext"}},
            "addressType": "IPv4", "ports": [{"name": port_name, "port": port}],
            "endpoints": [{"addresses": [ip]}],
        })
    }

    fn slices(&self) -> String {
        format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", self.namespace)
    }

    async fn endpoints(&self, port_name: &str) {
        let address = self.extension.address;
        let slice = self.slice(&address.ip().to_string(), address.port(), port_name);
        let made = self.api.post(&self.slices(), &slice).await;
        if made.code == 409 {
            self.api.put(&format!("{}/ext", self.slices()), &slice).await.ok();
        }
    }

    /// Waits until the APIService's condition has this status and reason. Returns its message.
    async fn says(&self, status: &str, reason: &str) -> String {
        let at = format!("{API_SERVICES}/{}", self.name);
        let wanted = |_: u16, found: &Value| {
            let condition = &found["status"]["conditions"][0];
            condition["status"] == status && condition["reason"] == reason
        };
        let found = until(&self.api, &at, wanted).await;
        found["status"]["conditions"][0]["message"].as_str().unwrap().to_owned()
    }

    /// Starts an API server, registers it and waits until it is available.
    async fn up() -> Option<Self> {
        let cluster = Self::start().await?;
        cluster.service().await;
        cluster.endpoints("https").await;
        cluster.register(cluster.spec()).await;
        cluster.says("True", "Passed").await;
        Some(cluster)
    }

    async fn discovery(&self) -> Value {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        self.api.send("GET", "/apis", &[("accept", accept)], "").await.ok()
    }

    /// Returns the version from aggregated discovery once it has this freshness.
    async fn discovered(&self, freshness: &str) -> Value {
        let (patience, pause) = (Duration::from_secs(30), Duration::from_millis(20));
        let ask = || async {
            let list = self.discovery().await;
            let mut groups = list["items"].as_array().unwrap().iter();
            let group = groups.find(|g| g["metadata"]["name"] == self.extension.group.as_str());
            let version = group.map(|g| g["versions"][0].clone()).unwrap_or_default();
            if version["freshness"] == freshness { Ok(version) } else { Err(version) }
        };
        rt::retry(patience, pause, |_| true, ask).await.unwrap()
    }

    /// Triggers a new check of the server.
    async fn look_again(&self) {
        let at = format!("{API_SERVICES}/{}", self.name);
        let touched = json!({"metadata": {"annotations": {"touched": rt::id()}}});
        self.api.patch(&at, "merge", &touched).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_requests_with_callers_identity() {
    let Some(cluster) = Cluster::up().await else { return };
    let namespace = &cluster.namespace;
    let api = shared().tls(Identity::Token(shared().powerful_token(namespace).await));
    let more = [("connection", "x-remote-user, x-remote-group"), ("x-stays", "yes")];
    let headers = [FORGED_IDENTITY.as_slice(), &more].concat();
    let path = format!("{}/namespaces/a/things/b?x=1&y=%2F", cluster.own());
    let body = vec![b'x'; 8 << 20];
    let answer = api.send("POST", &path, &headers, body).await;
    let seen = answer.ok();
    let user = format!("system:serviceaccount:{namespace}:default");
    let groups = json!([
        "system:serviceaccounts",
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated"
    ]);
    let told = &seen["headers"];
    assert_eq!(told["x-remote-user"], json!([user]), "{seen}");
    assert_eq!(told["x-remote-group"], groups);
    assert_eq!(told["x-remote-uid"].as_array().unwrap().len(), 1);
    assert_ne!(told["x-remote-uid"], json!(["0"]));
    assert_eq!(told["x-stays"], json!(["yes"]));
    for ours in ["authorization", "x-remote-extra-scopes", "x_remote_user", "impersonate-user"] {
        assert!(told[ours].is_null(), "{ours}: {seen}");
    }
    assert_eq!((&seen["method"], &seen["query"]), (&json!("POST"), &json!("x=1&y=%2F")));
    assert_eq!((&seen["length"], &seen["certificates"]), (&json!(8 << 20), &json!(1)));
    assert_eq!((answer.header("x-own"), answer.header("access-control-allow-origin")), ("yes", ""));

    let asked = [("impersonate-user", "alice"), ("impersonate-group", "system:masters")];
    let seen = api.send("GET", &path, &asked, "").await.ok();
    assert_eq!(seen["headers"]["x-remote-user"], json!(["alice"]));
    assert_eq!(
        seen["headers"]["x-remote-group"],
        json!(["system:masters", "system:authenticated"])
    );
    assert!(seen["headers"]["impersonate-user"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn authorizes_before_proxying() {
    let Some(cluster) = Cluster::up().await else { return };
    let path = format!("{}/namespaces/a/things", cluster.own());
    let nobody = shared().user("nobody", &[]);
    for method in ["GET", "POST", "DELETE"] {
        let message = nobody.send(method, &path, &[], "").await.refused(403, "Forbidden");
        assert!(message.contains("cannot ") && message.contains("things.test-"), "{message}");
    }
    shared().tls(Identity::Nobody).get(&path).await.refused(403, "Forbidden");
    let smuggled = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")];
    let stranger = shared().tls(Identity::Nobody);
    stranger.send("GET", &path, &smuggled, "").await.refused(403, "Forbidden");
    assert_eq!(cluster.extension.calls.load(Ordering::Relaxed), 0);
    // Ambiguous paths are rejected for every caller.
    for odd in ["/namespaces/a%2Fb/things", "/../v1/things", "//things"] {
        let answer = cluster.api.get(&format!("{}{odd}", cluster.own())).await;
        assert_eq!(answer.code, 404, "{odd}");
    }
    assert_eq!(cluster.extension.calls.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn passes_responses_except_redirects() {
    let Some(cluster) = Cluster::up().await else { return };
    let moved = cluster.api.get(&format!("{}/moved", cluster.own())).await;
    assert_eq!((moved.code, moved.header("location")), (502, ""));
    let missing = cluster.api.get(&format!("{}/missing", cluster.own())).await;
    assert_eq!((missing.code, &*missing.body), (404, &b"{\"kind\":\"Status\"}"[..]));
    let mut events = Events::open(&cluster.api, &format!("{}/things?watch=1", cluster.own())).await;
    assert_eq!(events.short().await, "ADDED a");
    drop(events);
    let left = tokio::time::timeout(Duration::from_secs(20), cluster.extension.left.notified());
    left.await.expect("who is no longer listened to notices");
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_connections_after_upgrade() {
    let Some(cluster) = Cluster::up().await else { return };
    let token = shared().powerful_token(&cluster.namespace).await;
    let to = shared().api.address();
    let mut stream = shared().dial(to, "http/1.1").await;
    let request = format!(
        "GET {}/upgrade HTTP/1.1\r\nhost: api\r\nauthorization: Bearer {token}\r\nconnection: Upgrade\r\nupgrade: echo\r\nx-remote-user: root\r\n\r\n",
        cluster.own()
    );
    let head = check_echo(&mut stream, &request).await;
    let user = format!("x-user: system:serviceaccount:{}:default\r\n", cluster.namespace);
    assert!(head.contains(&user), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_why_api_service_is_unavailable() {
    let Some(cluster) = Cluster::start().await else { return };
    let namespace = &cluster.namespace;
    cluster.register(cluster.spec()).await;
    let message = cluster.says("False", "ServiceNotFound").await;
    assert_eq!(message, format!("service/ext in \"{namespace}\" is not present"));
    let answer = cluster.api.get(&format!("{}/things", cluster.own())).await;
    assert_eq!((answer.code, &*answer.body), (503, &b"service unavailable\n"[..]));
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    cluster.service().await;
    let message = cluster.says("False", "EndpointsNotFound").await;
    assert_eq!(message, format!("cannot find endpointslices for service/ext in \"{namespace}\""));
    cluster.endpoints("other").await;
    let message = cluster.says("False", "MissingEndpoints").await;
    assert_eq!(
        message,
        format!(
            "endpointslices for service/ext in \"{namespace}\" have no addresses with port name \"https\""
        )
    );
    let at = format!("{API_SERVICES}/{}", cluster.name);
    let on = |port: u16| json!({"spec": {"service": {"port": port}}});
    cluster.api.patch(&at, "merge", &on(8443)).await.ok();
    let message = cluster.says("False", "ServicePortError").await;
    assert_eq!(message, format!("service/ext in \"{namespace}\" is not listening on port 8443"));
    cluster.api.patch(&at, "merge", &on(443)).await.ok();
    cluster.endpoints("https").await;
    assert_eq!(cluster.says("True", "Passed").await, "all checks passed");
    // An authority that has not signed the server's certificate.
    let stranger = pki::Authority::create(
        "stranger",
        pki::KeyAlgorithm::EcdsaP256,
        crate::harness::validity(),
    );
    let bundle = STANDARD.encode(stranger.unwrap().cert().to_pem());
    cluster.api.patch(&at, "merge", &json!({"spec": {"caBundle": bundle}})).await.ok();
    let message = cluster.says("False", "FailedDiscoveryCheck").await;
    assert!(message.starts_with("failing or missing response from https://ext."), "{message}");
    assert!(message.contains("certificate signed by unknown authority"), "{message}");
    let careless = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    cluster.api.patch(&at, "merge", &careless).await.ok();
    cluster.says("True", "Passed").await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = cluster.api.send("GET", &at, &[("accept", table)], "").await.ok();
    let cells = &table["rows"][0]["cells"];
    assert_eq!(
        (&cells[1], &cells[2]),
        (&json!(format!("{namespace}/ext")), &json!("True")),
        "{cells}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_all_servers_and_freshness_in_discovery() {
    let Some(cluster) = Cluster::up().await else { return };
    let (api, group) = (&cluster.api, &cluster.extension.group);
    let version = cluster.discovered("Current").await;
    assert_eq!(version["resources"][0]["resource"], "things", "{version}");
    let stolen = |list: &Value| list.to_string().contains("stolen");
    assert!(!stolen(&cluster.discovery().await), "a server spoke for another group");
    let listed = |list: Value| {
        list["groups"].as_array().unwrap().iter().any(|g| g["name"] == group.as_str())
    };
    assert!(listed(api.get("/apis").await.ok()));
    let alone = api.get(&format!("/apis/{group}")).await.ok();
    assert_eq!(alone["preferredVersion"]["version"], VERSION);
    assert_eq!(api.get(&cluster.own()).await.ok()["resources"][0]["name"], "things");

    let indexed = |found: &Value| found["paths"][&cluster.own()[1..]]["serverRelativeURL"].clone();
    let index = until(api, "/openapi/v3", |_, found| indexed(found).is_string()).await;
    let url = format!("/openapi/v3{}?hash=AB12", cluster.own());
    assert_eq!(indexed(&index), url);
    assert_ne!(index["paths"]["api/v1"]["serverRelativeURL"], "/evil");
    let answer = api.get(&url).await.ok();
    let told = &answer["headers"];
    assert_eq!(
        (&told["x-remote-user"], &answer["query"]),
        (&json!(["system:aggregator"]), &Value::Null)
    );
    assert_eq!(told["x-remote-group"], json!(["system:authenticated"]));
    let things = format!("{}/things", cluster.own());
    let whole = until(api, "/openapi/v2", |_, found| found["paths"][&things].is_object()).await;
    assert!(whole["paths"]["/api/v1/namespaces/{namespace}/pods"]["get"].is_object());
    assert!(whole["paths"]["/api/v1/pods"]["get"]["evil"].is_null());

    let nobody = api.get("/apis/no.such.example.com/v1/things").await;
    assert_eq!(nobody.code, 404);
    cluster.extension.tasks.shutdown().stop();
    cluster.look_again().await;
    cluster.says("False", "FailedDiscoveryCheck").await;
    let version = cluster.discovered("Stale").await;
    assert_eq!(version["resources"][0]["resource"], "things", "what it served is still shown");
    assert!(listed(api.get("/apis").await.ok()));
    assert_eq!(api.get(&cluster.own()).await.code, 503);
    api.delete(&format!("{API_SERVICES}/{}", cluster.name), &json!({})).await.ok();
    until(api, &format!("/apis/{group}"), |code, _| code == 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_documents_of_aggregated_servers() {
    let Some(cluster) = Cluster::up().await else { return };
    cluster.discovered("Current").await;
    for mode in ["huge", "deep", "wrong"] {
        *cluster.extension.mode.lock() = mode;
        cluster.look_again().await;
        let version = cluster.discovered("Stale").await;
        assert_eq!(version["resources"][0]["resource"], "things", "{mode}");
        // The proxy still works, for this server and for others.
        let answer = cluster.api.get(&format!("{}/x", cluster.own())).await;
        assert_eq!(answer.code, 200, "{mode}");
        *cluster.extension.mode.lock() = "old";
        cluster.look_again().await;
        cluster.discovered("Current").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ignores_api_services_of_built_in_groups() {
    let Some(cluster) = Cluster::start().await else { return };
    cluster.service().await;
    cluster.endpoints("https").await;
    let mut spec = cluster.spec();
    (spec["group"], spec["version"]) = (json!("apps"), json!("v7"));
    let taker = json!({"metadata": {"name": "v7.apps"}, "spec": spec});
    cluster.api.post(API_SERVICES, &taker).await.ok();
    let at = format!("{API_SERVICES}/v7.apps");
    until(&cluster.api, &at, |_, found| {
        found["status"]["conditions"][0]["reason"] == "BuiltInGroup"
    })
    .await;
    assert_eq!(cluster.api.get("/apis/apps/v7/deployments").await.code, 404);
    for (name, path) in [("v1.apps", "/apis/apps/v1/deployments"), ("v1.", "/api/v1/configmaps")] {
        let at = format!("{API_SERVICES}/{name}");
        let before = until(&cluster.api, &at, |code, _| code == 200).await;
        let theirs =
            json!({"spec": {"service": cluster.spec()["service"], "insecureSkipTLSVerify": true}});
        cluster.api.patch(&at, "merge", &theirs).await.ok();
        until(&cluster.api, &at, |_, found| {
            found["status"]["conditions"][0]["reason"] == "BuiltInGroup"
        })
        .await;
        assert!(cluster.api.get(path).await.ok()["kind"].as_str().unwrap().ends_with("List"));
        let ours = json!({"spec": {"service": null, "insecureSkipTLSVerify": null}});
        let after = cluster.api.patch(&at, "merge", &ours).await.ok();
        assert_eq!(after["spec"], before["spec"]);
    }
    assert_eq!(cluster.extension.calls.load(Ordering::Relaxed), 0);
    cluster.api.delete(&at, &json!({})).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_own_addresses_of_api_services() {
    let Some(cluster) = Cluster::start().await else { return };
    let trap = Trap::set();
    let (api, namespace) = (&cluster.api, &cluster.namespace);
    for ip in ["127.0.0.1", "169.254.169.254", "0.0.0.0"] {
        let slice = cluster.slice(ip, trap.port(), "https");
        api.post(&cluster.slices(), &slice).await.refused(422, "Invalid");
    }
    // An external name that resolves to this machine.
    let service = json!({"metadata": {"name": "ext"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    api.post(&format!("/api/v1/namespaces/{namespace}/services"), &service).await.ok();
    let mut spec = cluster.spec();
    spec["service"]["port"] = json!(trap.port());
    cluster.register(spec).await;
    let message = cluster.says("False", "FailedDiscoveryCheck").await;
    assert!(message.ends_with("address not allowed"), "{message}");
    assert_eq!(api.get(&format!("{}/things", cluster.own())).await.code, 503);
    trap.is_untouched("an APIService");
}

#[tokio::test(flavor = "multi_thread")]
async fn restores_published_authorities() {
    let api = admin();
    let at = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let before = until(&api, at, |code, _| code == 200).await;
    api.delete(at, &json!({})).await.ok();
    until(&api, at, |_, found| found["data"] == before["data"]).await;
    let spoiled = json!({"data": {"client-ca-file": null, "requestheader-allowed-names": "[]"}});
    api.patch(at, "merge", &spoiled).await.ok();
    until(&api, at, |_, found| found["data"]["client-ca-file"] == before["data"]["client-ca-file"])
        .await;
}

//! Extenders behind a socket, with the scheduler and the real API server.

use std::{path::Path, sync::Arc};

use clap::Parser;
use client::{Client, PatchKind, PatchTarget, Resource};
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serve::{Body, Handler, Limits, answer};
use testkit::{RealApi, until};
use tokio::net::TcpListener;

const GPU: &str = "example.com/gpu";

/// Returns the reply to a verb and a request.
type ReplyFn = dyn Fn(&str, &Value) -> Reply + Send + Sync;

/// An extender that answers each verb with the result of a function, and remembers the requests.
struct FakeExtender {
    reply: Box<ReplyFn>,
    requests: Mutex<Vec<(String, Value)>>,
    /// The client that binds Pods.
    admin: Client,
}

enum Reply {
    Json(Value),
    Raw(StatusCode, Vec<u8>),
    Never,
    Bind,
}

impl FakeExtender {
    fn requests(&self, verb: &str) -> Vec<Value> {
        let all = self.requests.lock();
        all.iter().filter(|(name, _)| name == verb).map(|(_, request)| request.clone()).collect()
    }

    async fn bind(&self, request: &Value) -> Value {
        let text = |field: &str| request[field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("PodNamespace"), text("PodName"));
        let binding = json!({"apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": request["PodUID"]},
            "target": {"kind": "Node", "name": request["Node"]}});
        let (pods, path) = (&Resource::PODS, "binding");
        let bound = self
            .admin
            .create_subresource::<_, Value>(pods, &namespace, &name, path, &binding)
            .await;
        json!({"Error": bound.err().map(|error| error.to_string()).unwrap_or_default()})
    }
}

impl Handler for FakeExtender {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(async move {
            let verb = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            self.requests.lock().push((verb.clone(), body.clone()));
            let kind = "application/json";
            match (self.reply)(&verb, &body) {
                Reply::Json(value) => answer(StatusCode::OK, kind, value.to_string()),
                Reply::Raw(status, bytes) => answer(status, kind, bytes),
                Reply::Bind => answer(StatusCode::OK, kind, self.bind(&body).await.to_string()),
                Reply::Never => std::future::pending().await,
            }
        })
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: scheduler::Args,
}

/// An API server with two nodes, and a scheduler with one extender.
struct Scene {
    api: RealApi,
    admin: Client,
    extender: Arc<FakeExtender>,
    _directory: tempfile::TempDir,
}

impl Scene {
    /// `settings` are those of the extender, beside its URL.
    async fn start(
        settings: &str,
        reply: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let api = RealApi::start().await.unwrap();
        let (admin, tasks) = (api.admin(), api.tasks());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (reply, requests) = (Box::new(reply), Mutex::default());
        let extender = Arc::new(FakeExtender { reply, requests, admin: admin.clone() });
        let limits = Limits::default();
        let serving = serve::serve(listener, None, limits, extender.clone(), tasks.clone());
        tasks.spawn("extender", serving);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        let text = format!(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
             leaderElection: {{leaderElect: false}}\n\
             extenders: [{{urlPrefix: 'http://{address}/scheduler/', {settings}}}]\n"
        );
        std::fs::write(&file, text).unwrap();
        let config = configuration(&file).unwrap();
        let (client, running) = (api.user("system:kube-scheduler"), tasks.clone());
        tasks.spawn("scheduler", async move {
            scheduler::run(config, client, &running).await.unwrap();
        });
        let account = json!({"metadata": {"name": "default", "namespace": "default"}});
        create(&admin, &Resource::SERVICE_ACCOUNTS, account).await;
        for name in ["a", "b"] {
            add_node(&admin, name).await;
        }
        Self { api, admin, extender, _directory: directory }
    }

    async fn node_of(&self, name: &str) -> Value {
        let pod: Value = self.admin.get(&Resource::PODS, "default", name).await.unwrap();
        pod["spec"]["nodeName"].clone()
    }

    async fn until_on(&self, name: &str, node: &str) {
        until("the Pod has its node", || async { self.node_of(name).await == node }).await;
    }

    /// Waits for the Pod's condition and an Event with this text.
    async fn until_failed(&self, name: &str, reason: &str, text: &str) {
        let contains = |value: &Value| value.as_str().is_some_and(|message| message.contains(text));
        until("the Pod has a condition and an Event", || async {
            let pod: Value = self.admin.get(&Resource::PODS, "default", name).await.unwrap();
            let condition = &pod["status"]["conditions"][0];
            let (events, options) = (&Resource::EVENTS, Default::default());
            let events = self.admin.list::<Value>(events, "default", &options).await.unwrap();
            condition["reason"] == reason
                && contains(&condition["message"])
                && events.items.iter().any(|event| {
                    event["reason"] == "FailedScheduling"
                        && event["involvedObject"]["name"] == name
                        && contains(&event["message"])
                })
        })
        .await;
    }

    async fn stop(self) {
        let left = self.api.stop().await;
        assert!(left.unfinished.is_empty(), "{left:?}");
    }
}

fn configuration(file: &Path) -> Result<scheduler::Config, scheduler::ConfigError> {
    let command = ["kube-scheduler".into(), format!("--config={}", file.display())];
    Cli::parse_from(command).args.config(api_config::FeatureGates::default())
}

async fn create(client: &Client, resource: &Resource, object: Value) {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    client.create::<_, Value>(resource, &namespace, &object).await.unwrap();
}

async fn add_node(admin: &Client, name: &str) {
    create(admin, &Resource::NODES, json!({"metadata": {"name": name}})).await;
    let room = json!({"cpu": "2", "memory": "4Gi", "pods": "110"});
    let status = json!({"status": {"capacity": room, "allocatable": room}});
    for (subresource, patch) in [("status", &status), ("", &json!({"spec": {"taints": []}}))] {
        let at = PatchTarget { namespace: "", name, subresource };
        admin.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, patch).await.unwrap();
    }
}

fn plain(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]}})
}

/// A Pod of the extender.
fn gpu(name: &str) -> Value {
    let amounts = json!({"cpu": "1", GPU: "1"});
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]}})
}

const MANAGED: &str =
    "managedResources: [{name: example.com/gpu, ignoredByScheduler: true}], filterVerb: filter";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extender_filters_scores_and_binds() {
    let settings = format!("{MANAGED}, prioritizeVerb: prioritize, weight: 100, bindVerb: bind");
    let scene = Scene::start(&settings, |verb, request| match verb {
        "bind" => Reply::Bind,
        "prioritize" => Reply::Json(json!([{"host": "b", "score": 10}, {"Host": "a"}])),
        _ => Reply::Json(json!({"Nodes": request["Nodes"], "FailedNodes": {}, "Error": ""})),
    })
    .await;
    until("the nodes can be used", || async {
        scene.admin.get::<Value>(&Resource::NODES, "", "b").await.unwrap()["spec"]["taints"]
            .is_null()
    })
    .await;
    create(&scene.admin, &Resource::PODS, gpu("p")).await;
    until("it has a node", || async { !scene.node_of("p").await.is_null() }).await;
    let filtered = &scene.extender.requests("filter")[0];
    assert_eq!(filtered["Pod"]["metadata"]["name"], "p");
    assert_eq!(filtered["Pod"]["spec"]["containers"][0]["image"], "i");
    assert!(filtered["NodeNames"].is_null());
    let node = &filtered["Nodes"]["items"][0];
    assert_eq!(node["status"]["allocatable"]["cpu"], "2", "{node}");
    let bound = &scene.extender.requests("bind")[0];
    assert_eq!((&bound["PodName"], &bound["PodNamespace"]), (&json!("p"), &json!("default")));
    if filtered["Nodes"]["items"].as_array().unwrap().len() == 2 {
        assert_eq!(bound["Node"], "b");
    }
    create(&scene.admin, &Resource::PODS, gpu("q")).await;
    until("it has a node", || async { !scene.node_of("q").await.is_null() }).await;
    create(&scene.admin, &Resource::PODS, plain("other")).await;
    until("it has a node", || async { !scene.node_of("other").await.is_null() }).await;
    let pods = scene.extender.requests("filter");
    assert!(pods.iter().all(|request| request["Pod"]["metadata"]["name"] != "other"));
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_extender_delays_no_other_pods() {
    let settings = format!("{MANAGED}, nodeCacheCapable: true, httpTimeout: 2s");
    let scene = Scene::start(&settings, |_, _| Reply::Never).await;
    create(&scene.admin, &Resource::PODS, gpu("p")).await;
    create(&scene.admin, &Resource::PODS, gpu("q")).await;
    until("it is called", || async { !scene.extender.requests("filter").is_empty() }).await;
    create(&scene.admin, &Resource::PODS, plain("other")).await;
    until("it has a node", || async { !scene.node_of("other").await.is_null() }).await;
    scene.until_failed("p", "SchedulerError", "context deadline exceeded").await;
    scene.until_failed("q", "SchedulerError", "context deadline exceeded").await;
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_of_extender_fails_only_its_pods() {
    let settings = format!("{MANAGED}, nodeCacheCapable: true");
    let scene = Scene::start(&settings, |_, request| {
        match request["Pod"]["metadata"]["name"].as_str().unwrap_or_default() {
            "garbage" => Reply::Raw(StatusCode::OK, b"<html>".to_vec()),
            "deep" => Reply::Raw(StatusCode::OK, b"[".repeat(100_000)),
            "code" => Reply::Raw(StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
            "large" => Reply::Raw(StatusCode::OK, b" ".repeat(8 << 20)),
            "unknown" => Reply::Json(json!({"NodeNames": ["a", "mars"]})),
            "error" => Reply::Json(json!({"Error": "x".repeat(100_000)})),
            "reasons" => {
                let why = |n: &str| (n.to_owned(), json!("y".repeat(100_000)));
                let failed: serde_json::Map<_, _> = ["a", "b", "z"].map(why).into_iter().collect();
                Reply::Json(json!({"nodenames": [], "failedNodes": failed}))
            }
            _ => Reply::Json(json!({"NodeNames": ["b", "b"]})),
        }
    })
    .await;
    let names = ["garbage", "deep", "code", "large", "unknown", "error", "reasons"];
    for name in names.into_iter().chain(["good"]) {
        create(&scene.admin, &Resource::PODS, gpu(name)).await;
    }
    scene.until_on("good", "b").await;
    for (name, text) in [
        ("garbage", "decode the answer of extender"),
        ("deep", "decode the answer of extender"),
        ("code", "failed filter with extender at URL"),
        ("large", "Post \"http://"),
        ("unknown", "claims a filtered node \"mars\" which is not found in the input node list"),
        ("error", "xxx"),
    ] {
        scene.until_failed(name, "SchedulerError", text).await;
    }
    scene.until_failed("reasons", "Unschedulable", "yyy").await;
    for name in ["error", "reasons"] {
        let pod: Value = scene.admin.get(&Resource::PODS, "default", name).await.unwrap();
        let message = pod["status"]["conditions"][0]["message"].as_str().unwrap().to_owned();
        assert!(message.len() < 4096, "{}", message.len());
    }
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ignorable_extender_may_be_down() {
    let settings = "filterVerb: filter, prioritizeVerb: score, weight: 1, bindVerb: bind, \
                    ignorable: true, nodeCacheCapable: true";
    let scene =
        Scene::start(settings, |_, _| Reply::Raw(StatusCode::BAD_GATEWAY, Vec::new())).await;
    create(&scene.admin, &Resource::PODS, plain("p")).await;
    until("it has a node", || async { !scene.node_of("p").await.is_null() }).await;
    assert!(!scene.extender.requests("bind").is_empty());
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extender_chooses_victims() {
    let settings = "preemptVerb: preempt";
    let scene = Scene::start(settings, |_, request| {
        let offered = request["NodeNameToVictims"].as_object().unwrap();
        let victims = |node: &Value| {
            let pods = node["Pods"].as_array().unwrap().iter();
            let uids: Vec<_> = pods.map(|pod| json!({"UID": pod["metadata"]["uid"]})).collect();
            json!({"Pods": uids, "NumPDBViolations": node["NumPDBViolations"]})
        };
        let chosen = offered.iter().filter(|(node, _)| *node == "b");
        let chosen: serde_json::Map<_, _> =
            chosen.map(|(name, node)| (name.clone(), victims(node))).collect();
        Reply::Json(json!({"NodeNameToMetaVictims": chosen}))
    })
    .await;
    let admin = &scene.admin;
    for node in ["a", "b"] {
        let mut pod = plain(&format!("low-{node}"));
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
        let labels = json!({"metadata": {"labels": {"kubernetes.io/hostname": node}}});
        let at = PatchTarget { namespace: "", name: node, subresource: "" };
        admin.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &labels).await.unwrap();
        create(admin, &Resource::PODS, pod).await;
        scene.until_on(&format!("low-{node}"), node).await;
    }
    let class = json!({"metadata": {"name": "high"}, "value": 1000});
    create(admin, &Resource::PRIORITY_CLASSES, class).await;
    let mut high = plain("high");
    high["spec"]["priorityClassName"] = json!("high");
    high["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
    create(admin, &Resource::PODS, high).await;
    until("the victim is evicted", || async {
        let pod = admin.get::<Value>(&Resource::PODS, "default", "low-b").await;
        pod.map_or(true, |pod| !pod["metadata"]["deletionTimestamp"].is_null())
    })
    .await;
    let spared: Value = admin.get(&Resource::PODS, "default", "low-a").await.unwrap();
    assert!(spared["metadata"]["deletionTimestamp"].is_null());
    let request = &scene.extender.requests("preempt")[0];
    assert!(request["NodeNameToMetaVictims"].is_null());
    let sent = &request["NodeNameToVictims"]["b"]["Pods"][0];
    assert_eq!(sent["metadata"]["name"], "low-b");
    scene.stop().await;
}

#[tokio::test]
async fn extenders_and_gangs_exclude_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.yaml");
    let text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
                extenders: [{urlPrefix: 'http://127.0.0.1:1', filterVerb: f}]\n";
    std::fs::write(&file, text).unwrap();
    let gates = ["GenericWorkload=true", "GangScheduling=true"];
    let features = api_config::FeatureGates::parse(gates.into_iter()).unwrap();
    let command = ["kube-scheduler".into(), format!("--config={}", file.display())];
    let error = Cli::parse_from(command).args.config(features).unwrap_err().to_string();
    assert!(error.contains("extenders are not called for Pods of a PodGroup"), "{error}");
}

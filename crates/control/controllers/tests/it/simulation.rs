//! Runs the API server and all controllers in simulated time. The same seed gives the same trace.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use client::{Client, DeleteOptions, PatchKind, PatchTarget, Resource};
use parking_lot::Mutex;
use serde_json::{Value, json};
use store::{ChangeKind, KeyRange, Store, WatchMessage};
use testkit::RealApi;
use tokio::{sync::watch, time::sleep};

use crate::api::start_controllers;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const TOKEN_REVIEWS: Resource =
    Resource::constant("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", false);
/// The interval between lease renewals, and between a kubelet's checks of its Pods.
const RENEWAL: Duration = Duration::from_secs(10);
const POD_CHECK: Duration = Duration::from_secs(5);

/// Every change of the store: milliseconds since the start, the operation and the key.
type Trace = Arc<Mutex<Vec<String>>>;

struct World {
    api: RealApi,
    user: Client,
    /// The nodes whose heartbeats are cut off.
    cut: watch::Sender<BTreeSet<&'static str>>,
    trace: Trace,
    begun: SystemTime,
}

async fn record(store: Arc<dyn Store>, trace: Trace, begun: SystemTime) {
    let range = KeyRange { start: "/registry/".to_owned(), end: String::new() };
    let mut changes = store.watch(range, 1).await.unwrap();
    while let Some(message) = changes.next().await {
        let WatchMessage::Changes(changes) = message else { continue };
        let after = rt::now().duration_since(begun).unwrap_or_default().as_millis();
        let mut trace = trace.lock();
        trace.extend(changes.iter().map(|change| {
            let what = if change.kind == ChangeKind::Put { "put" } else { "delete" };
            // The name of the server's own lease contains its port, which is random.
            let own = "/registry/leases/kube-system/apiserver-";
            let key = if change.kv.key.starts_with(own) { own } else { &change.kv.key };
            format!("{after} {what} {key} {}", change.kv.mod_revision)
        }));
    }
}

fn conditions(ready: &str) -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": ready, "reason": "KubeletReady"}]}})
}

/// Renews the leases and Ready conditions of the connected nodes.
async fn heartbeats(client: Client, cut: watch::Receiver<BTreeSet<&'static str>>) {
    loop {
        for name in NODES.iter().filter(|name| !cut.borrow().contains(**name)) {
            let now = api_meta::Timestamp::from(rt::now());
            let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now.micros()}});
            let at = PatchTarget { namespace: "kube-node-lease", name, subresource: "" };
            let renewed =
                client.patch::<Value>(&Resource::LEASES, at, PatchKind::Merge, &lease).await;
            if renewed.is_err() {
                let _ = client.create::<_, Value>(&Resource::LEASES, at.namespace, &lease).await;
            }
            let at = PatchTarget { namespace: "", name, subresource: "status" };
            let kind = PatchKind::Strategic;
            let _ = client.patch::<Value>(&Resource::NODES, at, kind, &conditions("True")).await;
        }
        sleep(RENEWAL).await;
    }
}

/// A random scheduler, and the kubelets of the connected nodes.
async fn run_pods(client: Client, cut: watch::Receiver<BTreeSet<&'static str>>) {
    loop {
        let pods = client.list::<Value>(&Resource::PODS, "", &Default::default()).await;
        for pod in pods.map(|list| list.items).unwrap_or_default() {
            let silent = cut.borrow().clone();
            tend(&client, &pod, &silent).await;
        }
        sleep(POD_CHECK).await;
    }
}

async fn tend(client: &Client, pod: &Value, cut: &BTreeSet<&'static str>) {
    let meta = &pod["metadata"];
    let (namespace, name) = (meta["namespace"].as_str().unwrap(), meta["name"].as_str().unwrap());
    let Some(node) = pod["spec"]["nodeName"].as_str() else {
        let alive: Vec<&str> = NODES.into_iter().filter(|node| !cut.contains(node)).collect();
        let node = alive[rt::random_in(0..alive.len())];
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"kind": "Node", "name": node}});
        let path = format!("{}/{name}/binding", Resource::PODS.collection(namespace));
        let body = serde_json::to_vec(&binding).unwrap();
        let bound = client.call(http::Method::POST, &path, "application/json", body.into()).await;
        bound.unwrap();
        return;
    };
    if cut.contains(node) {
        return;
    }
    if !meta["deletionTimestamp"].is_null() {
        let now = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        let _ = client.delete(&Resource::PODS, namespace, name, &now).await;
        return;
    }
    let once = pod["spec"]["restartPolicy"] == "Never";
    let phase = match pod["status"]["phase"].as_str() {
        Some("Running") if once => "Succeeded",
        Some("Pending") | None => "Running",
        _ => return,
    };
    let ready = if phase == "Running" { "True" } else { "False" };
    let at = PatchTarget { namespace, name, subresource: "status" };
    let patch = json!({"status": {"phase": phase, "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
        "conditions": [{"type": "Ready", "status": ready,
            "lastTransitionTime": api_meta::Timestamp::from(rt::now()).to_seconds()}]}});
    let _ = client.patch::<Value>(&Resource::PODS, at, PatchKind::Strategic, &patch).await;
}

impl World {
    async fn start() -> Self {
        let begun = rt::now();
        let api = RealApi::simulated().await.unwrap();
        let tasks = api.tasks();
        let (trace, cut) = (Trace::default(), watch::Sender::new(BTreeSet::new()));
        tasks.spawn_until_shutdown("trace", record(api.store(), trace.clone(), begun));
        start_controllers(&api.server(), controllers::Config::default(), &tasks);
        let user = api.admin();
        for name in NODES {
            let node = json!({"metadata": {"name": name}});
            user.create::<_, Value>(&Resource::NODES, "", &node).await.unwrap();
        }
        tasks.spawn_until_shutdown("heartbeats", heartbeats(user.clone(), cut.subscribe()));
        tasks.spawn_until_shutdown("pods", run_pods(user.clone(), cut.subscribe()));
        Self { api, user, cut, trace, begun }
    }

    fn seconds(&self) -> u64 {
        rt::now().duration_since(self.begun).unwrap().as_secs()
    }

    /// Waits for the condition for at most `most` seconds of simulated time, and returns the seconds it took.
    async fn until<F: Future<Output = bool>>(
        &self,
        what: &str,
        most: u64,
        condition: impl Fn() -> F,
    ) -> u64 {
        let begun = self.seconds();
        while !condition().await {
            if self.seconds() - begun >= most {
                let trace = self.trace.lock();
                let last = &trace[trace.len().saturating_sub(40)..];
                panic!("not within {most} seconds: {what}; last changes {last:#?}");
            }
            sleep(POD_CHECK).await;
        }
        self.seconds() - begun
    }

    async fn get(&self, resource: &Resource, name: &str) -> Value {
        let namespace = if resource.namespaced { "default" } else { "" };
        self.user.get(resource, namespace, name).await.unwrap_or_default()
    }

    async fn list(&self, resource: &Resource) -> Vec<Value> {
        self.user.list(resource, "default", &Default::default()).await.unwrap().items
    }

    async fn rolled_out(&self, image: &str, most: u64) {
        self.until("the Deployment is rolled out", most, async || {
            let web = self.get(&Resource::DEPLOYMENTS, "web").await;
            let status = &web["status"];
            let pods = self.list(&Resource::PODS).await;
            let of_web = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == "web");
            let current = |pod: &&Value| pod["spec"]["containers"][0]["image"] == image;
            let going = |pod: &&Value| !pod["metadata"]["deletionTimestamp"].is_null();
            status["observedGeneration"] == web["metadata"]["generation"]
                && status["availableReplicas"] == 3
                && status["updatedReplicas"] == 3
                && of_web.clone().all(|pod| current(&pod) || going(&pod))
        })
        .await;
    }

    async fn authenticates(&self, token: &str) -> bool {
        let review = json!({"spec": {"token": token}});
        let answer: Value = self.user.create(&TOKEN_REVIEWS, "", &review).await.unwrap();
        answer["status"]["authenticated"] == true
    }

    async fn token(&self, seconds: u64) -> String {
        let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds}});
        let body = serde_json::to_vec(&request).unwrap();
        let answer = self.user.call(http::Method::POST, path, "application/json", body.into());
        let answer: Value = serde_json::from_slice(&answer.await.unwrap()).unwrap();
        answer["status"]["token"].as_str().unwrap().to_owned()
    }
}

fn template(image: &str, restart: &str) -> Value {
    let spec = json!({"restartPolicy": restart, "containers": [{"name": "c", "image": image}]});
    json!({"metadata": {"labels": {"app": "web"}}, "spec": spec})
}

/// Deploys an application and updates it.
async fn roll_out(world: &World) {
    let user = &world.user;
    let account = async || !world.get(&Resource::SERVICE_ACCOUNTS, "default").await.is_null();
    world.until("there is an account", 60, account).await;
    let meta = |name: &str| json!({"name": name, "namespace": "default"});
    let job = json!({"spec": {"template": {"spec": template("job", "Never")["spec"]}}});
    let cron =
        json!({"metadata": meta("cron"), "spec": {"schedule": "*/15 * * * *", "jobTemplate": job}});
    user.create::<_, Value>(&Resource::CRON_JOBS, "default", &cron).await.unwrap();
    let web = json!({"metadata": meta("web"), "spec": {"replicas": 3,
        "selector": {"matchLabels": {"app": "web"}}, "template": template("one", "Always")}});
    user.create::<_, Value>(&Resource::DEPLOYMENTS, "default", &web).await.unwrap();
    world.rolled_out("one", 60).await;
    let at = PatchTarget { namespace: "default", name: "web", subresource: "" };
    let two = json!({"spec": {"template": template("two", "Always")}});
    user.patch::<Value>(&Resource::DEPLOYMENTS, at, PatchKind::Merge, &two).await.unwrap();
    world.rolled_out("two", 120).await;
}

/// Checks that a token is valid until it expires.
async fn outlive_a_token(world: &World) {
    let token = world.token(600).await;
    assert!(world.authenticates(&token).await);
    // Clocks may differ by a minute.
    sleep(Duration::from_secs(655)).await;
    assert!(world.authenticates(&token).await);
    sleep(Duration::from_secs(10)).await;
    assert!(!world.authenticates(&token).await, "it is over");
}

/// Cuts off the node of the first Pod and expects its Pods to move.
async fn lose_a_node(world: &World) {
    let pods = world.list(&Resource::PODS).await;
    let lost = pods.iter().find_map(|pod| pod["spec"]["nodeName"].as_str()).unwrap();
    let lost = NODES.into_iter().find(|node| *node == lost).unwrap();
    world.cut.send_modify(|cut| cut.extend([lost]));
    let unknown = async || {
        let node = world.get(&Resource::NODES, lost).await;
        let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.iter().any(|c| c["type"] == "Ready" && c["status"] == "Unknown")
    };
    let took = world.until("the node is unknown", 120, unknown).await;
    assert!((40..70).contains(&took), "the grace period is over after {took} s");
    let elsewhere = async || {
        let pods = world.list(&Resource::PODS).await;
        let there = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == "web");
        let alive = there.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        alive.clone().count() == 3 && alive.clone().all(|pod| pod["spec"]["nodeName"] != lost)
    };
    let took = world.until("its Pods are elsewhere", 600, elsewhere).await;
    assert!((290..330).contains(&took), "Pods tolerate it for five minutes, not {took} s");
    world.cut.send_modify(|cut| cut.clear());
    world.rolled_out("two", 120).await;
}

/// Runs CronJobs for an hour and expects Events to expire.
async fn wait_for_an_hour(world: &World) {
    sleep(Duration::from_secs(4200)).await;
    let jobs = world.list(&Resource::JOBS).await;
    assert_eq!(jobs.len(), 3, "as many as are kept of those that ended");
    let now = api_meta::Timestamp::from(rt::now());
    let old = world.list(&Resource::EVENTS).await.into_iter().filter(|event| {
        let made = event["metadata"]["creationTimestamp"].as_str().unwrap();
        now.since(made.parse().unwrap()) > Duration::from_secs(3660)
    });
    assert_eq!(old.count(), 0, "Events live for an hour");
}

/// Runs a scenario with a seed and returns its trace.
fn happens(seed: u64, scenario: impl AsyncFnOnce(&World)) -> Vec<String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let _simulation = rt::Simulation::begin(seed, start);
        let world = World::start().await;
        scenario(&world).await;
        let trace = std::mem::take(&mut *world.trace.lock());
        let left = world.api.stop().await;
        assert!(left.unfinished.is_empty(), "{left:?}");
        trace
    })
}

#[test]
fn same_seed_gives_same_trace() {
    let scenario = async |world: &World| {
        roll_out(world).await;
        lose_a_node(world).await;
    };
    let (first, again, other) = (happens(1, scenario), happens(1, scenario), happens(2, roll_out));
    let differs = first.iter().zip(&again).position(|(a, b)| a != b);
    if let Some(at) = differs {
        let (from, to) = (at.saturating_sub(5), at + 5);
        let part = |trace: &[String]| trace[from..to.min(trace.len())].to_vec();
        panic!("{at}: {:#?}\nand {:#?}", part(&first), part(&again));
    }
    assert_eq!(first.len(), again.len());
    assert_ne!(first[..other.len()], other);
}

#[test]
fn simulates_an_hour() {
    let trace = happens(3, async |world: &World| {
        roll_out(world).await;
        outlive_a_token(world).await;
        wait_for_an_hour(world).await;
        assert!(world.seconds() > 4800);
    });
    let jobs = |what: &str| {
        let key = format!(" {what} /registry/jobs/default/cron-");
        trace.iter().filter(|line| line.contains(&key)).count()
    };
    assert!(jobs("put") >= 5 && jobs("delete") >= 1, "{} {}", jobs("put"), jobs("delete"));
}

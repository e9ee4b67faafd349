//! Runs the API server, all controllers, the scheduler and nodes in simulated time. The same seed gives the same trace.

use std::time::Duration;

use client::{PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};
use testkit::{Loss, Machine};
use tokio::time::sleep;

mod faults;
mod ledger;
mod node;
mod registers;
mod world;

use node::terminates;
use world::{NODES, World, simulate};

const TOKEN_REVIEWS: Resource =
    Resource::constant("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", false);

impl World {
    async fn rolled_out(&self, image: &str, most: u64) {
        self.until("the Deployment is rolled out", most, async || {
            let web = self.get(&Resource::DEPLOYMENTS, "web").await;
            let status = &web["status"];
            let pods = self.list(&Resource::PODS).await;
            let of_web = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == "web");
            let current = |pod: &&Value| pod["spec"]["containers"][0]["image"] == image;
            status["observedGeneration"] == web["metadata"]["generation"]
                && status["availableReplicas"] == 3
                && status["updatedReplicas"] == 3
                && of_web.clone().all(|pod| current(&pod) || terminates(pod))
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

fn template(app: &str, image: &str, restart: &str) -> Value {
    let spec = json!({"restartPolicy": restart, "containers": [{"name": "c", "image": image}]});
    json!({"metadata": {"labels": {"app": app}}, "spec": spec})
}

/// Deploys an application and updates it.
async fn roll_out(world: &World) {
    let user = &world.user;
    let account = async || !world.get(&Resource::SERVICE_ACCOUNTS, "default").await.is_null();
    world.until("there is an account", 60, account).await;
    let meta = |name: &str| json!({"name": name, "namespace": "default"});
    let job = json!({"spec": {"template": {"spec": template("job", "job", "Never")["spec"]}}});
    let cron =
        json!({"metadata": meta("cron"), "spec": {"schedule": "*/15 * * * *", "jobTemplate": job}});
    user.create::<_, Value>(&Resource::CRON_JOBS, "default", &cron).await.unwrap();
    let web = json!({"metadata": meta("web"), "spec": {"replicas": 3,
        "selector": {"matchLabels": {"app": "web"}}, "template": template("web", "one", "Always")}});
    user.create::<_, Value>(&Resource::DEPLOYMENTS, "default", &web).await.unwrap();
    world.rolled_out("one", 60).await;
    let at = PatchTarget { namespace: "default", name: "web", subresource: "" };
    let two = json!({"spec": {"template": template("web", "two", "Always")}});
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
    world.link(lost).lose(Loss::Everything);
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
        let alive = there.filter(|pod| !terminates(pod));
        alive.clone().count() == 3 && alive.clone().all(|pod| pod["spec"]["nodeName"] != lost)
    };
    let took = world.until("its Pods are elsewhere", 600, elsewhere).await;
    assert!((290..330).contains(&took), "Pods tolerate it for five minutes, not {took} s");
    world.link(lost).heal();
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

/// Runs a scenario without faults and returns its trace.
fn happens(seed: u64, scenario: impl AsyncFnOnce(&World)) -> Vec<String> {
    simulate(seed, async |simulation| {
        let world = World::start(simulation, Machine::new().unwrap(), 1).await;
        scenario(&world).await;
        world.stop().await
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

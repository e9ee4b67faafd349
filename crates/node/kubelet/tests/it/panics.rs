//! Pod workers that panic.

use client::{DeleteOptions, Resource};
use serde_json::json;
use testkit::{FakeApi, PanicInjector};

use crate::{
    api::{container, pod, status},
    node::{Node, eventually},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_panicked_worker_without_affecting_others() {
    let mut node = Node::start("panics").await;
    let (api, panics) = (FakeApi::default(), PanicInjector::new(5, 0, 0.7));
    let of_pods = |request: &http::Request<client::Body>| {
        let path = request.uri().path();
        path.contains("/pods/") && request.method() != http::Method::GET
    };
    node.start_kubelet(Some(panics.in_calls(api.clone(), "kubelet", of_pods)));
    let create = async |name: &str| {
        let app = container("app", "exec sleep 1000");
        api.create(&Resource::PODS, pod(name, json!({ "containers": [app] }))).await;
    };
    let runs = |name: &str| status(&api, name)["phase"] == "Running";
    create("bystander").await;
    create("going").await;
    eventually("the first Pods run", async || runs("bystander") && runs("going")).await;
    let id = || status(&api, "bystander")["containerStatuses"][0]["containerID"].clone();
    let before = id();
    // From here on, the workers' requests panic this many times.
    panics.more(12);
    let now = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    api.client("user").delete(&Resource::PODS, "default", "going", &now).await.unwrap();
    create("coming").await;
    eventually("the new Pod runs", async || runs("coming")).await;
    eventually("the Pod is gone", async || api.get(&Resource::PODS, "default", "going").is_none())
        .await;
    create("later").await;
    eventually("another one runs", async || runs("later")).await;
    assert!(panics.left() < 12 && rt::panics()["pod worker"] >= 1, "{:?}", rt::panics());
    assert_eq!(id(), before, "the bystander was left alone");
    eventually("an Event says why the Pod was late", async || {
        api.list(&Resource::EVENTS, "default").iter().any(|event| event["reason"] == "FailedSync")
    })
    .await;
    node.close().await;
}

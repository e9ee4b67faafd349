//! Runs controllers together against an in-memory API server and a kubelet that makes every Pod ready.

mod autoscaling;
mod cves;
mod devices;
mod garbage;
mod gated;
mod jobs;
mod metrics;
mod panics;
mod rollouts;
mod sets;
mod storage;
mod upkeep;

use std::time::Duration;

use client::{PatchTarget, Resource};
use serde_json::{Value, json};
use testkit::FakeApi;

use crate::Config;

pub(crate) struct Cluster {
    pub(crate) api: FakeApi,
    tasks: rt::Tasks,
}

impl Cluster {
    /// Runs these controllers and a kubelet.
    pub(crate) fn start(controllers: &[&str], config: Config) -> Self {
        Self::start_on(FakeApi::default(), controllers, config)
    }

    /// Runs these controllers and a kubelet on an API server that may have objects already.
    pub(crate) fn start_on(api: FakeApi, controllers: &[&str], config: Config) -> Self {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let config =
            Config { controllers: controllers.iter().map(|c| (*c).to_owned()).collect(), ..config };
        let (clients, running) = (api.clone(), tasks.clone());
        tasks.spawn("controllers", async move {
            crate::run(config, move |name: &str| clients.client(name), &running).await.unwrap();
        });
        tasks.spawn_until_shutdown("kubelet", kubelet(api.clone(), Duration::from_millis(3)));
        Self { api, tasks }
    }

    pub(crate) async fn stop(self) {
        assert_eq!(
            self.tasks.drain(Duration::from_secs(5)).await.unfinished,
            Vec::<std::sync::Arc<str>>::new()
        );
    }

    /// Returns the Pods that are not terminating.
    pub(crate) fn pods(&self) -> Vec<Value> {
        let mut pods = self.api.list(&Resource::PODS, "default");
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        pods
    }
}

/// Sets every Pod to running and ready in each period, unless its image says otherwise.
async fn kubelet(api: FakeApi, period: Duration) {
    let client = api.client("kubelet");
    let mut number = 0;
    loop {
        for pod in api.list(&Resource::PODS, "") {
            let broken = pod["spec"]["containers"][0]["image"] == "broken";
            if !pod["status"]["phase"].is_null() || broken {
                continue;
            }
            number += 1;
            let at = PatchTarget {
                namespace: pod["metadata"]["namespace"].as_str().unwrap_or_default(),
                name: pod["metadata"]["name"].as_str().unwrap_or_default(),
                subresource: "status",
            };
            let patch = json!({"status": {"phase": "Running", "podIP": format!("10.1.0.{number}"),
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
            let _ =
                client.patch::<Value>(&Resource::PODS, at, client::PatchKind::Merge, &patch).await;
        }
        tokio::time::sleep(period).await;
    }
}

pub(crate) fn events(api: &FakeApi, reason: &str) -> Vec<String> {
    let events = api.list(&Resource::EVENTS, "");
    let of = events.iter().filter(|e| e["reason"] == reason);
    of.filter_map(|e| e["message"].as_str().map(str::to_owned)).collect()
}

/// Waits for the condition, at most an hour of simulated time.
pub(crate) async fn until(api: &FakeApi, what: &str, condition: impl Fn(&FakeApi) -> bool) {
    for _ in 0..3600 {
        if condition(api) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("timed out waiting: {what}");
}

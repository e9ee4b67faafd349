//! Tests the scheduler against an in-memory API server, and against the real one with RBAC.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod elections;
mod extenders;
mod gangs;
mod real;

use client::Resource;
use scheduler::Config;
use serde_json::{Value, json};
use testkit::FakeApi;

fn node(name: &str, cpu: &str) -> Value {
    json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}})
}

fn pod(name: &str, cpu: &str, priority: i64) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "default-scheduler", "priority": priority,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
    })
}

fn node_of(api: &FakeApi, name: &str) -> Option<String> {
    api.get(&Resource::PODS, "default", name)?["spec"]["nodeName"].as_str().map(str::to_owned)
}

fn has_event(api: &FakeApi, reason: &str, message: &str) -> bool {
    let events = api.list(&Resource::EVENTS, "default");
    events
        .iter()
        .any(|e| e["reason"] == reason && e["message"].as_str().unwrap_or("").contains(message))
}

fn start(api: &FakeApi) -> rt::Tasks {
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let (client, running) = (api.client("scheduler"), tasks.clone());
    tasks.spawn("scheduler", async move {
        scheduler::run(Config::default(), client, &running).await.unwrap()
    });
    tasks
}

#[tokio::test]
async fn binds_pods_and_reports_failures() {
    let api = FakeApi::default();
    api.create(&Resource::NODES, node("a", "4")).await;
    api.create(&Resource::PODS, pod("before", "1", 0)).await;
    let tasks = start(&api);
    api.until("the Pod from before is bound", |api| node_of(api, "before").is_some()).await;
    api.create(&Resource::PODS, pod("big", "8", 0)).await;
    api.until("the big Pod's condition has the reason", |api| {
        let pod = api.get(&Resource::PODS, "default", "big").unwrap_or_default();
        let condition = &pod["status"]["conditions"][0];
        condition["reason"] == "Unschedulable"
            && condition["message"]
                .as_str()
                .unwrap_or("")
                .starts_with("0/1 nodes are available: 1 Insufficient cpu.")
    })
    .await;
    api.create(&Resource::NODES, node("b", "16")).await;
    api.until("the new node helps", |api| node_of(api, "big").as_deref() == Some("b")).await;
    api.until("there is an Event for each", |api| {
        has_event(api, "Scheduled", "Successfully assigned default/before to a")
            && has_event(api, "FailedScheduling", "Insufficient cpu")
    })
    .await;
    assert!(tasks.drain(std::time::Duration::from_secs(5)).await.unfinished.is_empty());
}

#[tokio::test]
async fn preempts_less_important_pod() {
    let api = FakeApi::default();
    api.create(&Resource::NODES, node("a", "2")).await;
    api.create(&Resource::PODS, pod("low", "2", 0)).await;
    let tasks = start(&api);
    api.until("the lesser Pod is bound", |api| node_of(api, "low").is_some()).await;
    api.create(&Resource::PODS, pod("vip", "1", 1000)).await;
    api.until("the important Pod takes its room", |api| node_of(api, "vip").is_some()).await;
    assert_eq!(api.get(&Resource::PODS, "default", "low"), None);
    api.until("the victim has an Event", |api| has_event(api, "Preempted", "Preempted by pod"))
        .await;
    assert!(tasks.drain(std::time::Duration::from_secs(5)).await.unfinished.is_empty());
}

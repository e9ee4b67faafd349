//! The metrics of a running scheduler.

use client::Resource;
use serde_json::json;
use testkit::{
    FakeApi,
    metrics::{OF_CLIENTS, OF_COMPONENTS, PublishedMetric, assert_published, published},
};

use super::*;

/// Upstream's STABLE and BETA metrics of the scheduler.
const PUBLISHED: &[PublishedMetric] = &[
    published(
        "scheduler_framework_extension_point_duration_seconds",
        "histogram",
        &["extension_point", "profile", "status"],
    ),
    published("scheduler_pending_pods", "gauge", &["queue"]),
    published("scheduler_pod_scheduling_attempts", "histogram", &[]),
    published("scheduler_pod_scheduling_sli_duration_seconds", "histogram", &["attempts"]),
    published("scheduler_preemption_attempts_total", "counter", &[]),
    published("scheduler_preemption_victims", "histogram", &[]),
    published("scheduler_queue_incoming_pods_total", "counter", &["event", "queue"]),
    published("scheduler_schedule_attempts_total", "counter", &["profile", "result"]),
    published("scheduler_scheduling_attempt_duration_seconds", "histogram", &["profile", "result"]),
    published("leader_election_master_status", "gauge", &["name"]),
];

#[tokio::test(start_paused = true)]
async fn measures_attempts_queues_and_preemption() {
    let api = FakeApi::default();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let metrics = telemetry::metrics::Metrics::of_component("v1.36.2");
    let config = Config { metrics: metrics.clone(), leader_election: true, ..Config::default() };
    let resources = config.resources.clone();
    let (client, running) = (api.client("scheduler"), tasks.clone());
    tasks.spawn("scheduler", async move { run(config, client, &running).await.unwrap() });
    let allocatable = json!({"cpu": "1", "memory": "8Gi", "pods": "110"});
    let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}});
    api.create(&Resource::NODES, node).await;
    let has = |line: &str| metrics.text().contains(&format!("\n{line}\n"));
    api.create(&Resource::PODS, pod("low")).await;
    until("the first is bound", || nodes_of_pods(&api).len() == 1).await;
    let mut gated = pod("gated");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    let mut urgent = pod("urgent");
    urgent["spec"]["priority"] = json!(1000);
    // A Pod of another scheduler, whose name would be a new label value.
    let mut foreign = pod("foreign");
    foreign["spec"]["schedulerName"] = json!("hostile");
    for pod in [pod("waits"), gated, urgent, foreign] {
        api.create(&Resource::PODS, pod).await;
    }
    until("the urgent Pod is bound", || {
        has("scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 2")
    })
    .await;
    for line in [
        "scheduler_pending_pods{queue=\"gated\"} 1",
        "scheduler_pending_pods{queue=\"unschedulable\"} 1",
        "scheduler_preemption_victims_sum 1",
        "scheduler_pod_scheduling_attempts_count 2",
        "scheduler_queue_incoming_pods_total{event=\"PodAdd\",queue=\"active\"} 3",
        "scheduler_queue_incoming_pods_total{event=\"PodAdd\",queue=\"gated\"} 1",
        "leader_election_master_status{name=\"kube-scheduler\"} 1",
    ] {
        assert!(has(line), "{line}: {}", metrics.text());
    }
    let text = metrics.text();
    assert_published(&text, [PUBLISHED, OF_COMPONENTS, OF_CLIENTS].into_iter().flatten());
    let stage = "scheduler_framework_extension_point_duration_seconds_count{extension_point=";
    for point in ["PreFilter", "Filter", "PostFilter", "Reserve", "PreBind", "Bind"] {
        assert!(text.contains(&format!("{stage}\"{point}\"")), "{point}: {text}");
    }
    assert!(!text.contains("hostile") && !text.contains("example.com"), "{text}");
    let request = "kube_pod_resource_request{namespace=\"default\",node=\"n\",pod=\"urgent\",priority=\"1000\",\
                   resource=\"cpu\",scheduler=\"default-scheduler\",unit=\"cores\"} 1\n";
    assert!(resources.text().contains(request), "{}", resources.text());
    assert!(tasks.drain(std::time::Duration::from_secs(5)).await.unfinished.is_empty());
}

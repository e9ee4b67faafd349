use testkit::metrics::{
    OF_CLIENTS, OF_COMPONENTS, OF_QUEUES, PublishedMetric, assert_published, published,
};

use super::*;

/// Upstream's STABLE metrics of the controller manager, and those of its controllers.
const PUBLISHED: &[PublishedMetric] = &[
    published("cronjob_controller_job_creation_skew_duration_seconds", "histogram", &[]),
    published("job_controller_job_pods_finished_total", "counter", &["completion_mode", "result"]),
    published(
        "job_controller_job_sync_duration_seconds",
        "histogram",
        &["action", "completion_mode", "result"],
    ),
    published(
        "job_controller_job_syncs_total",
        "counter",
        &["action", "completion_mode", "result"],
    ),
    published(
        "job_controller_jobs_finished_total",
        "counter",
        &["completion_mode", "reason", "result"],
    ),
    published("node_collector_evictions_total", "counter", &["zone"]),
    published("running_managed_controllers", "gauge", &["manager", "name"]),
    published("leader_election_master_status", "gauge", &["name"]),
];

#[tokio::test]
async fn measures_jobs_queues_and_leadership() {
    let metrics = telemetry::metrics::Metrics::of_component("v1.36.2");
    let config = Config { metrics: metrics.clone(), leader_election: true, ..Config::default() };
    let names = ["job-controller", "cronjob-controller", "node-lifecycle-controller"];
    let cluster = Cluster::start(&names, config);
    let api = &cluster.api;
    let node = json!({"metadata": {"name": "n", "labels": {
        "topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": "z"}}});
    api.create(&Resource::NODES, node).await;
    let spec = json!({"selector": {"matchLabels": {"job-name": "j"}}, "template": {
        "metadata": {"labels": {"job-name": "j"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "one"}]}}});
    let job = json!({"metadata": {"name": "j", "namespace": "default"}, "spec": spec});
    api.create(&Resource::JOBS, job).await;
    // A start was missed since then, and it is late by months.
    let cron = json!({"metadata": {"name": "c", "namespace": "default"},
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}},
        "status": {"lastScheduleTime": "2020-01-01T00:00:00Z"}});
    api.create(&Resource::CRON_JOBS, cron).await;
    let text = metrics.clone();
    let ended = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        loop {
            for pod in api.list(&Resource::PODS, "default") {
                let name = pod["metadata"]["name"].as_str().unwrap();
                let at = PatchTarget { namespace: "default", name, subresource: "status" };
                api.merge(&Resource::PODS, at, json!({"status": {"phase": "Succeeded"}})).await;
            }
            ticks.tick().await;
        }
    };
    let finished = "job_controller_jobs_finished_total{completion_mode=\"NonIndexed\",\
                    reason=\"CompletionsReached\",result=\"succeeded\"}";
    let counted = api.until("the Job is counted, and the zone is known", |_| {
        let text = text.text();
        text.contains(finished)
            && text.contains("skew_duration_seconds_count 1\n")
            && text.contains("node_collector_evictions_total{zone=")
    });
    tokio::select! {
        () = ended => {}
        () = counted => {}
    }
    let text = metrics.text();
    let tables = [PUBLISHED, OF_COMPONENTS, OF_CLIENTS, OF_QUEUES];
    assert_published(&text, tables.into_iter().flatten());
    for line in [
        "leader_election_master_status{name=\"kube-controller-manager\"} 1\n",
        "running_managed_controllers{manager=\"kube-controller-manager\",name=\"job-controller\"} 1\n",
        "node_collector_evictions_total{zone=\"r:\0:z\"} 0\n",
        "job_controller_job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\"}",
        "workqueue_adds_total{name=\"cronjob\"}",
        "workqueue_depth{name=\"job\"} ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // Every request is to the one server, and by a method of HTTP.
    for line in text.lines().filter(|line| line.starts_with("rest_client_requests_total{")) {
        assert!(line.contains("host=\"localhost\""), "{line}");
    }
    cluster.stop().await;
}

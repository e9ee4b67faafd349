use super::*;

fn job(extra: Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"job-name": "j"}}, "backoffLimit": 1,
        "template": {"metadata": {"labels": {"job-name": "j"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "one"}]}}});
    extra.as_object().unwrap().iter().for_each(|(k, v)| spec[k] = v.clone());
    json!({"metadata": {"name": "j", "namespace": "default"}, "spec": spec})
}

/// Ends running Pods of the Job.
async fn end_pods(api: FakeApi, phase: &'static str) {
    loop {
        for pod in api.list(&Resource::PODS, "default") {
            if pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
            {
                let name = pod["metadata"]["name"].as_str().unwrap();
                let at = Patched { namespace: "default", name, subresource: "status" };
                let patch = json!({"status": {"phase": phase, "conditions": null, "containerStatuses": [
                    {"name": "c", "state": {"terminated": {"finishedAt": "2026-01-01T00:00:00Z"}}}]}});
                let _ = api
                    .client("kubelet")
                    .patch::<Value>(&Resource::PODS, at, client::PatchKind::Merge, &patch)
                    .await;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn status(api: &FakeApi) -> Value {
    api.get(&Resource::JOBS, "default", "j").unwrap_or_default()["status"].clone()
}

fn has(api: &FakeApi, kind: &str) -> bool {
    status(api)["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|c| c["type"] == kind && c["status"] == "True")
}

fn held(api: &FakeApi) -> usize {
    let pods = api.list(&Resource::PODS, "default");
    pods.iter()
        .filter(|p| p["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty()))
        .count()
}

#[tokio::test]
async fn a_job_runs_to_completion_and_counts_every_pod_once() {
    let cluster = Cluster::start(&["job-controller"], Config::default());
    let api = &cluster.api;
    cluster.tasks.spawn_until_shutdown("ends", end_pods(api.clone(), "Succeeded"));
    api.create(&Resource::JOBS, job(json!({"completions": 7, "parallelism": 3}))).await;
    api.until("it is complete", |api| {
        let running = api
            .list(&Resource::PODS, "default")
            .iter()
            .filter(|p| p["status"]["phase"] != "Succeeded")
            .count();
        assert!(running <= 3);
        has(api, "Complete") && status(api)["succeeded"] == 7
    })
    .await;
    api.until("no Pod is held", |api| held(api) == 0).await;
    assert_eq!(api.list(&Resource::PODS, "default").len(), 7);
    assert!(status(api)["active"].is_null() && !status(api)["completionTime"].is_null());
    cluster.stop().await;
}

#[tokio::test]
async fn an_indexed_job_runs_every_index() {
    let cluster = Cluster::start(&["job-controller"], Config::default());
    let api = &cluster.api;
    cluster.tasks.spawn_until_shutdown("ends", end_pods(api.clone(), "Succeeded"));
    api.create(
        &Resource::JOBS,
        job(json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed"})),
    )
    .await;
    api.until("all indexes are done", |api| {
        has(api, "Complete") && status(api)["completedIndexes"] == "0-3"
    })
    .await;
    api.until("they are counted", |api| status(api)["succeeded"] == 4 && held(api) == 0).await;
    let pods = api.list(&Resource::PODS, "default");
    assert_eq!(pods.len(), 4);
    assert!(pods.iter().any(|p| p["spec"]["hostname"] == "j-3"
        && p["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"));
    cluster.stop().await;
}

#[tokio::test]
async fn a_job_that_fails_too_often_gives_up() {
    let cluster = Cluster::start(&["job-controller"], Config::default());
    let api = &cluster.api;
    cluster.tasks.spawn_until_shutdown("ends", end_pods(api.clone(), "Failed"));
    api.create(&Resource::JOBS, job(json!({"completions": 1, "parallelism": 1}))).await;
    api.until("it has failed", |api| has(api, "Failed") && status(api)["failed"] == 2).await;
    let conditions = status(api)["conditions"].clone();
    assert!(conditions.as_array().unwrap().iter().any(|c| c["reason"] == "BackoffLimitExceeded"));
    api.until("no Pod is held", |api| held(api) == 0).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_suspended_job_runs_when_resumed() {
    let cluster =
        Cluster::start(&["job-controller", "ttl-after-finished-controller"], Config::default());
    let api = &cluster.api;
    let spec =
        json!({"completions": 1, "parallelism": 1, "suspend": true, "ttlSecondsAfterFinished": 0});
    api.create(&Resource::JOBS, job(spec)).await;
    api.until("it says so", |api| has(api, "Suspended")).await;
    assert_eq!(api.list(&Resource::PODS, "default").len(), 0);
    let at = Patched { namespace: "default", name: "j", subresource: "" };
    api.merge(&Resource::JOBS, at, json!({"spec": {"suspend": false}})).await;
    api.until("it runs", |api| status(api)["ready"] == 1).await;
    cluster.tasks.spawn_until_shutdown("ends", end_pods(api.clone(), "Succeeded"));
    api.until("it is removed when its time is up", |api| {
        let job = api.get(&Resource::JOBS, "default", "j");
        // Foreground deletion: the collector, which does not run here, would do the rest.
        job.is_none_or(|job| !job["metadata"]["deletionTimestamp"].is_null())
    })
    .await;
    cluster.stop().await;
}

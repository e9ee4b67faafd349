use api_meta::Tree as _;

use super::*;

fn job(extra: Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"job-name": "j"}}, "backoffLimit": 1,
        "template": {"metadata": {"labels": {"job-name": "j"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "one"}]}}});
    extra.as_object().unwrap().iter().for_each(|(k, v)| spec[k] = v.clone());
    json!({"metadata": {"name": "j", "namespace": "default"}, "spec": spec})
}

/// Ends the running Pods of the Job.
async fn end_pods(api: FakeApi, phase: &'static str) {
    end_some(api, move |_| Some((phase, i32::from(phase == "Failed")))).await;
}

/// Ends the running Pods for which `how` returns a phase and an exit code; its argument is the Pod's index.
async fn end_some(api: FakeApi, how: impl Fn(&str) -> Option<(&'static str, i32)>) {
    loop {
        for pod in api.list(&Resource::PODS, "default") {
            if pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
            {
                let name = pod["metadata"]["name"].as_str().unwrap();
                let index = &pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"];
                let Some((phase, code)) = how(index.as_str().unwrap_or_default()) else { continue };
                let at = PatchTarget { namespace: "default", name, subresource: "status" };
                let patch = json!({"status": {"phase": phase, "conditions": null, "containerStatuses": [
                    {"name": "c", "state": {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"}}}]}});
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

fn pods_with_finalizer(api: &FakeApi) -> usize {
    let pods = api.list(&Resource::PODS, "default");
    pods.iter()
        .filter(|p| p["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty()))
        .count()
}

#[tokio::test]
async fn job_completes_and_counts_every_pod_once() {
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
    api.until("no Pod is held", |api| pods_with_finalizer(api) == 0).await;
    assert_eq!(api.list(&Resource::PODS, "default").len(), 7);
    assert!(status(api)["active"].is_null() && !status(api)["completionTime"].is_null());
    cluster.stop().await;
}

#[tokio::test]
async fn indexed_job_runs_every_index() {
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
    api.until("they are counted", |api| {
        status(api)["succeeded"] == 4 && pods_with_finalizer(api) == 0
    })
    .await;
    let pods = api.list(&Resource::PODS, "default");
    assert_eq!(pods.len(), 4);
    assert!(pods.iter().any(|p| p["spec"]["hostname"] == "j-3"
        && p["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"));
    cluster.stop().await;
}

#[tokio::test]
async fn job_fails_at_backoff_limit() {
    let cluster = Cluster::start(&["job-controller"], Config::default());
    let api = &cluster.api;
    cluster.tasks.spawn_until_shutdown("ends", end_pods(api.clone(), "Failed"));
    api.create(&Resource::JOBS, job(json!({"completions": 1, "parallelism": 1}))).await;
    api.until("it has failed", |api| has(api, "Failed") && status(api)["failed"] == 2).await;
    let conditions = status(api)["conditions"].clone();
    assert!(conditions.as_array().unwrap().iter().any(|c| c["reason"] == "BackoffLimitExceeded"));
    api.until("no Pod is held", |api| pods_with_finalizer(api) == 0).await;
    cluster.stop().await;
}

#[tokio::test]
async fn suspended_job_runs_after_resume() {
    let cluster =
        Cluster::start(&["job-controller", "ttl-after-finished-controller"], Config::default());
    let api = &cluster.api;
    let spec =
        json!({"completions": 1, "parallelism": 1, "suspend": true, "ttlSecondsAfterFinished": 0});
    api.create(&Resource::JOBS, job(spec)).await;
    api.until("the condition is set", |api| has(api, "Suspended")).await;
    assert_eq!(api.list(&Resource::PODS, "default").len(), 0);
    let at = PatchTarget { namespace: "default", name: "j", subresource: "" };
    api.merge(&Resource::JOBS, at, json!({"spec": {"suspend": false}})).await;
    api.until("it runs", |api| status(api)["ready"] == 1).await;
    cluster.tasks.spawn_until_shutdown("ends", end_pods(api.clone(), "Succeeded"));
    api.until("it is removed when its time is up", |api| {
        let job = api.get(&Resource::JOBS, "default", "j");
        // Foreground deletion: the garbage collector, which does not run here, would complete it.
        job.is_none_or(|job| !job["metadata"]["deletionTimestamp"].is_null())
    })
    .await;
    cluster.stop().await;
}

/// Returns the reason and message of a condition.
fn condition_text(api: &FakeApi, kind: &str) -> (String, String) {
    let conditions = status(api)["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|c| c["type"] == kind).unwrap_or_default();
    (found.text("reason").to_owned(), found.text("message").to_owned())
}

#[tokio::test]
async fn index_fails_alone_at_its_backoff_limit() {
    let cluster = Cluster::start(&["job-controller"], Config::default());
    let api = &cluster.api;
    let ends = |index: &str| Some(if index == "1" { ("Failed", 1) } else { ("Succeeded", 0) });
    cluster.tasks.spawn_until_shutdown("ends", end_some(api.clone(), ends));
    let spec = json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed",
        "backoffLimit": 2_147_483_647, "backoffLimitPerIndex": 2});
    api.create(&Resource::JOBS, job(spec)).await;
    api.until("it has failed", |api| has(api, "Failed") && pods_with_finalizer(api) == 0).await;
    let reason = ("FailedIndexes".to_owned(), "Job has failed indexes".to_owned());
    assert_eq!(condition_text(api, "Failed"), reason);
    api.until("all are counted", |api| status(api)["failed"] == 3).await;
    let status = status(api);
    assert_eq!(
        (&status["completedIndexes"], &status["failedIndexes"]),
        (&json!("0,2,3"), &json!("1"))
    );
    let mut counts: Vec<_> = api
        .list(&Resource::PODS, "default")
        .iter()
        .filter(|pod| pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "1")
        .map(|pod| {
            pod["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"].clone()
        })
        .collect();
    counts.sort_by_key(ToString::to_string);
    assert_eq!(counts, ["0", "1", "2"]);
    cluster.stop().await;
}

#[tokio::test]
async fn job_fails_with_too_many_failed_indexes() {
    let cluster = Cluster::start(&["job-controller"], Config::default());
    let api = &cluster.api;
    cluster.tasks.spawn_until_shutdown("ends", end_pods(api.clone(), "Failed"));
    let spec = json!({"completions": 9, "parallelism": 1, "completionMode": "Indexed",
        "backoffLimit": 2_147_483_647, "backoffLimitPerIndex": 0, "maxFailedIndexes": 1});
    api.create(&Resource::JOBS, job(spec)).await;
    api.until("it has failed", |api| has(api, "Failed")).await;
    assert_eq!(condition_text(api, "Failed").0, "MaxFailedIndexesExceeded");
    assert_eq!(status(api)["failedIndexes"], "0,1");
    cluster.stop().await;
}

#[tokio::test]
async fn success_policy_completes_job_early() {
    let cluster = Cluster::start(&["job-controller"], Config::default());
    let api = &cluster.api;
    let ends = |index: &str| (index == "2").then_some(("Succeeded", 0));
    cluster.tasks.spawn_until_shutdown("ends", end_some(api.clone(), ends));
    let spec = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0"}, {"succeededCount": 1}]}});
    api.create(&Resource::JOBS, job(spec)).await;
    api.until("its criteria are met", |api| has(api, "SuccessCriteriaMet")).await;
    let met = ("SuccessPolicy".to_owned(), "Matched rules at index 1".to_owned());
    assert_eq!(condition_text(api, "SuccessCriteriaMet"), met);
    api.until("the others are ended", |api| {
        let pods = api.list(&Resource::PODS, "default");
        pods.iter()
            .filter(|pod| pod["status"]["phase"] == "Running")
            .all(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn applies_pod_failure_policy() {
    let cluster = Cluster::start(&["job-controller"], Config::default());
    let api = &cluster.api;
    let count = std::sync::atomic::AtomicI32::new(0);
    // The first two failures do not count, the third fails the Job.
    let ends = move |_: &str| {
        let code =
            if count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2 { 7 } else { 42 };
        Some(("Failed", code))
    };
    cluster.tasks.spawn_until_shutdown("ends", end_some(api.clone(), ends));
    let rule = |action: &str, code: i32| json!({"action": action, "onExitCodes": {"operator": "In", "values": [code]}});
    let spec = json!({"completions": 1, "parallelism": 1, "backoffLimit": 0, "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": [rule("Ignore", 7), rule("FailJob", 42)]}});
    api.create(&Resource::JOBS, job(spec)).await;
    api.until("it has failed", |api| has(api, "Failed") && pods_with_finalizer(api) == 0).await;
    let (reason, message) = condition_text(api, "Failed");
    assert_eq!(reason, "PodFailurePolicy");
    assert!(
        message.ends_with("failed with exit code 42 matching FailJob rule at index 1"),
        "{message}"
    );
    assert_eq!(
        (status(api)["failed"].as_i64(), api.list(&Resource::PODS, "default").len()),
        (Some(1), 3)
    );
    cluster.stop().await;
}

#[tokio::test]
async fn cron_job_reports_active_job_that_was_deleted() {
    let cluster = Cluster::start(&["cronjob-controller"], Config::default());
    let api = &cluster.api;
    let cron = json!({"metadata": {"name": "c", "namespace": "default"},
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job(json!({}))["spec"]}},
        "status": {"lastScheduleTime": "2020-01-01T00:00:00Z"}});
    api.create(&Resource::CRON_JOBS, cron).await;
    let active = |api: &FakeApi| {
        let cron = api.get(&Resource::CRON_JOBS, "default", "c").unwrap_or_default();
        cron.items("status.active").first().map(|job| job.text("name").to_owned())
    };
    api.until("the Job is active", |api| active(api).is_some()).await;
    let name = active(api).unwrap();
    let client = api.client("test");
    let options = client::DeleteOptions::default();
    client.delete(&Resource::JOBS, "default", &name, &options).await.unwrap();
    api.until("the Job is not active", |api| active(api).is_none()).await;
    let message = format!("Active job went missing: {name}");
    api.until("the Event", |api| {
        let events = api.list(&Resource::EVENTS, "default");
        events
            .iter()
            .any(|event| event["reason"] == "MissingJob" && event.to_string().contains(&message))
    })
    .await;
    cluster.stop().await;
}

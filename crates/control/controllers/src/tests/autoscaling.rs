use std::time::Duration;

use testkit::ServedResource;

use super::*;
use crate::config::Autoscaling;

const AUTOSCALERS: Resource = Resource::HORIZONTAL_POD_AUTOSCALERS;
const METRICS: Resource =
    Resource::constant("metrics.k8s.io", "v1beta1", "pods", "PodMetrics", true);
/// A kind unknown to the controllers; the fake API serves an object as its own scale.
const WIDGETS: Resource = Resource::constant("example.com", "v1", "widgets", "Widget", true);

async fn cluster(pods: usize) -> Cluster {
    let autoscaling = Autoscaling { period: Duration::from_millis(20), ..Autoscaling::default() };
    let config = Config { autoscaling, ..Config::default() };
    let cluster = Cluster::start(&["horizontal-pod-autoscaler-controller"], config);
    let api = &cluster.api;
    for resource in [&METRICS, &WIDGETS] {
        let text = |cow: &std::borrow::Cow<'static, str>| &*cow.to_string().leak();
        api.serve(ServedResource {
            group: text(&resource.group),
            version: text(&resource.version),
            plural: text(&resource.plural),
            kind: text(&resource.kind),
            namespaced: true,
        });
    }
    let widget =
        json!({"metadata": {"name": "w", "namespace": "default"}, "spec": {"replicas": pods}});
    api.create(&WIDGETS, widget).await;
    let status = json!({"status": {"replicas": pods, "selector": "app=w"}});
    let at = PatchTarget { namespace: "default", name: "w", subresource: "status" };
    api.merge(&WIDGETS, at, status).await;
    for number in 0..pods {
        let name = format!("w{number}");
        let pod = json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": "w"}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]}});
        api.create(&Resource::PODS, pod).await;
        // Long after the time in which a new Pod's CPU usage is ignored.
        let status = json!({"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}]}});
        let at = PatchTarget { namespace: "default", name: &name, subresource: "status" };
        api.merge(&Resource::PODS, at, status).await;
    }
    cluster
}

async fn measure(api: &FakeApi, pods: usize, cpu: &str) {
    for number in 0..pods {
        let metrics = json!({"metadata": {"name": format!("w{number}"), "namespace": "default", "labels": {"app": "w"}},
            "timestamp": "2026-06-01T00:00:00Z", "window": "15.04s", "containers": [{"name": "c", "usage": {"cpu": cpu}}]});
        api.create(&METRICS, metrics).await;
    }
}

fn autoscaler(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
        "scaleTargetRef": {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w"},
        "minReplicas": 1, "maxReplicas": 10, "metrics": [{"type": "Resource", "resource":
            {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}})
}

fn condition(api: &FakeApi, name: &str, kind: &str) -> (String, String) {
    let autoscaler = api.get(&AUTOSCALERS, "default", name).unwrap_or_default();
    let conditions = autoscaler["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|c| c["type"] == kind).unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

#[tokio::test]
async fn scales_up_target_under_load() {
    let cluster = cluster(2).await;
    let api = &cluster.api;
    measure(api, 2, "100m").await;
    api.create(&AUTOSCALERS, autoscaler("a")).await;
    // Two Pods at full usage become four at half usage.
    api.until("the target has grown", |api| {
        api.get(&WIDGETS, "default", "w").unwrap_or_default()["spec"]["replicas"] == 4
    })
    .await;
    api.until("the Event is recorded", |api| {
        events(api, "SuccessfulRescale").iter().any(|m| {
            m == "New size: 4; reason: cpu resource utilization (percentage of request) above target"
        })
    })
    .await;
    let seen = api.get(&AUTOSCALERS, "default", "a").unwrap_or_default()["status"].clone();
    assert!(seen["lastScaleTime"].is_string(), "{seen}");
    let current = &seen["currentMetrics"][0]["resource"]["current"];
    assert_eq!(*current, json!({"averageValue": "100m", "averageUtilization": 100}));
    assert_eq!(condition(api, "a", "ScalingActive"), ("True".into(), "ValidMetricFound".into()));
    cluster.stop().await;
}

#[tokio::test]
async fn reports_failures_in_conditions() {
    let cluster = cluster(2).await;
    let api = &cluster.api;
    api.create(&AUTOSCALERS, autoscaler("a")).await;
    api.until("metrics are missed", |api| {
        condition(api, "a", "ScalingActive") == ("False".into(), "FailedGetResourceMetric".into())
            && !events(api, "FailedComputeMetricsReplicas").is_empty()
    })
    .await;
    let mut lost = autoscaler("lost");
    lost["spec"]["scaleTargetRef"]["name"] = json!("nobody");
    api.create(&AUTOSCALERS, lost).await;
    api.until("a target is missed", |api| {
        condition(api, "lost", "AbleToScale") == ("False".into(), "FailedGetScale".into())
    })
    .await;
    api.create(&AUTOSCALERS, autoscaler("b")).await;
    api.until("two claim the same Pods", |api| {
        condition(api, "b", "ScalingActive") == ("False".into(), "AmbiguousSelector".into())
    })
    .await;
    assert_eq!(api.get(&WIDGETS, "default", "w").unwrap_or_default()["spec"]["replicas"], 2);
    cluster.stop().await;
}

#[tokio::test]
async fn corrects_sizes_out_of_bounds_but_not_zero() {
    let cluster = cluster(2).await;
    let api = &cluster.api;
    let mut wanted = autoscaler("a");
    wanted["spec"]["minReplicas"] = json!(3);
    api.create(&AUTOSCALERS, wanted).await;
    api.until("the target has the least", |api| {
        api.get(&WIDGETS, "default", "w").unwrap_or_default()["spec"]["replicas"] == 3
    })
    .await;
    let at = PatchTarget { namespace: "default", name: "w", subresource: "" };
    api.merge(&WIDGETS, at, json!({"spec": {"replicas": 0}})).await;
    api.until("it is off", |api| {
        condition(api, "a", "ScalingActive") == ("False".into(), "ScalingDisabled".into())
    })
    .await;
    assert_eq!(api.get(&WIDGETS, "default", "w").unwrap_or_default()["spec"]["replicas"], 0);
    cluster.stop().await;
}

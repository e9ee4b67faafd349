use super::*;

const APPS: &[&str] = &["deployment-controller", "replicaset-controller"];

fn deployment(replicas: i64, image: &str, strategy: Value) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "strategy": strategy,
            "revisionHistoryLimit": 1, "progressDeadlineSeconds": 600,
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}},
    })
}

fn rolling() -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}})
}

const AT: PatchTarget<'static> = PatchTarget { namespace: "default", name: "web", subresource: "" };

fn status(api: &FakeApi) -> Value {
    api.get(&Resource::DEPLOYMENTS, "default", "web").unwrap_or_default()["status"].clone()
}

fn rolled_out(api: &FakeApi, replicas: i64) -> bool {
    let object = api.get(&Resource::DEPLOYMENTS, "default", "web").unwrap_or_default();
    let status = &object["status"];
    status["observedGeneration"] == object["metadata"]["generation"]
        && ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"]
            .iter()
            .all(|f| status[*f].as_i64().unwrap_or(0) == replicas)
        && condition(status, "Progressing", "reason") == "NewReplicaSetAvailable"
}

fn condition(status: &Value, kind: &str, field: &str) -> String {
    let all = status["conditions"].as_array().into_iter().flatten();
    let found = all.filter(|c| c["type"] == kind).find_map(|c| c[field].as_str());
    found.unwrap_or_default().to_owned()
}

fn image(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default()
}

fn set_image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
}

#[tokio::test]
async fn deployment_rolls_out_and_back() {
    let cluster = Cluster::start(APPS, Config::default());
    let api = &cluster.api;
    api.create(&Resource::DEPLOYMENTS, deployment(4, "one", rolling())).await;
    api.until("the first rollout is complete", |api| rolled_out(api, 4)).await;
    let first = api.list(&Resource::REPLICA_SETS, "default")[0]["metadata"]["name"].clone();
    let said = format!("Scaled up replica set {} from 0 to 4", first.as_str().unwrap());
    api.until("the Event is recorded", |api| events(api, "ScalingReplicaSet") == [said.clone()])
        .await;
    assert_eq!(cluster.pods().len(), 4);

    api.merge(&Resource::DEPLOYMENTS, AT, set_image("two")).await;
    api.until("never too few or too many Pods on the way", |api| {
        let pods = api.list(&Resource::PODS, "default");
        assert!(pods.len() <= 5, "too many: {}", pods.len());
        let ready = pods.iter().filter(|p| p["status"]["phase"] == "Running").count();
        assert!(ready >= 3, "too few: {ready}");
        rolled_out(api, 4) && pods.iter().all(|p| image(p) == "two")
    })
    .await;
    let revision = |api: &FakeApi| {
        let object = api.get(&Resource::DEPLOYMENTS, "default", "web").unwrap();
        object["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
            .as_str()
            .unwrap_or("")
            .to_owned()
    };
    api.until("the revision is two", |api| revision(api) == "2").await;

    // `kubectl rollout undo` restores the former template.
    api.merge(&Resource::DEPLOYMENTS, AT, set_image("one")).await;
    api.until("it is back", |api| rolled_out(api, 4) && revision(api) == "3").await;
    let sets = api.list(&Resource::REPLICA_SETS, "default");
    assert_eq!(sets.len(), 2, "the former set is used again");
    let again = sets.iter().find(|set| set["metadata"]["name"] == first).unwrap();
    assert_eq!(again["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"], "1");

    api.merge(&Resource::DEPLOYMENTS, AT, set_image("three")).await;
    api.until("only so much history is kept", |api| {
        rolled_out(api, 4) && api.list(&Resource::REPLICA_SETS, "default").len() == 2
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn scales_to_exact_replica_count() {
    let cluster = Cluster::start(APPS, Config::default());
    let api = &cluster.api;
    api.create(&Resource::DEPLOYMENTS, deployment(2, "one", rolling())).await;
    api.until("two run", |api| rolled_out(api, 2)).await;
    for replicas in [20, 3, 0, 5] {
        api.merge(&Resource::DEPLOYMENTS, AT, json!({"spec": {"replicas": replicas}})).await;
        api.until("the number is right", |api| rolled_out(api, replicas)).await;
        assert_eq!(cluster.pods().len(), usize::try_from(replicas).unwrap());
    }
    let made = api.writes().iter().filter(|w| *w == "POST /api/v1/namespaces/default/pods").count();
    assert_eq!(made, 20 + 5, "no Pod was made twice");
    cluster.stop().await;
}

#[tokio::test]
async fn recreate_never_mixes_templates() {
    let cluster = Cluster::start(APPS, Config::default());
    let api = &cluster.api;
    api.create(&Resource::DEPLOYMENTS, deployment(3, "one", json!({"type": "Recreate"}))).await;
    api.until("it runs", |api| rolled_out(api, 3)).await;
    api.merge(&Resource::DEPLOYMENTS, AT, set_image("two")).await;
    api.until("the other template runs, alone", |api| {
        let pods = api.list(&Resource::PODS, "default");
        let ones = pods.iter().filter(|p| image(p) == "one").count();
        assert!(ones == 0 || ones == pods.len());
        rolled_out(api, 3) && ones == 0
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn paused_deployment_scales_without_rollout() {
    let cluster = Cluster::start(APPS, Config::default());
    let api = &cluster.api;
    api.create(&Resource::DEPLOYMENTS, deployment(2, "one", rolling())).await;
    api.until("two run", |api| rolled_out(api, 2)).await;
    api.merge(&Resource::DEPLOYMENTS, AT, json!({"spec": {"paused": true}})).await;
    api.until("the condition is set", |api| {
        condition(&status(api), "Progressing", "reason") == "DeploymentPaused"
    })
    .await;
    let mut patch = set_image("two");
    patch["spec"]["replicas"] = json!(4);
    api.merge(&Resource::DEPLOYMENTS, AT, patch).await;
    api.until("it is scaled", |api| status(api)["availableReplicas"] == 4).await;
    assert!(cluster.pods().iter().all(|p| image(p) == "one"));
    api.merge(&Resource::DEPLOYMENTS, AT, json!({"spec": {"paused": false}})).await;
    api.until("it rolls", |api| rolled_out(api, 4)).await;
    assert!(cluster.pods().iter().all(|p| image(p) == "two"));
    cluster.stop().await;
}

#[tokio::test]
async fn broken_template_stops_rollout_and_can_be_undone() {
    let cluster = Cluster::start(APPS, Config::default());
    let api = &cluster.api;
    api.create(&Resource::DEPLOYMENTS, deployment(4, "one", rolling())).await;
    api.until("it runs", |api| rolled_out(api, 4)).await;
    api.merge(&Resource::DEPLOYMENTS, AT, set_image("broken")).await;
    api.until("it got as far as it may", |api| {
        let pods = api.list(&Resource::PODS, "default");
        let good = pods.iter().filter(|p| image(p) == "one").count();
        assert!(good >= 3);
        good == 3 && pods.len() == 5
    })
    .await;
    assert_eq!(condition(&status(api), "Available", "status"), "True");
    api.merge(&Resource::DEPLOYMENTS, AT, set_image("one")).await;
    api.until("it is whole again", |api| rolled_out(api, 4)).await;
    cluster.stop().await;
}

#[tokio::test]
async fn adopts_orphans_and_releases_non_matching() {
    let cluster = Cluster::start(&["replicaset-controller"], Config::default());
    let api = &cluster.api;
    let orphan = json!({"metadata": {"name": "orphan", "namespace": "default", "labels": {"app": "web"}}, "spec": {}});
    api.create(&Resource::PODS, orphan).await;
    let set = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"replicas": 2,
        "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}}, "spec": {}}}});
    api.create(&Resource::REPLICA_SETS, set).await;
    let owner = |pod: &Value| pod["metadata"]["ownerReferences"][0]["name"] == "web";
    api.until("one is adopted and one made", |api| {
        let pods = api.list(&Resource::PODS, "default");
        pods.len() == 2 && pods.iter().all(owner)
    })
    .await;
    let at = PatchTarget { namespace: "default", name: "orphan", subresource: "" };
    api.merge(&Resource::PODS, at, json!({"metadata": {"labels": {"app": "other"}}})).await;
    api.until("the stranger is let go and replaced", |api| {
        let pods = api.list(&Resource::PODS, "default");
        let stranger = pods.iter().find(|p| p["metadata"]["name"] == "orphan");
        pods.len() == 3 && stranger.is_some_and(|p| !owner(p))
    })
    .await;
    cluster.stop().await;
}

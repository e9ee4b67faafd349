use super::*;

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn node(name: &str, taints: Value) -> Value {
    json!({"metadata": {"name": name, "labels": {}}, "spec": {"taints": taints}})
}

fn image(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn runs_daemon_on_every_eligible_node() {
    let cluster = Cluster::start(&["daemonset-controller"], Config::default());
    let api = &cluster.api;
    api.create(&Resource::NODES, node("a", json!([]))).await;
    api.create(
        &Resource::NODES,
        node(
            "cordoned",
            json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]),
        ),
    )
    .await;
    api.create(
        &Resource::NODES,
        node("reserved", json!([{"key": "for", "value": "others", "effect": "NoSchedule"}])),
    )
    .await;
    let set = json!({"metadata": {"name": "d", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"app": "d"}},
        "template": template("one"), "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}}});
    api.create(&Resource::DAEMON_SETS, set).await;
    let status = |api: &FakeApi, field: &str| {
        api.get(&Resource::DAEMON_SETS, "default", "d").unwrap()["status"][field].as_i64()
    };
    api.until("it runs on two", |api| status(api, "numberAvailable") == Some(2)).await;
    assert_eq!(
        (status(&cluster.api, "desiredNumberScheduled"), cluster.pods().len()),
        (Some(2), 2)
    );
    api.create(&Resource::NODES, node("late", json!([]))).await;
    api.until("and on a third that comes late", |api| status(api, "numberAvailable") == Some(3))
        .await;

    let at = PatchTarget { namespace: "default", name: "d", subresource: "" };
    api.merge(&Resource::DAEMON_SETS, at, json!({"spec": {"template": template("two")}})).await;
    api.until("it is updated, one node at a time", |api| {
        let running = api
            .list(&Resource::PODS, "default")
            .iter()
            .filter(|p| p["status"]["phase"] == "Running")
            .count();
        assert!(running >= 2, "{running} run");
        status(api, "observedGeneration") == Some(2)
            && status(api, "updatedNumberScheduled") == Some(3)
            && status(api, "numberAvailable") == Some(3)
    })
    .await;
    assert!(cluster.pods().iter().all(|p| image(p) == "two"));
    assert_eq!(api.list(&Resource::CONTROLLER_REVISIONS, "default").len(), 2);
    let at = PatchTarget { namespace: "", name: "late", subresource: "" };
    let patch = json!({"spec": {"taints": [{"key": "gone", "effect": "NoExecute"}]}});
    api.merge(&Resource::NODES, at, patch).await;
    api.until("it leaves a node that drives it away", |api| {
        status(api, "desiredNumberScheduled") == Some(2)
            && api.list(&Resource::PODS, "default").len() == 2
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn stateful_set_keeps_names_and_volumes() {
    let cluster = Cluster::start(&["statefulset-controller"], Config::default());
    let api = &cluster.api;
    let set = json!({"metadata": {"name": "db", "namespace": "default"}, "spec": {"replicas": 3, "serviceName": "db",
        "selector": {"matchLabels": {"app": "d"}}, "template": template("one"),
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}});
    api.create(&Resource::STATEFUL_SETS, set).await;
    let status = |api: &FakeApi| {
        api.get(&Resource::STATEFUL_SETS, "default", "db").unwrap()["status"].clone()
    };
    api.until("three run", |api| status(api)["readyReplicas"] == 3).await;
    let names = |api: &FakeApi| -> Vec<String> {
        let pods = api.list(&Resource::PODS, "default");
        pods.iter().map(|p| p["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(api), ["db-0", "db-1", "db-2"]);
    assert_eq!(api.list(&Resource::PERSISTENT_VOLUME_CLAIMS, "default").len(), 3);
    let at = PatchTarget { namespace: "default", name: "db", subresource: "" };
    api.merge(&Resource::STATEFUL_SETS, at, json!({"spec": {"template": template("two")}})).await;
    api.until("all are updated", |api| {
        let status = status(api);
        status["observedGeneration"] == 2
            && status["updatedReplicas"] == 3
            && status["currentRevision"] == status["updateRevision"]
    })
    .await;
    assert!(cluster.pods().iter().all(|p| image(p) == "two"));
    api.merge(&Resource::STATEFUL_SETS, at, json!({"spec": {"replicas": 1}})).await;
    api.until("one is left", |api| names(api) == ["db-0"]).await;
    assert_eq!(
        api.list(&Resource::PERSISTENT_VOLUME_CLAIMS, "default").len(),
        3,
        "volumes are kept"
    );
    cluster.stop().await;
}

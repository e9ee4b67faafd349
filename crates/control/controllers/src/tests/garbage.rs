use super::*;

const GC: &[&str] = &["garbage-collector-controller"];

fn owned(name: &str, owner: &Value, blocks: bool) -> Value {
    let meta = &owner["metadata"];
    json!({"metadata": {"name": name, "namespace": "default", "ownerReferences": [{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
        "controller": true, "blockOwnerDeletion": blocks}]}})
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}})
}

async fn delete(api: &FakeApi, resource: &Resource, name: &str, policy: &'static str) {
    let options = client::DeleteOptions { propagation_policy: Some(policy), ..Default::default() };
    api.client("user").delete(resource, "default", name, &options).await.unwrap();
}

/// A Deployment with a ReplicaSet and two Pods, and a ConfigMap that only the Deployment owns.
async fn family(api: &FakeApi) {
    let top = api.create(&Resource::DEPLOYMENTS, named("top")).await;
    let middle = api.create(&Resource::REPLICA_SETS, owned("middle", &top, true)).await;
    for pod in ["a", "b"] {
        api.create(&Resource::PODS, owned(pod, &middle, true)).await;
    }
    api.create(&Resource::CONFIG_MAPS, owned("loose", &top, false)).await;
}

/// Serves a custom kind.
fn serve_widgets(api: &FakeApi) -> Resource {
    let [group, version, plural, kind] = ["example.com", "v1", "widgets", "Widget"];
    api.serve(testkit::ServedResource { group, version, plural, kind, namespaced: true });
    Resource::constant(group, version, plural, kind, true)
}

fn left(api: &FakeApi) -> usize {
    let kinds =
        [Resource::DEPLOYMENTS, Resource::REPLICA_SETS, Resource::PODS, Resource::CONFIG_MAPS];
    kinds.iter().map(|kind| api.list(kind, "default").len()).sum()
}

#[tokio::test]
async fn deletes_dependents_in_background() {
    let cluster = Cluster::start(GC, Config::default());
    let api = &cluster.api;
    family(api).await;
    api.create(&Resource::CONFIG_MAPS, named("free")).await;
    delete(api, &Resource::DEPLOYMENTS, "top", "Background").await;
    api.until("only the object without an owner is left", |api| left(api) == 1).await;
    assert!(api.get(&Resource::CONFIG_MAPS, "default", "free").is_some());
    cluster.stop().await;
}

#[tokio::test]
async fn deletes_owners_last_in_foreground() {
    let cluster = Cluster::start(GC, Config::default());
    let api = &cluster.api;
    family(api).await;
    let mut held = api.get(&Resource::PODS, "default", "a").unwrap();
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let _: Value = api.client("user").update(&Resource::PODS, "default", "a", &held).await.unwrap();
    delete(api, &Resource::DEPLOYMENTS, "top", "Foreground").await;
    api.until("all but the held Pod and its owners are gone", |api| left(api) == 3).await;
    for (kind, name) in
        [(Resource::DEPLOYMENTS, "top"), (Resource::REPLICA_SETS, "middle"), (Resource::PODS, "a")]
    {
        let object = api.get(&kind, "default", name).unwrap();
        assert!(!object["metadata"]["deletionTimestamp"].is_null(), "{name} is going");
    }
    let at = PatchTarget { namespace: "default", name: "a", subresource: "" };
    api.merge(&Resource::PODS, at, json!({"metadata": {"finalizers": null}})).await;
    api.until("all are gone", |api| left(api) == 0).await;
    cluster.stop().await;
}

#[tokio::test]
async fn orphans_dependents() {
    let cluster = Cluster::start(GC, Config::default());
    let api = &cluster.api;
    family(api).await;
    delete(api, &Resource::DEPLOYMENTS, "top", "Orphan").await;
    api.until("the deployment is gone", |api| {
        api.get(&Resource::DEPLOYMENTS, "default", "top").is_none()
    })
    .await;
    let middle = api.get(&Resource::REPLICA_SETS, "default", "middle").unwrap();
    assert!(middle["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty));
    assert_eq!(left(api), 4);
    cluster.stop().await;
}

#[tokio::test]
async fn deletes_objects_of_absent_owners_and_later_kinds() {
    let cluster = Cluster::start(GC, Config::default());
    let api = &cluster.api;
    let ghost =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ghost", "uid": "never"}});
    api.create(&Resource::CONFIG_MAPS, owned("haunted", &ghost, true)).await;
    api.until("it is gone", |api| left(api) == 0).await;
    let widget = serve_widgets(api);
    api.create(
        &Resource::CUSTOM_RESOURCE_DEFINITIONS,
        json!({"metadata": {"name": "widgets.example.com"}}),
    )
    .await;
    let owner = api.create(&widget, named("w")).await;
    api.create(&Resource::CONFIG_MAPS, owned("of-widget", &owner, true)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(left(api), 1, "an owner of a kind not known yet is no reason to delete");
    delete(api, &widget, "w", "Background").await;
    api.until("it goes with its widget", |api| left(api) == 0).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unlistable_kind_neither_blocks_nor_loses_dependents() {
    let cluster = Cluster::start(GC, Config::default());
    let api = &cluster.api;
    let widget = serve_widgets(api);
    api.set_broken("widgets", true);
    let owner = api.create(&widget, named("w")).await;
    api.create(&Resource::CONFIG_MAPS, owned("of-widget", &owner, true)).await;
    family(api).await;
    delete(api, &Resource::DEPLOYMENTS, "top", "Background").await;
    until(api, "only what the widget owns is left", |api| left(api) == 1).await;
    // The collector has had many reasons to check the widget since, and it was never deleted.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(api.get(&Resource::CONFIG_MAPS, "default", "of-widget").is_some());
    api.set_broken("widgets", false);
    delete(api, &widget, "w", "Background").await;
    until(api, "it goes with its widget", |api| left(api) == 0).await;
    cluster.stop().await;
}

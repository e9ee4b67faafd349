//! Runs the whole controller against an in-memory API server; the test acts as kubelets and attacher.

use client::PatchTarget;
use testkit::FakeApi;

use super::*;
use crate::{
    Config,
    tests::{Cluster, events, until},
};

const NAME: &str = "kubernetes.io/csi/disks.example.com^vol-1";

async fn scene() -> Cluster {
    scene_with(Config::default()).await
}

async fn scene_with(config: Config) -> Cluster {
    let cluster = Cluster::start(&["persistentvolume-attach-detach-controller"], config);
    let api = &cluster.api;
    for name in ["a", "b"] {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let node = json!({"metadata": {"name": name, "annotations": {MANAGED: "true"}},
            "status": {"conditions": ready}});
        api.create(&Resource::NODES, node).await;
    }
    let claim = json!({"metadata": {"name": "data", "namespace": "default"},
        "spec": {"volumeName": "disk"}, "status": {"phase": "Bound"}});
    let claim = api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, claim).await;
    let volume = json!({"metadata": {"name": "disk"}, "spec": {
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "disks.example.com", "volumeHandle": "vol-1"},
        "claimRef": {"namespace": "default", "name": "data", "uid": claim["metadata"]["uid"]}}});
    api.create(&VOLUMES, volume).await;
    cluster
}

/// Creates the Pod `one` on node `a`, and waits until its volume is attached there.
async fn attach(api: &FakeApi) {
    pod(api, "one", "a").await;
    until(api, "attached to a", |api| attachments(api).len() == 1).await;
}

/// Lets node `a` fail with the volume in use, and moves the Pod to node `b`.
async fn fail(api: &FakeApi) {
    let unwell =
        json!({"volumesInUse": [NAME], "conditions": [{"type": "Ready", "status": "Unknown"}]});
    status(api, &Resource::NODES, "a", unwell).await;
    delete(api, &Resource::PODS, "default", "one").await;
    pod(api, "two", "b").await;
}

async fn pod(api: &FakeApi, name: &str, node: &str) {
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let pod = json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [], "volumes": volumes}});
    api.create(&Resource::PODS, pod).await;
}

async fn delete(api: &FakeApi, resource: &Resource, namespace: &str, name: &str) {
    let deleted =
        api.client("user").delete(resource, namespace, name, &DeleteOptions::default()).await;
    deleted.unwrap();
}

async fn status(api: &FakeApi, resource: &Resource, name: &str, status: Value) {
    let at = PatchTarget { namespace: "", name, subresource: "status" };
    api.merge(resource, at, json!({"status": status})).await;
}

fn attachments(api: &FakeApi) -> Vec<(String, String)> {
    let all = api.list(&ATTACHMENTS, "");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    all.iter().map(|of| (text(&of["metadata"]["name"]), text(&of["spec"]["nodeName"]))).collect()
}

fn on(api: &FakeApi, node: &str) -> bool {
    let node = api.get(&Resource::NODES, "", node).unwrap();
    node["status"]["volumesAttached"][0]["name"] == NAME
}

#[tokio::test(start_paused = true)]
async fn moves_volume_after_node_stops_using_it() {
    let cluster = scene().await;
    let api = &cluster.api;
    attach(api).await;
    let (name, node) = attachments(api).remove(0);
    // The SHA-256 of handle, driver and node.
    assert_eq!(name, "csi-e966068430c35f682a25f05ec2e7cb9019484f2035cc5ec3c93f57f64753cf1c");
    assert_eq!(node, "a");
    assert!(!on(api, "a"), "the attacher has not answered");
    status(api, &ATTACHMENTS, &name, json!({"attached": true})).await;
    until(api, "the Node lists the volume", |api| on(api, "a")).await;
    status(api, &Resource::NODES, "a", json!({"volumesInUse": [NAME]})).await;
    until(api, "the Pod has an Event", |api| !events(api, "SuccessfulAttachVolume").is_empty())
        .await;

    pod(api, "two", "b").await;
    until(api, "refused", |api| !events(api, "FailedAttachVolume").is_empty()).await;
    let words = "Multi-Attach error for volume \"disk\" Volume is already used by pod(s) one";
    assert_eq!(events(api, "FailedAttachVolume"), [words]);
    delete(api, &Resource::PODS, "default", "one").await;
    // A healthy node that uses the volume keeps it without a time limit.
    tokio::time::sleep(2 * plan::FORCE).await;
    assert_eq!(attachments(api), [(name, "a".to_owned())]);
    status(api, &Resource::NODES, "a", json!({"volumesInUse": null})).await;
    until(api, "moved", |api| attachments(api).iter().map(|(_, node)| node).eq(["b"])).await;
    assert!(!on(api, "a"), "the Node was updated first");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn detaches_deleted_volume_after_node_stops_using_it() {
    let cluster = scene().await;
    let api = &cluster.api;
    attach(api).await;
    let (name, _) = attachments(api).remove(0);
    status(api, &ATTACHMENTS, &name, json!({"attached": true})).await;
    // The attachments of others are left alone.
    let foreign = json!({"metadata": {"name": "foreign"}, "spec": {"attacher": "disks.example.com",
        "nodeName": "a", "source": {"persistentVolumeName": "disk"}}});
    api.create(&ATTACHMENTS, foreign).await;
    status(api, &Resource::NODES, "a", json!({"volumesInUse": ["x", NAME]})).await;
    delete(api, &Resource::PODS, "default", "one").await;
    delete(api, &Resource::PERSISTENT_VOLUME_CLAIMS, "default", "data").await;
    delete(api, &VOLUMES, "", "disk").await;
    tokio::time::sleep(2 * plan::FORCE).await;
    assert_eq!(attachments(api).len(), 2, "the healthy node still uses the volume");
    status(api, &Resource::NODES, "a", json!({"volumesInUse": ["x"]})).await;
    until(api, "detached", |api| attachments(api).iter().map(|(name, _)| name).eq(["foreign"]))
        .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn force_detaches_volume_from_unhealthy_node() {
    let cluster = scene().await;
    let api = &cluster.api;
    attach(api).await;
    fail(api).await;
    tokio::time::sleep(plan::FORCE - Duration::from_secs(5)).await;
    assert!(attachments(api).iter().map(|(_, node)| node).eq(["a"]));
    until(api, "moved", |api| attachments(api).iter().map(|(_, node)| node).eq(["b"])).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn skips_volumes_whose_driver_needs_no_attach() {
    let cluster = scene().await;
    let api = &cluster.api;
    let driver =
        json!({"metadata": {"name": "disks.example.com"}, "spec": {"attachRequired": false}});
    api.create(&Resource::CSI_DRIVERS, driver).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    pod(api, "one", "a").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(attachments(api).is_empty());
    delete(api, &Resource::CSI_DRIVERS, "", "disks.example.com").await;
    until(api, "attached", |api| attachments(api).len() == 1).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn moves_volume_at_once_from_node_that_is_out_of_service() {
    // Without the taint, nothing would ever be detached by force.
    let config = Config { disable_force_detach: true, ..Config::default() };
    let cluster = scene_with(config).await;
    let api = &cluster.api;
    attach(api).await;
    fail(api).await;
    tokio::time::sleep(2 * plan::FORCE).await;
    assert!(attachments(api).iter().map(|(_, node)| node).eq(["a"]), "the node may still write");
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]);
    let at = PatchTarget { namespace: "", name: "a", subresource: "" };
    api.merge(&Resource::NODES, at, json!({"spec": {"taints": taint}})).await;
    let start = Instant::now();
    until(api, "moved", |api| attachments(api).iter().map(|(_, node)| node).eq(["b"])).await;
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn keeps_iscsi_disk_from_second_node_until_first_has_logged_out() {
    const DISK: &str = "kubernetes.io/iscsi/192.0.2.1:iqn.2001-04.com.example:disk:1";
    let attached = |api: &FakeApi, node: &str| {
        let node = api.get(&Resource::NODES, "", node).unwrap_or_default();
        node["status"]["volumesAttached"][0]["name"] == DISK
    };
    let cluster = scene().await;
    let api = cluster.api.clone();
    let at = PatchTarget { namespace: "", name: "disk", subresource: "" };
    let target =
        json!({"targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.com.example:disk", "lun": 1});
    api.merge(&VOLUMES, at, json!({"spec": {"csi": null, "iscsi": target}})).await;
    pod(&api, "one", "a").await;
    until(&api, "attached to a", |api| attached(api, "a")).await;
    assert!(attachments(&api).is_empty(), "there is no driver");
    until(&api, "an Event", |api| !events(api, "SuccessfulAttachVolume").is_empty()).await;
    status(&api, &Resource::NODES, "a", json!({"volumesInUse": [DISK]})).await;
    pod(&api, "two", "b").await;
    until(&api, "refused", |api| !events(api, "FailedAttachVolume").is_empty()).await;
    let words = "Multi-Attach error for volume \"disk\" Volume is already used by pod(s) one";
    assert_eq!(events(&api, "FailedAttachVolume"), [words]);
    // A new controller knows the attachment from the Node, and the healthy node keeps the disk without a time limit.
    cluster.stop().await;
    let controllers = ["persistentvolume-attach-detach-controller"];
    let cluster = Cluster::start_on(api.clone(), &controllers, Config::default());
    delete(&api, &Resource::PODS, "default", "one").await;
    tokio::time::sleep(2 * plan::FORCE).await;
    assert!(attached(&api, "a") && !attached(&api, "b"));
    status(&api, &Resource::NODES, "a", json!({"volumesInUse": null})).await;
    until(&api, "moved", |api| attached(api, "b") && !attached(api, "a")).await;
    // A deleted volume leaves nothing behind.
    delete(&api, &VOLUMES, "", "disk").await;
    until(&api, "gone", |api| !attached(api, "b")).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn attaches_disk_of_two_volumes_once_each_and_ignores_unknown_names() {
    let cluster = scene().await;
    let api = &cluster.api;
    let target =
        json!({"targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.com.example:disk", "lun": 1});
    let at = PatchTarget { namespace: "", name: "disk", subresource: "" };
    let many = json!({"csi": null, "iscsi": target, "accessModes": ["ReadWriteMany"]});
    api.merge(&VOLUMES, at, json!({ "spec": many })).await;
    let claim = json!({"metadata": {"name": "other", "namespace": "default"},
        "spec": {"volumeName": "twin"}, "status": {"phase": "Bound"}});
    let claim = api.create(&Resource::PERSISTENT_VOLUME_CLAIMS, claim).await;
    let twin = json!({"metadata": {"name": "twin"}, "spec": {
        "accessModes": ["ReadWriteMany"], "iscsi": target,
        "claimRef": {"namespace": "default", "name": "other", "uid": claim["metadata"]["uid"]}}});
    api.create(&VOLUMES, twin).await;
    // A kubelet claims many disks that do not exist.
    let names = (0..2000).map(|n| json!({"name": format!("kubernetes.io/iscsi/x:{n}:0")}));
    let names: Vec<Value> = names.collect();
    status(api, &Resource::NODES, "a", json!({ "volumesAttached": names })).await;
    let volumes = json!([
        {"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "w", "persistentVolumeClaim": {"claimName": "other"}}]);
    let pod = json!({"metadata": {"name": "one", "namespace": "default"},
        "spec": {"nodeName": "a", "containers": [], "volumes": volumes}});
    api.create(&Resource::PODS, pod).await;
    until(api, "both are attached", |api| events(api, "SuccessfulAttachVolume").len() == 2).await;
    for turn in 0..5 {
        // Each change of the Node reconciles its volumes.
        let used = json!([format!("x{turn}")]);
        status(api, &Resource::NODES, "a", json!({ "volumesInUse": used })).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    let node = api.get(&Resource::NODES, "", "a").unwrap();
    assert_eq!(node["status"]["volumesAttached"].as_array().unwrap().len(), 1);
    let all = api.list(&Resource::EVENTS, "");
    let attached = all.iter().filter(|event| event["reason"] == "SuccessfulAttachVolume");
    let count = |event: &Value| event["count"].as_i64().unwrap_or(1);
    assert_eq!(attached.map(count).sum::<i64>(), 2, "an Event for each volume, not repeated");
    cluster.stop().await;
}

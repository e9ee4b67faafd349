//! A node whose Node object a cloud controller manager completes.

use client::{PatchTarget, Resource};
use kubelet::CloudSettings;
use serde_json::{Value, json};
use testkit::FakeApi;

use crate::node::{Node, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_addresses_and_taint_to_cloud_controller_manager() {
    let mut node = Node::start("cloud").await;
    let api = FakeApi::default();
    let object = || api.get(&Resource::NODES, "", "node").unwrap_or_default();
    let is_ready = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    let mut settings = node.settings();
    settings.cloud = CloudSettings { external: true, provided_ips: Vec::new() };
    node.start_kubelet_with(settings.clone(), Some(api.client("kubelet")));
    eventually("the node is ready", async || is_ready(&object())).await;
    let taint = json!([{"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}]);
    assert_eq!(object()["spec"]["taints"], taint);
    assert!(object()["spec"]["providerID"].is_null());
    assert!(
        object()["status"]["addresses"].as_array().is_none_or(Vec::is_empty),
        "{}",
        object()["status"]
    );

    // With --node-ip, the kubelet helps until the cloud has spoken.
    node.stop_kubelet().await;
    settings.cloud.provided_ips = vec!["127.0.0.1".into()];
    node.start_kubelet_with(settings.clone(), Some(api.client("kubelet")));
    let address = |kind: &str| {
        let addresses = object()["status"]["addresses"].as_array().cloned().unwrap_or_default();
        let found = addresses.iter().find(|address| address["type"] == kind);
        found.map(|address| address["address"].clone())
    };
    eventually("its address is there", async || address("InternalIP") == Some(json!("127.0.0.1")))
        .await;
    let note = "alpha.kubernetes.io/provided-node-ip";
    assert_eq!(object()["metadata"]["annotations"][note], "127.0.0.1");

    // The cloud controller manager initializes the node, and a new kubelet undoes none of it.
    let at = PatchTarget { namespace: "", name: "node", subresource: "" };
    let change = json!({"spec": {"taints": null, "providerID": "cloud://1"}});
    api.merge(&Resource::NODES, at, change).await;
    let at = PatchTarget { subresource: "status", ..at };
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "ExternalIP", "address": "203.0.113.7"}]);
    api.merge(
        &Resource::NODES,
        at,
        json!({"status": {"addresses": addresses, "conditions": null}}),
    )
    .await;
    node.stop_kubelet().await;
    settings.cloud.provided_ips.clear();
    node.start_kubelet_with(settings, Some(api.client("kubelet")));
    eventually("the node is ready again", async || is_ready(&object())).await;
    assert_eq!(address("InternalIP"), Some(json!("192.0.2.7")));
    assert_eq!(
        (&object()["spec"]["taints"], &object()["spec"]["providerID"]),
        (&Value::Null, &json!("cloud://1"))
    );
    eventually("the note is gone", async || object()["metadata"]["annotations"][note].is_null())
        .await;
    node.close().await;
}

//! Images as volumes. A runtime that does not mount them, such as containerd 1.6, gets no container that needs one.

use client::Resource;
use serde_json::{Value, json};
use testkit::FakeApi;

use crate::{
    api::{container, pod, state, status},
    node::{APP, Node, eventually},
};

/// Returns a Pod that mounts an image at `/v`.
fn mounting(name: &str, image: Value, sub_path: Option<&str>) -> Value {
    let mut one = container("app", "exec sleep 1000");
    one["volumeMounts"] = json!([{ "name": "v", "mountPath": "/v", "subPath": sub_path }]);
    pod(name, json!({ "containers": [one], "volumes": [{ "name": "v", "image": image }] }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_images_or_refuses_them() {
    let mut node = Node::start("images").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let waits = async |name: &str, reason: &str, words: &str| {
        eventually(&format!("{name} waits: {words}"), async || {
            let waiting = state(&api, name)["waiting"].clone();
            waiting["reason"] == reason
                && waiting["message"].as_str().is_some_and(|message| message.contains(words))
        })
        .await;
    };
    let image = || json!({ "reference": APP });
    api.create(&Resource::PODS, mounting("whole", image(), None)).await;
    if !node.runtime_is_at_least(2, 1).await {
        waits("whole", "CreateContainerConfigError", "does not support image volumes").await;
        return node.close().await;
    }
    eventually("the Pod runs", async || status(&api, "whole")["phase"] == "Running").await;
    let id = node.running("app").await.unwrap().id;
    let script = "test -e /v/bin/busybox && echo there; echo x > /v/f || echo read-only";
    assert_eq!(node.run(&id, &["sh", "-c", script]).await, "there\nread-only\n");
    api.create(&Resource::PODS, mounting("part", image(), Some("bin"))).await;
    eventually("the Pod runs", async || status(&api, "part")["phase"] == "Running").await;
    let id = node.running("app").await.unwrap().id;
    assert_eq!(node.run(&id, &["sh", "-c", "test -e /v/busybox && echo there"]).await, "there\n");
    let never = json!({ "reference": "windlass.test/none:1", "pullPolicy": "Never" });
    let absent = json!({ "reference": "127.0.0.1:1/none:1" });
    for (name, image, sub_path) in
        [("never", never, None), ("absent", absent, None), ("lost", image(), Some("no/such"))]
    {
        api.create(&Resource::PODS, mounting(name, image, sub_path)).await;
    }
    waits("never", "ErrImageNeverPull", "windlass.test/none:1").await;
    waits("absent", "ImagePullBackOff", "127.0.0.1:1/none:1").await;
    waits("lost", "CreateContainerError", "no/such").await;
    node.close().await;
}

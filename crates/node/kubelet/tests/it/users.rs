//! User namespaces of Pods. A runtime that has none, such as containerd 1.6, is asked for none.

use std::{fs, os::unix::fs::MetadataExt as _};

use client::{DeleteOptions, Resource};
use serde_json::{Value, json};
use testkit::FakeApi;

use crate::{
    api::{container, pod, status},
    node::{Node, eventually},
};

/// Returns a Pod with a user namespace, a volume, and a container of the same name that sees all of /proc.
fn isolated(name: &str) -> Value {
    let mut one = container(name, "echo x > /v/f; exec sleep 1000");
    one["volumeMounts"] = json!([{ "name": "v", "mountPath": "/v" }]);
    one["securityContext"] = json!({ "procMount": "Unmasked" });
    let spec = json!({ "hostUsers": false, "containers": [one],
        "volumes": [{ "name": "v", "emptyDir": {} }] });
    let mut pod = pod(name, spec);
    pod["spec"]["hostNetwork"] = json!(false);
    pod
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_pods_in_user_namespaces_or_refuses_them() {
    let mut node = Node::start("users").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    api.create(&Resource::PODS, isolated("first")).await;
    if !node.runtime_is_at_least(2, 0).await {
        eventually("the Pod is refused", async || {
            api.list(&Resource::EVENTS, "default").iter().any(|event| {
                let message = event["message"].as_str().unwrap_or_default();
                event["reason"] == "FailedCreatePodSandBox"
                    && message.contains(
                        "can't set `spec.hostUsers: false`, runtime does not support user namespaces (containerd 1.",
                    )
            })
        })
        .await;
        assert!(node.cri.list_pod_sandboxes(None).await.unwrap().is_empty());
        return node.close().await;
    }
    let runs = async |name: &str| {
        eventually("the Pod runs", async || status(&api, name)["phase"] == "Running").await;
        let id = node.running(name).await.unwrap().id;
        let map = node.run(&id, &["cat", "/proc/self/uid_map"]).await;
        let ids: Vec<u32> = map.split_whitespace().map(|id| id.parse().unwrap()).collect();
        (id, ids)
    };
    let (id, ids) = runs("first").await;
    assert_eq!(ids, [0, 65_536, 65_536]);
    let mounts = node.run(&id, &["cat", "/proc/self/mountinfo"]).await;
    assert!(!mounts.contains(" /proc/kcore "), "{mounts}");
    // Root of the Pod is root in its volumes, and nobody else on the host.
    let uid = api.get(&Resource::PODS, "default", "first").unwrap()["metadata"]["uid"].clone();
    let dir = node.dir.join("kubelet/pods").join(uid.as_str().unwrap());
    let file = dir.join("volumes/kubernetes.io~empty-dir/v/f");
    assert_eq!(fs::metadata(&file).unwrap().uid(), 0);
    assert!(dir.join("userns").exists());

    node.stop_kubelet().await;
    node.start_kubelet(Some(api.client("kubelet")));
    api.create(&Resource::PODS, isolated("second")).await;
    let runs = async |name: &str| {
        eventually("the Pod runs", async || status(&api, name)["phase"] == "Running").await;
        let id = node.running(name).await.unwrap().id;
        node.run(&id, &["cat", "/proc/self/uid_map"]).await
    };
    let map = runs("second").await;
    assert_eq!(map.split_whitespace().nth(1), Some("131072"), "the first range is in use");
    let client = api.client("user");
    client.delete(&Resource::PODS, "default", "first", &DeleteOptions::default()).await.unwrap();
    eventually("the range is free", async || !dir.exists()).await;
    api.create(&Resource::PODS, isolated("third")).await;
    assert_eq!(runs("third").await.split_whitespace().nth(1), Some("65536"));
    node.close().await;
}

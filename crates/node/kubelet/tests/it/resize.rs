//! Resizes of the resources that the containers of a Pod share, observed in the kernel.

use client::{PatchTarget, Resource};
use serde_json::{Value, json};
use testkit::FakeApi;

use crate::{
    api::{container, pod, status},
    life::group_file,
    node::{Node, eventually},
};

/// Returns the limits of memory and CPU of a cgroup, in bytes and in microseconds per 100 ms.
fn limits(group: &str) -> (String, String) {
    let memory = group_file(group, "memory", "memory.limit_in_bytes", "memory.max");
    let cpu = group_file(group, "cpu", "cpu.cfs_quota_us", "cpu.max");
    (memory, cpu.split(' ').next().unwrap_or_default().to_owned())
}

async fn resize(api: &FakeApi, resources: Value) {
    let at = PatchTarget { namespace: "default", name: "web", subresource: "" };
    api.merge(&Resource::PODS, at, json!({ "spec": { "resources": resources } })).await;
}

fn has_condition(status: &Value, kind: &str) -> bool {
    status["conditions"].as_array().into_iter().flatten().any(|c| c["type"] == kind)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applies_pod_level_resources_to_cgroups() {
    let mut node = Node::start("shared").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let mut own = container("own", "exec sleep 1000");
    own["resources"] = json!({ "requests": { "memory": "16Mi" }, "limits": { "memory": "16Mi" } });
    // It keeps 20 MB in memory.
    let heir = "(busybox head -c 20000000 /dev/zero; exec sleep 1000) | tail -c 20000000";
    let spec = json!({ "containers": [container("heir", heir), own], "resources":
        { "requests": { "cpu": "100m", "memory": "64Mi" }, "limits": { "cpu": "200m", "memory": "64Mi" } } });
    api.create(&Resource::PODS, pod("web", spec)).await;
    eventually("the Pod runs", async || status(&api, "web")["phase"] == "Running").await;
    let uid = api.get(&Resource::PODS, "default", "web").unwrap()["metadata"]["uid"].clone();
    let group = format!("{}/kubepods/burstable/pod{}", node.cgroup, uid.as_str().unwrap());
    let (heir, own) = (node.running("heir").await.unwrap(), node.running("own").await.unwrap());
    let (of_heir, of_own) = (format!("{group}/{}", heir.id), format!("{group}/{}", own.id));
    let bytes = |mib: i64| (mib << 20).to_string();
    assert_eq!(limits(&group), (bytes(64), "20000".to_owned()));
    assert_eq!(limits(&of_heir), (bytes(64), "20000".to_owned()), "inherited");
    assert_eq!(limits(&of_own), (bytes(16), "20000".to_owned()));
    assert_eq!(status(&api, "web")["resources"]["limits"]["memory"], "64Mi");
    assert_eq!(
        status(&api, "web")["allocatedResources"],
        json!({ "cpu": "100m", "memory": "64Mi" })
    );

    resize(
        &api,
        json!({ "requests": { "cpu": "150m" }, "limits": { "cpu": "300m", "memory": "96Mi" } }),
    )
    .await;
    eventually("more resources are applied", async || {
        let status = status(&api, "web");
        status["resources"]["limits"]["memory"] == "96Mi"
            && !has_condition(&status, "PodResizeInProgress")
    })
    .await;
    assert_eq!(limits(&group), (bytes(96), "30000".to_owned()));
    assert_eq!(limits(&of_heir), (bytes(96), "30000".to_owned()));
    assert_eq!(limits(&of_own), (bytes(16), "30000".to_owned()));
    assert_eq!(status(&api, "web")["allocatedResources"]["cpu"], "150m");

    // A restarted kubelet knows what is applied, and can take resources back.
    node.stop_kubelet().await;
    node.start_kubelet(Some(api.client("kubelet")));
    resize(
        &api,
        json!({ "requests": { "memory": "32Mi" }, "limits": { "cpu": "200m", "memory": "48Mi" } }),
    )
    .await;
    eventually("fewer resources are applied", async || {
        let status = status(&api, "web");
        status["resources"]["limits"]["memory"] == "48Mi"
            && !has_condition(&status, "PodResizeInProgress")
    })
    .await;
    assert_eq!(limits(&group), (bytes(48), "20000".to_owned()));
    assert_eq!(limits(&of_heir), (bytes(48), "20000".to_owned()));
    assert_eq!(node.running("heir").await.unwrap().id, heir.id, "nothing restarted");

    // The node does not have as much.
    resize(&api, json!({ "requests": { "cpu": "4000" }, "limits": { "cpu": "4000" } })).await;
    eventually("the resize is infeasible", async || {
        has_condition(&status(&api, "web"), "PodResizePending")
    })
    .await;
    assert_eq!(limits(&group), (bytes(48), "20000".to_owned()));
    assert_eq!(status(&api, "web")["resources"]["limits"]["cpu"], "200m");
    // What the Pod uses is not taken from it.
    resize(&api, json!({ "requests": { "cpu": "100m", "memory": "1Mi" }, "limits": { "cpu": "200m", "memory": "1Mi" } })).await;
    eventually("the resize fails", async || {
        let status = status(&api, "web");
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.any(|c| {
            c["type"] == "PodResizeInProgress"
                && c["message"].as_str().is_some_and(|m| m.contains("below current usage"))
        })
    })
    .await;
    assert_eq!(limits(&of_heir), (bytes(48), "20000".to_owned()));
    node.close().await;
}

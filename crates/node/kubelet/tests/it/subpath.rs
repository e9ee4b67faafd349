//! Mounts of subPaths: the runtime gets paths that no container can reach (CVE-2017-1002101, CVE-2021-25741).

use client::{DeleteOptions, Resource};
use serde_json::json;
use testkit::FakeApi;

use crate::{
    api::{container, pod, status},
    node::{Node, eventually},
};

/// A subPath that leads out of the volume when its container starts is refused. A restarted kubelet removes the mounts
/// of the earlier one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_rejects_and_unmounts_subpaths() {
    let mut node = Node::start("parts").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let mut plant = container(
        "plant",
        "cd /v; busybox ln -s / out; mkdir real; echo a > real/file; busybox ln -s real inner",
    );
    plant["volumeMounts"] = json!([{ "name": "v", "mountPath": "/v" }]);
    let mut good = container(
        "good",
        "cat /inner/file /file > /v/read; echo b > /made/file; touch /ro/x || echo ro >> /v/read; exec sleep 1000",
    );
    good["env"] = json!([{ "name": "NAME", "value": "named" }]);
    good["volumeMounts"] = json!([
        { "name": "v", "mountPath": "/v" },
        { "name": "v", "mountPath": "/inner", "subPath": "inner" },
        { "name": "v", "mountPath": "/file", "subPath": "inner/file" },
        { "name": "v", "mountPath": "/made", "subPathExpr": "$(NAME)/deep" },
        { "name": "v", "mountPath": "/ro", "subPath": "real", "readOnly": true },
    ]);
    let mut bad = container("bad", "true");
    bad["volumeMounts"] = json!([{ "name": "v", "mountPath": "/part", "subPath": "out/etc" }]);
    let spec = json!({
        "initContainers": [plant], "containers": [good, bad], "volumes": [{ "name": "v", "emptyDir": {} }],
    });
    api.create(&Resource::PODS, pod("parts", spec)).await;
    let waiting = |name: &str| {
        let all =
            status(&api, "parts")["containerStatuses"].as_array().cloned().unwrap_or_default();
        let own = all.into_iter().find(|c| c["name"] == name).unwrap_or_default();
        own["state"]["waiting"].to_string()
    };
    eventually("the bad path is refused", async || {
        waiting("bad").contains("CreateContainerConfigError")
            && waiting("bad").contains("failed to prepare subPath for volumeMount")
    })
    .await;
    eventually("the good one runs", async || node.running("good").await.is_some()).await;
    let id = node.running("good").await.unwrap().id;
    eventually("it has read", async || node.run(&id, &["cat", "/v/read"]).await == "a\na\nro\n")
        .await;
    assert_eq!(node.run(&id, &["cat", "/v/named/deep/file"]).await, "b\n");
    let mounts = node.cri.container_status(&id).await.unwrap().mounts;
    for part in ["/inner", "/file", "/made", "/ro"] {
        let from = &mounts.iter().find(|m| m.container_path == part).unwrap().host_path;
        assert!(
            from.contains("/volume-subpaths/v/good/"),
            "the runtime walks a path that containers change: {from}"
        );
    }
    let table = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = format!("{}/kubelet/pods/", node.dir.display());
    let count = || {
        table()
            .lines()
            .filter(|l| l.contains(&place) && l.contains("/volume-subpaths/v/good/"))
            .count()
    };
    assert_eq!(count(), 4);
    // A restarted kubelet also removes mounts of the earlier one.
    node.stop_kubelet().await;
    node.start_kubelet(Some(api.client("kubelet")));
    let second = json!({ "containers": [container("app", "sleep 1000")] });
    api.create(&Resource::PODS, pod("second", second)).await;
    eventually("another Pod runs", async || status(&api, "second")["phase"] == "Running").await;
    for name in ["parts", "second"] {
        let (client, none) = (api.client("user"), DeleteOptions::default());
        client.delete(&Resource::PODS, "default", name, &none).await.unwrap();
    }
    eventually("nothing is left", async || node.is_empty().await && count() == 0).await;
    node.close().await;
}

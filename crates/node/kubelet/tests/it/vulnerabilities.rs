//! Vulnerabilities that upstream's kubelet had, by number. CVE-2017-1002101 and CVE-2021-25741 are in `subpath`.

use client::Resource;
use serde_json::{Value, json};
use testkit::FakeApi;

use crate::{
    api::{container, pod, status},
    node::{Node, USER, eventually},
};

/// CVE-2020-8557: data that containers wrote to `/etc/hosts` did not count as their usage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicts_pod_that_fills_files_of_the_kubelet() {
    let mut node = Node::start("ephemeral").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let filling = |file: &str| {
        let command = format!("busybox dd if=/dev/zero of={file} bs=1M count=2; exec sleep 1000");
        let mut app = container("app", &command);
        app["resources"] = json!({ "limits": { "ephemeral-storage": "1Mi" } });
        json!({ "containers": [app] })
    };
    let cases = [
        ("hosts", "/etc/hosts", "Pod ephemeral local storage usage exceeds the total limit"),
        (
            "message",
            "/dev/termination-log",
            "Container app exceeded its local ephemeral storage limit",
        ),
    ];
    for (name, file, _) in cases {
        api.create(&Resource::PODS, pod(name, filling(file))).await;
    }
    for (name, _, words) in cases {
        eventually(&format!("{name} is evicted"), async || {
            let status = status(&api, name);
            status["reason"] == "Evicted"
                && status["message"].as_str().is_some_and(|message| message.contains(words))
        })
        .await;
    }
    node.close().await;
}

/// CVE-2019-11245: a restarted container, or one whose image was present, ran as root and not as the image's user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_restarted_container_as_the_user_of_its_image() {
    let mut node = Node::start("image-user").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let mut app = container("app", "id -u > /dev/termination-log; exit 1");
    app["image"] = json!(USER);
    for (name, context) in [("plain", Value::Null), ("non-root", json!({ "runAsNonRoot": true }))] {
        app["securityContext"] = context;
        api.create(&Resource::PODS, pod(name, json!({ "containers": [app] }))).await;
    }
    for name in ["plain", "non-root"] {
        let own = || status(&api, name)["containerStatuses"][0].clone();
        eventually(&format!("{name} is restarted"), async || {
            own()["restartCount"].as_u64() >= Some(1)
                && own()["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
        .await;
        assert_eq!(own()["lastState"]["terminated"]["message"], "1000\n", "{name}");
    }
    node.close().await;
}

/// CVE-2024-10220 and CVE-2025-1767: a gitRepo volume could run a tenant's hooks on the node, or read a local
/// repository of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_no_volume_of_a_git_repository() {
    let mut node = Node::start("git").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let volumes = json!([{ "name": "v", "gitRepo": { "repository": "/var/lib/other" } }]);
    let spec = json!({ "containers": [container("app", "true")], "volumes": volumes });
    api.create(&Resource::PODS, pod("git", spec)).await;
    eventually("the volume is refused", async || {
        api.list(&Resource::EVENTS, "default").iter().any(|event| {
            event["reason"] == "FailedMount"
                && event["message"].as_str().is_some_and(|text| text.contains("not supported"))
        })
    })
    .await;
    assert!(node.containers("app").await.is_empty());
    node.close().await;
}

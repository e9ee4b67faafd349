//! Isolation that this node cannot provide: the Pod or its container is refused, and never runs without it.

use client::Resource;
use serde_json::{Value, json};
use testkit::FakeApi;

use crate::{
    api::{container, pod, state, status},
    node::{Node, eventually},
};

/// Returns a container with more fields.
fn with(more: Value) -> Value {
    let mut one = container("app", "exec sleep 1000");
    for (name, value) in more.as_object().unwrap() {
        one[name] = value.clone();
    }
    one
}

fn mounting(mount: Value) -> Value {
    let mut mount = mount;
    mount["name"] = json!("v");
    mount["mountPath"] = json!("/v");
    let containers = json!([with(json!({ "volumeMounts": [mount] }))]);
    json!({ "containers": containers, "volumes": [{ "name": "v", "emptyDir": {} }] })
}

fn secured(context: Value) -> Value {
    json!({ "containers": [with(json!({ "securityContext": context }))] })
}

/// The runtime of this test is containerd 1.6, which reports no optional features.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refuses_what_the_node_cannot_enforce() {
    let mut node = Node::start("isolation").await;
    let has_images = node.runtime_is_at_least(2, 1).await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let app = || json!([container("app", "exec sleep 1000")]);
    // Pods that are rejected as a whole, with their reasons.
    let rejected = [
        (
            "windows",
            json!({ "os": { "name": "windows" }, "containers": app() }),
            "PodOSNotSupported",
        ),
        (
            "groups",
            json!({ "securityContext": { "supplementalGroupsPolicy": "Strict" }, "containers": app() }),
            "SupplementalGroupsPolicyNotSupported",
        ),
    ];
    // Pods whose container is not started, with a part of the message.
    let seccomp = |file: &str| {
        secured(json!({ "seccompProfile": { "type": "Localhost", "localhostProfile": file } }))
    };
    let waiting = [
        ("absolute", seccomp("/tmp/all.json"), "the path must be relative"),
        ("upwards", seccomp("../pods/all.json"), "the path must be relative"),
        ("empty", seccomp(""), "localhostProfile must be set"),
        ("unmasked", secured(json!({ "procMount": "Unmasked" })), "requires a user namespace"),
        (
            "recursive",
            mounting(json!({ "readOnly": true, "recursiveReadOnly": "Enabled" })),
            "volume \"v\" requested recursive read-only mode, but it is not supported by the runtime",
        ),
        (
            "shared",
            mounting(json!({ "mountPropagation": "Bidirectional" })),
            "may not have the mount propagation",
        ),
        (
            "descending",
            json!({ "containers": [with(json!({ "volumeMounts":
                [{ "name": "v", "mountPath": "/v", "subPath": "../up" }] }))],
                "volumes": [{ "name": "v", "image": { "reference": crate::node::APP } }] }),
            if has_images { "must be relative" } else { "does not support image volumes" },
        ),
    ];
    let possible = mounting(json!({ "readOnly": true, "recursiveReadOnly": "IfPossible" }));
    api.create(&Resource::PODS, pod("possible", possible)).await;
    for (name, spec, _) in rejected.iter().chain(&waiting) {
        api.create(&Resource::PODS, pod(name, spec.clone())).await;
    }
    for (name, _, reason) in &rejected {
        eventually(&format!("{name} is rejected"), async || {
            status(&api, name)["phase"] == "Failed"
        })
        .await;
        assert_eq!(status(&api, name)["reason"], *reason);
    }
    for (name, _, words) in &waiting {
        eventually(&format!("{name} waits"), async || {
            let waiting = state(&api, name)["waiting"].clone();
            waiting["reason"] == "CreateContainerConfigError"
                && waiting["message"].as_str().is_some_and(|message| message.contains(words))
        })
        .await;
    }
    eventually("what is only wished for runs", async || {
        status(&api, "possible")["phase"] == "Running"
    })
    .await;
    let mounts = &status(&api, "possible")["containerStatuses"][0]["volumeMounts"];
    assert_eq!(mounts[0]["recursiveReadOnly"], "Disabled");
    assert_eq!(node.containers("app").await.len(), 1, "no other container was made");
    node.close().await;
}

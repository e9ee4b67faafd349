//! Pods of the API server.

use client::{DeleteOptions, PatchTarget, Resource};
use serde_json::{Value, json};
use testkit::FakeApi;

use crate::node::{APP, Node, eventually};

pub(crate) fn pod(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["nodeName"] = json!("node");
    spec["hostNetwork"] = json!(true);
    spec["terminationGracePeriodSeconds"] = json!(1);
    json!({ "metadata": { "name": name, "namespace": "default" }, "spec": spec })
}

pub(crate) fn container(name: &str, command: &str) -> Value {
    json!({ "name": name, "image": APP, "command": ["sh", "-c", command] })
}

pub(crate) fn status(api: &FakeApi, name: &str) -> Value {
    api.get(&Resource::PODS, "default", name).map_or(Value::Null, |pod| pod["status"].clone())
}

pub(crate) fn state(api: &FakeApi, name: &str) -> Value {
    status(api, name)["containerStatuses"][0]["state"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_reports_and_ends_pod_of_the_api_server() {
    let mut node = Node::start("api").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    eventually("the node is ready", async || {
        let node = api.get(&Resource::NODES, "", "node").unwrap_or_default();
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    })
    .await;
    eventually("the lease is kept", async || {
        api.get(&Resource::LEASES, "kube-node-lease", "node").is_some()
    })
    .await;

    let map = json!({ "metadata": { "name": "settings", "namespace": "default" }, "data": { "colour": "red" } });
    let mut app = container(
        "app",
        "echo $COLOUR $(cat /etc/settings/colour) > /dev/termination-log; sleep 1000",
    );
    app["env"] = json!([{ "name": "COLOUR", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "colour" } } }]);
    app["volumeMounts"] = json!([{ "name": "settings", "mountPath": "/etc/settings" }]);
    app["readinessProbe"] = json!({ "exec": { "command": ["sh", "-c", "test -s /dev/termination-log"] }, "periodSeconds": 1 });
    app["command"][0] = json!("/bin/sh");
    let mut held = pod(
        "web",
        json!({ "containers": [app], "volumes": [{ "name": "settings", "configMap": { "name": "settings" } }] }),
    );
    held["metadata"]["finalizers"] = json!(["test/held"]);
    api.create(&Resource::PODS, held).await;
    eventually("the missing ConfigMap is told", async || {
        api.list(&Resource::EVENTS, "default").iter().any(|e| {
            e["reason"] == "FailedMount"
                && e["message"].as_str().unwrap().contains("configmap \"settings\" not found")
        })
    })
    .await;
    assert_eq!(state(&api, "web")["waiting"]["reason"], "ContainerCreating");
    api.create(&Resource::CONFIG_MAPS, map).await;
    eventually("the Pod is ready", async || {
        let conditions = status(&api, "web")["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    })
    .await;
    assert_eq!(status(&api, "web")["phase"], "Running");
    assert_eq!(status(&api, "web")["podIP"], "127.0.0.1");

    let before = status(&api, "web");
    node.stop_kubelet().await;
    node.start_kubelet(Some(api.client("kubelet")));
    api.create(
        &Resource::PODS,
        pod("second", json!({ "containers": [container("app", "sleep 1000")] })),
    )
    .await;
    eventually("another Pod runs", async || status(&api, "second")["phase"] == "Running").await;
    assert_eq!(status(&api, "web"), before, "a restarted kubelet changes nothing");
    let none = DeleteOptions::default();
    api.client("user").delete(&Resource::PODS, "default", "second", &none).await.unwrap();

    api.client("user")
        .delete(&Resource::PODS, "default", "web", &DeleteOptions::default())
        .await
        .unwrap();
    eventually("the container's end is reported", async || {
        state(&api, "web")["terminated"]["message"].as_str().is_some_and(|m| m.trim() == "red red")
    })
    .await;
    assert_eq!(state(&api, "web")["terminated"]["exitCode"], 137);
    let at = PatchTarget { namespace: "default", name: "web", subresource: "" };
    api.merge(&Resource::PODS, at, json!({ "metadata": { "finalizers": null } })).await;
    eventually("nothing is left", async || node.is_empty().await).await;
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_failures_in_the_pod_status() {
    let mut node = Node::start("wrong").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let never =
        json!({ "name": "app", "image": "windlass.test/none:1", "imagePullPolicy": "Never" });
    let cases = [
        ("crash", json!({ "containers": [container("app", "exit 3")] }), "CrashLoopBackOff"),
        ("never", json!({ "containers": [never] }), "ErrImageNeverPull"),
        (
            "pull",
            json!({ "containers": [{ "name": "app", "image": "127.0.0.1:1/none:1" }] }),
            "ImagePullBackOff",
        ),
        (
            "command",
            json!({ "containers": [{ "name": "app", "image": APP, "command": ["/none"] }] }),
            "RunContainerError",
        ),
        (
            "config",
            json!({ "containers": [{ "name": "app", "image": APP, "securityContext": { "runAsNonRoot": true } }] }),
            "CreateContainerConfigError",
        ),
    ];
    for (name, spec, _) in &cases {
        api.create(&Resource::PODS, pod(name, spec.clone())).await;
    }
    let done = json!({ "restartPolicy": "Never", "containers": [container("app", "exit 0")] });
    api.create(&Resource::PODS, pod("done", done)).await;
    let failed = json!({ "restartPolicy": "Never", "containers": [container("app", "exit 7")] });
    api.create(&Resource::PODS, pod("failed", failed)).await;
    for (name, _, reason) in &cases {
        eventually(&format!("{name} waits with {reason}"), async || {
            state(&api, name)["waiting"]["reason"] == *reason
        })
        .await;
    }
    eventually("the Pod succeeds", async || status(&api, "done")["phase"] == "Succeeded").await;
    assert_eq!(state(&api, "done")["terminated"]["reason"], "Completed");
    eventually("the Pod fails", async || status(&api, "failed")["phase"] == "Failed").await;
    assert_eq!(state(&api, "failed")["terminated"]["exitCode"], 7);
    let restarts =
        status(&api, "crash")["containerStatuses"][0]["lastState"]["terminated"]["exitCode"]
            .clone();
    assert_eq!(restarts, 3);
    let told = api.list(&Resource::EVENTS, "default");
    assert!(
        told.iter().any(|e| e["reason"] == "BackOff" && e["involvedObject"]["name"] == "crash")
    );
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recreates_mirror_of_a_static_pod() {
    let mut node = Node::start("mirror").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: default}}\nspec:\n  hostNetwork: true\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - {{name: app, image: '{APP}', command: [sleep, '1000']}}\n"
    );
    node.manifest("web", &manifest);
    eventually("the mirror runs", async || status(&api, "web-node")["phase"] == "Running").await;
    let first = api.get(&Resource::PODS, "default", "web-node").unwrap();
    assert_eq!(first["metadata"]["ownerReferences"][0]["kind"], "Node");
    let container = node.running("app").await.unwrap().id;
    api.client("user")
        .delete(&Resource::PODS, "default", "web-node", &DeleteOptions::default())
        .await
        .unwrap();
    eventually("the mirror comes back", async || {
        let mirror = api.get(&Resource::PODS, "default", "web-node").unwrap_or_default();
        mirror["metadata"]["uid"] != first["metadata"]["uid"]
            && mirror["status"]["phase"] == "Running"
    })
    .await;
    assert_eq!(
        node.running("app").await.unwrap().id,
        container,
        "a mirror's deletion stops nothing"
    );
    let ready = |api: &FakeApi| {
        let conditions = status(api, "web-node")["conditions"].clone();
        let all = conditions.as_array().cloned().unwrap_or_default();
        all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    eventually("the mirror is ready", async || ready(&api)).await;
    // The node lifecycle controller does this while a node is unreachable.
    let at = PatchTarget { namespace: "default", name: "web-node", subresource: "status" };
    let lost = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    api.merge(&Resource::PODS, at, lost).await;
    eventually("readiness that was taken is given back", async || ready(&api)).await;
    node.remove_manifest("web");
    eventually("the mirror goes with its file", async || {
        api.get(&Resource::PODS, "default", "web-node").is_none() && node.is_empty().await
    })
    .await;
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacity_of_other_clients_becomes_allocatable() {
    let mut node = Node::start("foreign").await;
    let api = FakeApi::default();
    let mut settings = node.settings();
    settings.status_update = std::time::Duration::from_millis(200);
    node.start_kubelet_with(settings, Some(api.client("kubelet")));
    let amounts = || {
        let node = api.get(&Resource::NODES, "", "node").unwrap_or_default();
        ["capacity", "allocatable"].map(|field| node["status"][field]["example.com/fpga"].clone())
    };
    let cpus = || {
        let node = api.get(&Resource::NODES, "", "node").unwrap_or_default();
        node["status"]["allocatable"]["cpu"].clone()
    };
    eventually("the node is registered", async || cpus().is_string()).await;
    let write = async |change: Value| {
        let at = PatchTarget { namespace: "", name: "node", subresource: "status" };
        api.merge(&Resource::NODES, at, json!({ "status": change })).await;
    };
    for amount in ["5", "7"] {
        write(json!({ "capacity": { "example.com/fpga": amount } })).await;
        eventually("it is allocatable", async || amounts() == [amount, amount]).await;
    }
    write(json!({ "capacity": { "example.com/fpga": null } })).await;
    eventually("it is not allocatable any more", async || amounts() == [Value::Null, Value::Null])
        .await;
    assert!(cpus().is_string());
    node.close().await;
}

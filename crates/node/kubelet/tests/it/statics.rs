//! Static Pods.

use client::Resource;
use testkit::FakeApi;

use crate::node::{APP, Node, eventually};

fn pod(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: kube-system\nspec:\n  hostNetwork: true\n  \
         terminationGracePeriodSeconds: 1\n{more}"
    )
}

fn container(name: &str, command: &str) -> String {
    format!("  - name: {name}\n    image: {APP}\n    command: [\"sh\", \"-c\", {command:?}]\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adopts_static_pod_and_follows_its_file() {
    let mut node = Node::start("static").await;
    node.start_kubelet(None);
    let command = "trap exit TERM; echo hello; while true; do sleep 0.1; done";
    node.manifest("web", &pod("web", &format!("  containers:\n{}", container("app", command))));
    eventually("the container runs", async || node.running("app").await.is_some()).await;
    let first = node.running("app").await.unwrap();
    let env = node.run(&first.id, &["cat", "/etc/hosts"]).await;
    assert!(env.contains("Kubernetes-managed hosts file (host network)"), "{env}");

    node.stop_kubelet().await;
    node.start_kubelet(None);
    node.manifest(
        "other",
        &pod("other", &format!("  containers:\n{}", container("second", command))),
    );
    eventually("another Pod runs", async || node.running("second").await.is_some()).await;
    assert_eq!(
        node.running("app").await.unwrap().id,
        first.id,
        "a restarted kubelet restarts nothing"
    );

    let changed = "trap exit TERM; while true; do sleep 0.2; done";
    node.manifest("web", &pod("web", &format!("  containers:\n{}", container("app", changed))));
    eventually("the changed Pod replaces the old one", async || {
        node.running("app").await.is_some_and(|c| c.id != first.id)
    })
    .await;
    node.remove_manifest("web");
    node.remove_manifest("other");
    eventually("nothing is left", async || node.is_empty().await).await;
    node.close().await;
}

/// The API server itself may be a static Pod: while it is replaced, the final status of the old one cannot be reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaces_static_pod_while_api_server_is_away() {
    let mut node = Node::start("alone").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let command = "trap exit TERM; while true; do sleep 0.1; done";
    node.manifest("web", &pod("web", &format!("  containers:\n{}", container("app", command))));
    let told = || {
        let mirror = api.get(&Resource::PODS, "kube-system", "web-node").unwrap_or_default();
        mirror["status"]["containerStatuses"][0]["containerID"].as_str().map(str::to_owned)
    };
    eventually("the API has the container", async || told().is_some()).await;
    let first = told();

    api.set_away(true);
    let changed = "trap exit TERM; while true; do sleep 0.2; done";
    node.manifest("web", &pod("web", &format!("  containers:\n{}", container("app", changed))));
    eventually("the changed Pod replaces the old one", async || {
        let running = node.running("app").await;
        running.is_some_and(|c| first.as_ref().is_some_and(|id| !id.ends_with(&c.id)))
    })
    .await;
    api.set_away(false);
    eventually("the API has the new one", async || told().is_some() && told() != first).await;
    node.remove_manifest("web");
    eventually("nothing is left", async || node.is_empty().await).await;
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_start_in_order_and_are_restarted() {
    let mut node = Node::start("order").await;
    node.start_kubelet(None);
    let spec = format!(
        "  volumes:\n  - name: shared\n    emptyDir: {{medium: Memory}}\n  initContainers:\n{}    volumeMounts: [{{name: shared, mountPath: /shared}}]\n\
         {}    restartPolicy: Always\n    volumeMounts: [{{name: shared, mountPath: /shared}}]\n  containers:\n{}    volumeMounts: [{{name: shared, mountPath: /shared}}]\n",
        container("first", "touch /shared/first"),
        container("side", "test -e /shared/first && touch /shared/side && exec sleep 1000"),
        container(
            "app",
            "test -e /shared/first && echo $RANDOM; if test -e /shared/again; then exec sleep 1000; fi; touch /shared/again; exit 3"
        ),
    );
    node.manifest("order", &pod("order", &spec));
    eventually("the container runs again after it failed", async || {
        node.running("app").await.is_some_and(|c| c.metadata.unwrap().attempt == 1)
    })
    .await;
    assert!(node.running("side").await.is_some());
    assert_eq!(node.containers("first").await.len(), 1, "an init container runs once");
    node.remove_manifest("order");
    eventually("nothing is left", async || node.is_empty().await).await;
    node.close().await;
}

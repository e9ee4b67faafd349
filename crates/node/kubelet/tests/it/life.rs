//! Limits, probes and hooks, observed in the kernel and in containers.

use client::{DeleteOptions, Resource};
use serde_json::json;
use testkit::FakeApi;

use crate::{
    api::{container, pod, state, status},
    node::{Node, eventually},
    server::get,
};

/// Returns the content of a cgroup file, for either cgroup version.
pub(crate) fn group_file(path: &str, controller: &str, v1: &str, v2: &str) -> String {
    let root = std::path::Path::new("/sys/fs/cgroup");
    let file = if root.join("cgroup.controllers").exists() {
        root.join(path.trim_start_matches('/')).join(v2)
    } else {
        root.join(controller).join(path.trim_start_matches('/')).join(v1)
    };
    std::fs::read_to_string(&file)
        .unwrap_or_else(|e| panic!("{}: {e}", file.display()))
        .trim()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn enforces_limits_and_reports_oom_kills() {
    let mut node = Node::start("limits").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let mut greedy = container("app", "exec tail /dev/zero");
    greedy["resources"] = json!({ "limits": { "memory": "24Mi", "cpu": "500m" } });
    let spec = json!({ "restartPolicy": "Never", "containers": [greedy] });
    let mut modest = container("app", "exec sleep 1000");
    modest["resources"] = json!({ "requests": { "cpu": "250m" }, "limits": { "memory": "32Mi" } });
    api.create(&Resource::PODS, pod("modest", json!({ "containers": [modest] }))).await;
    eventually("the modest Pod runs", async || status(&api, "modest")["phase"] == "Running").await;
    assert_eq!(status(&api, "modest")["qosClass"], "Burstable");
    let uid = api.get(&Resource::PODS, "default", "modest").unwrap()["metadata"]["uid"].clone();
    let group = format!("{}/kubepods/burstable/pod{}", node.cgroup, uid.as_str().unwrap());
    let limit = (32 << 20).to_string();
    assert_eq!(group_file(&group, "memory", "memory.limit_in_bytes", "memory.max"), limit);
    let id = node.running("app").await.unwrap().id;
    let own = format!("{group}/{id}");
    assert_eq!(group_file(&own, "memory", "memory.limit_in_bytes", "memory.max"), limit);

    api.create(&Resource::PODS, pod("greedy", spec)).await;
    eventually("the greedy Pod fails", async || status(&api, "greedy")["phase"] == "Failed").await;
    let ended = state(&api, "greedy")["terminated"].clone();
    assert_eq!(
        (&ended["reason"], &ended["exitCode"]),
        (&json!("OOMKilled"), &json!(137)),
        "{ended}"
    );
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_probes_and_hooks() {
    let mut node = Node::start("probes").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let port = testkit::free_port();
    let shared = json!([{ "name": "shared", "mountPath": "/shared" }]);
    let serve = format!(
        "mkdir -p /shared/www; echo up > /shared/www/index.html; exec httpd -f -p 127.0.0.1:{port} -h /shared/www"
    );
    let mut web = container("web", &serve);
    web["volumeMounts"] = shared.clone();
    web["startupProbe"] = json!({ "tcpSocket": { "port": port }, "periodSeconds": 1 });
    web["readinessProbe"] = json!({ "httpGet": { "path": "/", "port": port }, "periodSeconds": 1 });
    web["livenessProbe"] = json!({ "exec": { "command": ["sh", "-c", "! test -e /shared/sick"] }, "periodSeconds": 1, "failureThreshold": 1 });
    web["lifecycle"] = json!({
        "postStart": { "exec": { "command": ["sh", "-c", "rm -f /shared/sick; echo began >> /shared/story"] } },
        "preStop": { "exec": { "command": ["sh", "-c", "echo ended >> /shared/story"] } },
    });
    let mut witness = container("witness", "exec sleep 1000");
    witness["volumeMounts"] = shared;
    let volumes = json!([{ "name": "shared", "emptyDir": {} }]);
    let spec = json!({ "containers": [web, witness], "volumes": volumes });
    api.create(&Resource::PODS, pod("web", spec)).await;
    let web_status = || status(&api, "web")["containerStatuses"][0].clone();
    eventually("the server is ready", async || web_status()["ready"] == true).await;

    let witness = node.running("witness").await.unwrap().id;
    node.run(&witness, &["touch", "/shared/sick"]).await;
    eventually("the sick server is restarted and ready again", async || {
        web_status()["restartCount"] == 1 && web_status()["ready"] == true
    })
    .await;
    let story = node.run(&witness, &["cat", "/shared/story"]).await;
    assert_eq!(story, "began\nended\nbegan\n");
    let told = api.list(&Resource::EVENTS, "default");
    assert!(told.iter().any(|e| e["reason"] == "Unhealthy"), "the failed probe is told");

    node.run(&witness, &["rm", "/shared/www/index.html"]).await;
    eventually("the empty server is not ready", async || web_status()["ready"] == false).await;
    assert_eq!(web_status()["restartCount"], 1, "readiness restarts nothing");
    api.client("user")
        .delete(&Resource::PODS, "default", "web", &DeleteOptions::default())
        .await
        .unwrap();
    eventually("nothing is left", async || node.is_empty().await).await;
    node.close().await;
}

/// A hook's output may be secret and Events have many readers, so only the container's status has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_hook_output_out_of_events() {
    let mut node = Node::start("hooks").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let mut app = container("app", "exec sleep 1000");
    app["lifecycle"] = json!({
        "postStart": { "exec": { "command": ["sh", "-c", "echo hush; exit 3"] } },
    });
    api.create(&Resource::PODS, pod("hooked", json!({ "containers": [app] }))).await;
    let told = || {
        let all = api.list(&Resource::EVENTS, "default");
        all.into_iter().find(|e| e["reason"] == "FailedPostStartHook")
    };
    eventually("the failure is told", async || told().is_some()).await;
    assert_eq!(told().unwrap()["message"], "PostStartHook failed");
    eventually("the status says more", async || {
        let said = state(&api, "hooked").to_string() + &status(&api, "hooked").to_string();
        said.contains("Exec lifecycle hook ([sh -c echo hush; exit 3]) for Container")
    })
    .await;
    assert!(!api.list(&Resource::EVENTS, "default").iter().any(|e| e.to_string().contains("hush")));
    node.close().await;
}

/// Holds the start of the second container, which is the first one after the sandbox, until there is a file "go".
const SLOW_RUNC: &str = r#"dir=$(dirname "$0")
case " $* " in
*" start "*)
    mkdir "$dir/sandbox" 2>/dev/null || {
        touch "$dir/held"
        while [ ! -e "$dir/go" ]; do sleep 0.05; done
    } ;;
esac
exec runc "$@""#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_lets_the_start_of_a_container_finish() {
    let mut node = Node::start_with_runc("slow-start", SLOW_RUNC).await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let app = container("app", "trap 'exit 7' TERM; while true; do sleep 0.1; done");
    let spec = json!({ "restartPolicy": "Never", "containers": [app] });
    let mut slow = pod("slow", spec);
    slow["spec"]["terminationGracePeriodSeconds"] = json!(30);
    api.create(&Resource::PODS, slow).await;
    let held = node.dir.join("held");
    eventually("the container starts", async || held.exists()).await;
    let options = DeleteOptions::default();
    api.client("user").delete(&Resource::PODS, "default", "slow", &options).await.unwrap();
    // The kubelet sees this Pod after the deletion.
    let later = json!({ "containers": [container("later", "sleep 1000")] });
    api.create(&Resource::PODS, pod("later", later)).await;
    eventually("the later Pod has a status", async || status(&api, "later")["phase"] == "Pending")
        .await;
    std::fs::write(node.dir.join("go"), "").unwrap();
    let own = "kubelet_terminated_containers_total\
               {container_type=\"container\",exit_code=\"7\",reason=\"Error\"} 1";
    eventually("the container has ended by itself", async || {
        let (_, metrics) = get(&node, Some("client"), "/metrics").await;
        let counts = "kubelet_terminated_containers_total{";
        metrics.lines().filter(|line| line.starts_with(counts)).eq([own])
    })
    .await;
    node.close().await;
}

use client::{Client, PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};
use testkit::{RealApi, until};

async fn create(client: &Client, resource: &Resource, object: Value) {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    client.create::<_, Value>(resource, &namespace, &object).await.unwrap();
}

fn pod(name: &str, cpu: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}})
}

async fn read(client: &Client, name: &str) -> Value {
    client.get(&Resource::PODS, "default", name).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_permits_binding_and_events() {
    let api = RealApi::start().await.unwrap();
    let (admin, tasks) = (api.admin(), api.tasks());
    let (client, running) = (api.user("system:kube-scheduler"), tasks.clone());
    let config = scheduler::Config { leader_election: true, ..Default::default() };
    tasks
        .spawn("scheduler", async move { scheduler::run(config, client, &running).await.unwrap() });
    let account = json!({"metadata": {"name": "default", "namespace": "default"}});
    create(&admin, &Resource::SERVICE_ACCOUNTS, account).await;
    create(&admin, &Resource::NODES, json!({"metadata": {"name": "n"}})).await;
    let status = json!({"spec": {"taints": []}});
    let at = PatchTarget { namespace: "", name: "n", subresource: "" };
    admin.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &status).await.unwrap();
    let room = json!({"cpu": "2", "memory": "4Gi", "pods": "110"});
    let status = json!({"status": {"capacity": room, "allocatable": room}});
    let at = PatchTarget { namespace: "", name: "n", subresource: "status" };
    admin.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &status).await.unwrap();
    create(&admin, &Resource::PODS, pod("small", "1")).await;
    create(&admin, &Resource::PODS, pod("big", "4")).await;
    until("the small one is bound", || async {
        read(&admin, "small").await["spec"]["nodeName"] == "n"
    })
    .await;
    until("the big Pod has a condition", || async {
        let pod = read(&admin, "big").await;
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| {
            c["type"] == "PodScheduled"
                && c["reason"] == "Unschedulable"
                && c["observedGeneration"] == 1
        })
    })
    .await;
    until("there are Events", || async {
        let events =
            admin.list::<Value>(&Resource::EVENTS, "default", &Default::default()).await.unwrap();
        let said = |reason: &str| events.items.iter().any(|e| e["reason"] == reason);
        said("Scheduled") && said("FailedScheduling")
    })
    .await;
    let left = api.stop().await;
    assert!(left.unfinished.is_empty(), "{left:?}");
}

//! PodGroups against the real API server, in simulated time.

use std::time::{Duration, SystemTime};

use api_config::FeatureGates;
use client::{PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};
use testkit::{Machine, RealApi};
use tokio::time::sleep;

const GATES: &str = "GenericWorkload=true,GangScheduling=true";

fn pod(name: &str, group: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingGroup": {"podGroupName": group}, "containers": [{"name": "c", "image": "i",
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}]}})
}

async fn add_node(api: &RealApi, name: &str) {
    let admin = api.admin();
    let node = json!({"metadata": {"name": name}});
    admin.create::<_, Value>(&Resource::NODES, "", &node).await.unwrap();
    let room = json!({"cpu": "2", "memory": "8Gi", "pods": "110"});
    let status = json!({"status": {"capacity": room, "allocatable": room}});
    // The node is not ready at first, and has a taint.
    for (subresource, patch) in [("status", &status), ("", &json!({"spec": {"taints": []}}))] {
        let at = PatchTarget { namespace: "", name, subresource };
        admin.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, patch).await.unwrap();
    }
}

/// Returns the condition of the group; null if it has none.
async fn condition(api: &RealApi) -> Value {
    let group: Value = api.admin().get(&Resource::POD_GROUPS, "default", "g").await.unwrap();
    group["status"]["conditions"][0].clone()
}

async fn bound(api: &RealApi) -> usize {
    let mut count = 0;
    for name in ["p1", "p2", "p3"] {
        let pod: Value = api.admin().get(&Resource::PODS, "default", name).await.unwrap();
        count += usize::from(pod["spec"]["nodeName"].is_string());
    }
    count
}

#[tokio::test(start_paused = true)]
async fn gang_is_bound_when_all_its_pods_fit() {
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let _simulation = rt::Simulation::begin(1, start);
    let mut machine = Machine::new().unwrap();
    machine.serve(GATES, "scheduling.k8s.io/v1alpha2=true").unwrap();
    let api = RealApi::simulated(&machine).await.unwrap();
    let admin = api.admin();
    let account = json!({"metadata": {"name": "default", "namespace": "default"}});
    admin.create::<_, Value>(&Resource::SERVICE_ACCOUNTS, "default", &account).await.unwrap();
    add_node(&api, "a").await;
    let features = FeatureGates::parse(GATES.split(',')).unwrap();
    let config = scheduler::Config { features, ..scheduler::Config::default() };
    let (client, tasks) = (api.user("system:kube-scheduler"), api.tasks());
    let running = tasks.clone();
    tasks.spawn("scheduler", async move {
        scheduler::run(config, client, &running).await.unwrap();
    });
    for name in ["p1", "p2", "p3"] {
        admin.create::<_, Value>(&Resource::PODS, "default", &pod(name, "g")).await.unwrap();
    }
    sleep(Duration::from_secs(5)).await;
    assert_eq!(bound(&api).await, 0, "the group does not exist");
    let group = json!({"metadata": {"name": "g", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}});
    admin.create::<_, Value>(&Resource::POD_GROUPS, "default", &group).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(bound(&api).await, 0, "there is room for two of three Pods");
    let refused = condition(&api).await;
    assert_eq!(
        (&refused["status"], &refused["reason"]),
        (&json!("False"), &json!("Unschedulable"))
    );
    let message = refused["message"].as_str().unwrap();
    assert!(message.starts_with("2 of 3 required pods of pod group \"g\""), "{message}");
    add_node(&api, "b").await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(bound(&api).await, 3);
    let scheduled = condition(&api).await;
    assert_eq!((&scheduled["status"], &scheduled["reason"]), (&json!("True"), &json!("Scheduled")));
    assert_ne!(scheduled["lastTransitionTime"], refused["lastTransitionTime"]);
    tasks.shutdown().stop();
    api.stop().await;
}

//! Tests the claim that the scheduler creates for extended resources, under the scheduler's permissions.

use super::*;

async fn make(api: &client::Client, resource: &Resource, object: Value) -> Value {
    let namespace = if resource.namespaced { "default" } else { "" };
    api.create(resource, namespace, &object).await.unwrap()
}

/// Creates a node, and a class for the extended resource with one device on the node.
async fn furnish(admin: &client::Client) {
    let account = json!({"metadata": {"name": "default"}});
    let _ = admin.create::<_, Value>(&Resource::SERVICE_ACCOUNTS, "default", &account).await;
    make(admin, &Resource::NODES, json!({"metadata": {"name": "n"}})).await;
    let at = client::PatchTarget { namespace: "", name: "n", subresource: "status" };
    let amounts = json!({"cpu": "8", "memory": "8Gi", "pods": "110"});
    let status = json!({"status": {"capacity": amounts, "allocatable": amounts}});
    admin.patch::<Value>(&Resource::NODES, at, client::PatchKind::Merge, &status).await.unwrap();
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "only"}]}});
    make(admin, &Resource::RESOURCE_SLICES, slice).await;
    let class =
        json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    make(admin, &Resource::DEVICE_CLASSES, class).await;
}

#[tokio::test]
async fn claim_is_created_for_extended_resources() {
    let api = testkit::RealApi::start().await.unwrap();
    let (client, running) = (api.user("system:kube-scheduler"), api.tasks());
    api.tasks()
        .spawn("scheduler", async move { run(Config::default(), client, &running).await.unwrap() });
    let admin = api.admin();
    furnish(&admin).await;
    let resources = json!({"limits": {"example.com/gpu": "1"}});
    let pod = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i", "resources": resources}]}})
    };
    let first = make(&admin, &Resource::PODS, pod("first")).await;
    let bound = async |name: &str, pointer: &str| {
        let read = async || {
            let pod: Value = admin.get(&Resource::PODS, "default", name).await.unwrap();
            let is_there = pod.pointer(pointer).is_some_and(|value| !value.is_null());
            if is_there { Ok(pod) } else { Err(pod) }
        };
        let (limit, pause) = (Duration::from_secs(60), Duration::from_millis(20));
        rt::retry(limit, pause, |_| true, read).await.expect("the Pod is handled")
    };
    let found = bound("first", "/spec/nodeName").await;
    assert!(found["status"]["nominatedNodeName"].is_null(), "{found}");
    let status = &found["status"]["extendedResourceClaimStatus"];
    assert_eq!(
        status["requestMappings"],
        json!([{"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"}])
    );
    let name = status["resourceClaimName"].as_str().unwrap();
    assert!(name.starts_with("first-extended-resources-"), "{name}");
    let claim: Value = admin.get(&Resource::RESOURCE_CLAIMS, "default", name).await.unwrap();
    let meta = &claim["metadata"];
    assert_eq!(meta["annotations"]["resource.kubernetes.io/extended-resource-claim"], "true");
    assert_eq!(meta["ownerReferences"][0]["uid"], first["metadata"]["uid"]);
    assert_eq!(claim["status"]["allocation"]["devices"]["results"][0]["device"], "only");
    assert_eq!(claim["status"]["reservedFor"][0]["uid"], first["metadata"]["uid"]);
    // The next Pod waits for the device.
    make(&admin, &Resource::PODS, pod("second")).await;
    let waiting = bound("second", "/status/conditions/0/message").await;
    let message = waiting["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(message.contains("cannot allocate all claims"), "{message}");
    assert!(waiting["spec"]["nodeName"].is_null());
    let left = api.stop().await;
    assert!(left.unfinished.is_empty(), "{left:?}");
}

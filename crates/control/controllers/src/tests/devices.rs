//! Tests ResourceClaims with their controllers; the test acts as the scheduler.

use super::*;

const CLAIMS: Resource = Resource::RESOURCE_CLAIMS;
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

fn pod(name: &str, claim: Value) -> Value {
    let mut own = json!({"name": "gpu"});
    own.as_object_mut().unwrap().extend(claim.as_object().unwrap().clone());
    json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "wait"}], "resourceClaims": [own]}})
}

fn get(api: &FakeApi, resource: &Resource, name: &str) -> Value {
    api.get(resource, "default", name).unwrap_or_default()
}

async fn status(api: &FakeApi, resource: &Resource, name: &str, status: Value) {
    let at = PatchTarget { namespace: "default", name, subresource: "status" };
    api.merge(resource, at, json!({"status": status})).await;
}

/// Allocates a claim as the scheduler does.
async fn allocate(api: &FakeApi, claim: &str, pod: &str) {
    let at = PatchTarget { namespace: "default", name: claim, subresource: "" };
    api.merge(&CLAIMS, at, json!({"metadata": {"finalizers": [FINALIZER]}})).await;
    let uid = get(api, &Resource::PODS, pod)["metadata"]["uid"].clone();
    let results = json!([{"request": "r", "driver": "d", "pool": "p", "device": "x"}]);
    let written = json!({"allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}]});
    status(api, &CLAIMS, claim, written).await;
}

fn claim_name_of(api: &FakeApi, pod: &str) -> Option<String> {
    let pod = get(api, &Resource::PODS, pod);
    pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn claim_is_created_deallocated_and_deleted() {
    let cluster = Cluster::start(&["resourceclaim-controller"], Config::default());
    let api = &cluster.api;
    let template = json!({"resourceClaimTemplateName": "t"});
    api.create(&Resource::PODS, pod("p", template.clone())).await;
    api.until("the missing template is reported", |api| {
        let events = events(api, "FailedResourceClaimCreation");
        events.iter().any(|message| {
            message.starts_with("PodResourceClaim gpu: resource claim template \"t\": ")
        })
    })
    .await;
    let spec =
        json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
    api.create(
        &Resource::RESOURCE_CLAIM_TEMPLATES,
        json!({"metadata": {"name": "t", "namespace": "default"},
        "spec": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": spec}}),
    )
    .await;
    api.until("its claim is made", |api| claim_name_of(api, "p").is_some()).await;
    let name = claim_name_of(api, "p").unwrap();
    let claim = get(api, &CLAIMS, &name);
    assert!(name.starts_with("p-gpu-"), "{name}");
    assert_eq!(claim["spec"], spec);
    assert_eq!(claim["metadata"]["labels"], json!({"a": "b"}));
    let annotations = json!({"c": "d", "resource.kubernetes.io/pod-claim-name": "gpu"});
    assert_eq!(claim["metadata"]["annotations"], annotations);
    assert_eq!(claim["metadata"]["ownerReferences"][0]["kind"], "Pod");
    assert_eq!(api.list(&CLAIMS, "default").len(), 1);
    // A claim deleted while its Pod lives is recreated.
    let user = api.client("user");
    user.delete(&CLAIMS, "default", &name, &Default::default()).await.unwrap();
    api.until("it is made again", |api| {
        claim_name_of(api, "p")
            .is_some_and(|again| again != name && get(api, &CLAIMS, &again).is_object())
    })
    .await;
    let name = claim_name_of(api, "p").unwrap();
    allocate(api, &name, "p").await;
    // The Pod ends: its claim is not needed any more, although the Pod stays.
    status(api, &Resource::PODS, "p", json!({"phase": "Succeeded"})).await;
    api.until("the claim is gone", |api| api.list(&CLAIMS, "default").is_empty()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn shared_claim_is_deallocated_after_last_pod() {
    let cluster = Cluster::start(&["resourceclaim-controller"], Config::default());
    let api = &cluster.api;
    api.create(&CLAIMS, json!({"metadata": {"name": "c", "namespace": "default"}})).await;
    let named = json!({"resourceClaimName": "c"});
    for name in ["first", "second"] {
        api.create(&Resource::PODS, pod(name, named.clone())).await;
    }
    allocate(api, "c", "first").await;
    // The second Pod is bound without the scheduler.
    let at = PatchTarget { namespace: "default", name: "second", subresource: "" };
    api.merge(&Resource::PODS, at, json!({"spec": {"nodeName": "n"}})).await;
    api.until("the claim is reserved for it", |api| {
        get(api, &CLAIMS, "c")["status"]["reservedFor"].as_array().map(Vec::len) == Some(2)
    })
    .await;
    let user = api.client("user");
    user.delete(&Resource::PODS, "default", "first", &Default::default()).await.unwrap();
    api.until("the first has left", |api| {
        get(api, &CLAIMS, "c")["status"]["reservedFor"].as_array().map(Vec::len) == Some(1)
    })
    .await;
    assert!(get(api, &CLAIMS, "c")["status"]["allocation"].is_object(), "the second uses it");
    // A deleted claim waits for its last user.
    user.delete(&CLAIMS, "default", "c", &Default::default()).await.unwrap();
    assert!(get(api, &CLAIMS, "c").is_object());
    user.delete(&Resource::PODS, "default", "second", &Default::default()).await.unwrap();
    api.until("it is gone", |api| get(api, &CLAIMS, "c").is_null()).await;
    // A claim that is not deleted becomes free for other Pods.
    api.create(&CLAIMS, json!({"metadata": {"name": "d", "namespace": "default"}})).await;
    api.create(&Resource::PODS, pod("third", json!({"resourceClaimName": "d"}))).await;
    allocate(api, "d", "third").await;
    user.delete(&Resource::PODS, "default", "third", &Default::default()).await.unwrap();
    api.until("it has no devices", |api| {
        let claim = get(api, &CLAIMS, "d");
        claim["status"]["allocation"].is_null()
            && claim["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn ignores_claim_of_other_owner() {
    let cluster = Cluster::start(&["resourceclaim-controller"], Config::default());
    let api = &cluster.api;
    let template = json!({"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": {}}});
    api.create(&Resource::RESOURCE_CLAIM_TEMPLATES, template).await;
    api.create(&CLAIMS, json!({"metadata": {"name": "foreign", "namespace": "default"}})).await;
    let mut user = pod("p", json!({"resourceClaimTemplateName": "t"}));
    // A client that may write a Pod's status names another claim.
    user["status"] =
        json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "foreign"}]});
    api.create(&Resource::PODS, user).await;
    api.until("it has one of its own", |api| {
        claim_name_of(api, "p").is_some_and(|name| name != "foreign")
    })
    .await;
    assert!(get(api, &CLAIMS, "foreign").is_object());
    cluster.stop().await;
}

#[tokio::test]
async fn evicts_pods_of_tainted_device() {
    let cluster = Cluster::start(&["device-taint-eviction-controller"], Config::default());
    let api = &cluster.api;
    let slice = |taints: Value| {
        json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "x", "taints": taints}, {"name": "y"}]}})
    };
    api.create(&Resource::RESOURCE_SLICES, slice(json!([]))).await;
    for name in ["user", "bystander"] {
        api.create(&CLAIMS, json!({"metadata": {"name": name, "namespace": "default"}})).await;
        api.create(&Resource::PODS, pod(name, json!({"resourceClaimName": name}))).await;
        allocate(api, name, name).await;
    }
    let other = json!({"allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "y"}]}}});
    status(api, &CLAIMS, "bystander", other).await;
    let at = PatchTarget { namespace: "", name: "s", subresource: "" };
    let taints =
        json!([{"key": "broken", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]);
    api.merge(&Resource::RESOURCE_SLICES, at, json!({"spec": slice(taints)["spec"]})).await;
    api.until("the Pod is gone", |api| get(api, &Resource::PODS, "user").is_null()).await;
    assert_eq!(events(api, "DeviceTaintManagerEviction").len(), 1);
    assert!(get(api, &Resource::PODS, "bystander").is_object());
    cluster.stop().await;
}

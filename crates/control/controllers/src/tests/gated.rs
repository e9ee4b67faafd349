//! Tests controllers of features that are off by default.

use api_config::FeatureGates;

use super::*;

const MIGRATIONS: Resource = Resource::STORAGE_VERSION_MIGRATIONS;
const BUNDLES: Resource = Resource::CLUSTER_TRUST_BUNDLES;

fn with_gate(gate: &str) -> Config {
    let features = FeatureGates::parse([format!("{gate}=true").as_str()]).unwrap();
    Config { features, root_ca: Some("the CA".into()), ..Config::default() }
}

fn migration(name: &str, group: &str, plural: &str) -> Value {
    json!({"metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"resource": {"group": group, "resource": plural}}})
}

fn condition(api: &FakeApi, name: &str, kind: &str) -> Option<String> {
    let migration = api.get(&MIGRATIONS, "", name)?;
    let conditions = migration["status"]["conditions"].as_array()?.clone();
    let found = conditions.into_iter().find(|c| c["type"] == kind)?;
    found["status"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn migration_applies_all_older_objects() {
    let api = FakeApi::default();
    for name in ["a", "b"] {
        let map = json!({"metadata": {"name": name, "namespace": "default"}});
        api.create(&Resource::CONFIG_MAPS, map).await;
    }
    let config = with_gate("StorageVersionMigrator");
    let cluster = Cluster::start_on(api, &["storage-version-migrator-controller"], config);
    let api = &cluster.api;
    api.create(&MIGRATIONS, migration("maps", "", "configmaps")).await;
    api.create(&MIGRATIONS, migration("none", "example.com", "widgets")).await;
    api.until("the migration succeeds", |api| {
        condition(api, "maps", "Succeeded").as_deref() == Some("True")
    })
    .await;
    assert_eq!(condition(api, "maps", "Running").as_deref(), Some("False"));
    let applied = |name: &str| format!("PATCH /api/v1/namespaces/default/configmaps/{name}");
    let writes = api.writes();
    for name in ["a", "b"] {
        assert!(writes.iter().any(|write| write.starts_with(&applied(name))), "{writes:?}");
    }
    api.until("the migration of an unknown resource fails", |api| {
        condition(api, "none", "Failed").as_deref() == Some("True")
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn bundle_of_the_ca_is_published_and_old_ones_are_deleted() {
    let api = FakeApi::default();
    let signer = "kubernetes.io/kube-apiserver-serving";
    let old = json!({"metadata": {"name": "kubernetes.io:kube-apiserver-serving:old"},
        "spec": {"signerName": signer, "trustBundle": "the former CA"}});
    let foreign = json!({"metadata": {"name": "foreign"}, "spec": {"trustBundle": "x"}});
    api.create(&BUNDLES, old).await;
    api.create(&BUNDLES, foreign).await;
    let name = "kube-apiserver-serving-clustertrustbundle-publisher-controller";
    let cluster = Cluster::start_on(api, &[name], with_gate("ClusterTrustBundle"));
    let contents = |api: &FakeApi| -> Vec<String> {
        let bundles = api.list(&BUNDLES, "").into_iter();
        let mut texts: Vec<_> = bundles
            .map(|bundle| bundle["spec"]["trustBundle"].as_str().unwrap_or_default().to_owned())
            .collect();
        texts.sort();
        texts
    };
    cluster.api.until("the bundle is current", |api| contents(api) == ["the CA", "x"]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn controllers_of_features_that_are_off_do_not_run() {
    let names = ["storage-version-migrator-controller", "serviceaccount-controller"];
    let cluster = Cluster::start(&names, Config::default());
    let api = &cluster.api;
    api.create(&MIGRATIONS, migration("maps", "", "configmaps")).await;
    api.create(&Resource::NAMESPACES, json!({"metadata": {"name": "default"}})).await;
    api.until("another controller has run", |api| {
        api.get(&Resource::SERVICE_ACCOUNTS, "default", "default").is_some()
    })
    .await;
    assert_eq!(condition(api, "maps", "Running"), None);
    cluster.stop().await;
}

#[tokio::test]
async fn rule_evicts_pods_from_the_device() {
    let api = FakeApi::default();
    let pod = json!({"metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "r", "resourceClaimName": "c"}]}});
    let pod = api.create(&Resource::PODS, pod).await;
    let results = json!([{"request": "r", "driver": "d", "pool": "p", "device": "x"}]);
    let claim = json!({"metadata": {"name": "c", "namespace": "default"},
        "status": {"allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}]}});
    api.create(&Resource::RESOURCE_CLAIMS, claim).await;
    let pool =
        |generation: i64| json!({"name": "p", "generation": generation, "resourceSliceCount": 1});
    for generation in [1, 2] {
        let slice = json!({"metadata": {"name": format!("s{generation}")}, "spec": {"driver": "d",
            "pool": pool(generation), "devices": [{"name": "x"}]}});
        api.create(&Resource::RESOURCE_SLICES, slice).await;
    }
    let config = with_gate("DRADeviceTaintRules");
    let cluster = Cluster::start_on(api, &["device-taint-eviction-controller"], config);
    let rule = |name: &str, device: &str, effect: &str| {
        json!({"metadata": {"name": name}, "spec": {"deviceSelector": {"driver": "d", "device": device},
            "taint": {"key": "sick", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"}}})
    };
    let api = &cluster.api;
    api.create(&Resource::DEVICE_TAINT_RULES, rule("other", "y", "NoExecute")).await;
    api.create(&Resource::DEVICE_TAINT_RULES, rule("mild", "x", "None")).await;
    api.create(&Resource::DEVICE_TAINT_RULES, rule("harsh", "x", "NoExecute")).await;
    api.until("the Pod is evicted", |api| {
        api.get(&Resource::PODS, "default", "p")
            .is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
    })
    .await;
    // The dry run counts once, whether the Pod is still there or not; the other rules have none.
    api.until("the rules have a status", |api| {
        ["other", "mild", "harsh"].iter().all(|name| rule_condition(api, name) != Value::Null)
    })
    .await;
    assert_eq!(rule_condition(api, "other")["reason"], "NotStarted");
    let mild = rule_condition(api, "mild");
    assert_eq!((&mild["status"], &mild["reason"]), (&json!("False"), &json!("NoEffect")));
    let message = mild["message"].as_str().unwrap();
    assert!(
        message.starts_with("1 published device selected. 1 allocated device selected."),
        "{message}"
    );
    cluster.stop().await;
}

/// Returns the condition of a DeviceTaintRule; null if it has none.
fn rule_condition(api: &FakeApi, name: &str) -> Value {
    let rule = api.get(&Resource::DEVICE_TAINT_RULES, "", name).unwrap_or_default();
    rule["status"]["conditions"][0].clone()
}

#[tokio::test]
async fn old_requests_for_certificates_of_pods_are_deleted() {
    const REQUESTS: Resource = Resource::POD_CERTIFICATE_REQUESTS;
    let api = FakeApi::default();
    let request = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}});
    for number in 0..500 {
        api.create(&REQUESTS, request(&format!("old{number}"))).await;
    }
    let name = "podcertificaterequest-cleaner-controller";
    let cluster = Cluster::start_on(api, &[name], with_gate("PodCertificateRequest"));
    cluster.api.until("old requests are deleted", |api| api.list(&REQUESTS, "").is_empty()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn pod_group_stays_until_its_pods_have_ended() {
    const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";
    let api = FakeApi::default();
    let group = json!({"metadata": {"name": "g", "namespace": "default"}});
    api.create(&Resource::POD_GROUPS, group).await;
    let pod = |name: &str, group: &str| {
        json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"schedulingGroup": {"podGroupName": group}, "containers": []}})
    };
    api.create(&Resource::PODS, pod("member", "g")).await;
    api.create(&Resource::PODS, pod("other", "h")).await;
    let name = "podgroup-protection-controller";
    let cluster = Cluster::start_on(api, &[name], with_gate("GenericWorkload"));
    let api = &cluster.api;
    let finalizers = |api: &FakeApi| {
        let group = api.get(&Resource::POD_GROUPS, "default", "g")?;
        Some(group["metadata"]["finalizers"].clone())
    };
    api.until("the group is protected", |api| finalizers(api) == Some(json!([FINALIZER]))).await;
    let user = api.client("user");
    let options = client::DeleteOptions::default();
    user.delete(&Resource::POD_GROUPS, "default", "g", &options).await.unwrap();
    assert_eq!(finalizers(api), Some(json!([FINALIZER])));
    let member =
        client::PatchTarget { namespace: "default", name: "member", subresource: "status" };
    api.merge(&Resource::PODS, member, json!({"status": {"phase": "Succeeded"}})).await;
    api.until("the group is gone", |api| finalizers(api).is_none()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn request_for_pools_is_answered_once() {
    const REQUESTS: Resource = Resource::RESOURCE_POOL_STATUS_REQUESTS;
    let api = FakeApi::default();
    let slice = |name: &str, count: i64| {
        json!({"metadata": {"name": name}, "spec": {"driver": "d", "nodeName": "n",
            "pool": {"name": name, "generation": 1, "resourceSliceCount": count},
            "devices": [{"name": "x"}, {"name": "y"}]}})
    };
    api.create(&Resource::RESOURCE_SLICES, slice("whole", 1)).await;
    api.create(&Resource::RESOURCE_SLICES, slice("part", 2)).await;
    let request =
        |name: &str| json!({"metadata": {"name": name}, "spec": {"driver": "d", "limit": 100}});
    api.create(&REQUESTS, request("old")).await;
    let name = "resourcepoolstatusrequest-controller";
    let cluster = Cluster::start_on(api, &[name], with_gate("DRAResourcePoolStatus"));
    let api = &cluster.api;
    api.until("the old request is deleted", |api| api.list(&REQUESTS, "").is_empty()).await;
    // Objects of this API are months old, but the next search for old requests is in ten minutes.
    api.create(&REQUESTS, request("r")).await;
    let status = |api: &FakeApi| api.get(&REQUESTS, "", "r").unwrap_or_default()["status"].clone();
    api.until("the request is answered", |api| status(api)["poolCount"] == 2).await;
    let answer = status(api);
    assert!(answer["pools"][0]["validationError"].is_string(), "{answer}");
    assert_eq!(answer["pools"][1]["availableDevices"], 2);
    assert_eq!(answer["conditions"][0]["message"], "Calculated status for 2 pools (1 incomplete)");
    cluster.stop().await;
}

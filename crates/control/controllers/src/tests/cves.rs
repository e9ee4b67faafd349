//! Regression tests for published vulnerabilities of Kubernetes controllers, one test for each CVE.

use super::*;

/// CVE-2024-7598: the NetworkPolicies of a terminating namespace were deleted before the Pods that they protect.
#[tokio::test]
async fn cve_2024_7598_deletes_pods_before_network_policies() {
    let cluster = Cluster::start(&["namespace-controller"], Config::default());
    let api = &cluster.api;
    let within = |name: &str, finalizers: &[&str]| json!({"metadata": {"name": name, "namespace": "a", "finalizers": finalizers}, "spec": {}});
    api.create(&Resource::NAMESPACES, json!({"metadata": {"name": "a"}})).await;
    api.create(&Resource::NETWORK_POLICIES, within("guard", &[])).await;
    api.create(&Resource::PODS, within("ending", &["example.com/hold"])).await;
    api.client("user").delete(&Resource::NAMESPACES, "", "a", &Default::default()).await.unwrap();
    api.until("the Pod is what holds the namespace", |api| {
        let namespace = api.get(&Resource::NAMESPACES, "", "a").unwrap_or_default();
        let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "NamespaceContentRemaining" && c["status"] == "True")
    })
    .await;
    let pod = api.get(&Resource::PODS, "a", "ending").unwrap();
    assert!(pod["metadata"]["deletionTimestamp"].is_string(), "{pod}");
    assert!(
        api.get(&Resource::NETWORK_POLICIES, "a", "guard").is_some(),
        "it is deleted after the Pod"
    );
    let at = PatchTarget { namespace: "a", name: "ending", subresource: "" };
    api.merge(&Resource::PODS, at, json!({"metadata": {"finalizers": null}})).await;
    api.until("it is gone", |api| api.get(&Resource::NAMESPACES, "", "a").is_none()).await;
    assert!(api.get(&Resource::NETWORK_POLICIES, "a", "guard").is_none());
    cluster.stop().await;
}

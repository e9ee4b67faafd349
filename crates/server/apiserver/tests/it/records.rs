//! Objects that the server itself maintains: IPAddresses, APIServices, identity Leases and conditions of flow schemas.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    custom::{DEFINITIONS, define},
    harness::{Api, admin, start},
};

/// Repeats a get until the response is the wanted one, and returns it.
pub(crate) async fn until(api: &Api, path: &str, wanted: impl Fn(u16, &Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let answer = api.get(path).await;
        let tree = answer.json();
        if wanted(answer.code, &tree) {
            return tree;
        }
        assert!(started.elapsed().as_secs() < 30, "{path}: {tree}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";

fn service(name: &str, address: Option<&str>) -> Value {
    json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": name}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn maintains_ip_addresses_of_services() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let services = format!("/api/v1/namespaces/{namespace}/services");
    let made = api.post(&services, &service("a", None)).await.ok();
    let ip = made["spec"]["clusterIP"].as_str().unwrap();
    let at = format!("{ADDRESSES}/{ip}");
    let found = until(&api, &at, |code, _| code == 200).await;
    let parent = json!({"resource": "services", "namespace": namespace, "name": "a"});
    assert_eq!(found["spec"]["parentRef"], parent);
    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    assert_eq!(found["metadata"]["labels"], labels);
    // A deleted IPAddress is created again.
    api.delete(&at, &json!({})).await.ok();
    let uid = &found["metadata"]["uid"];
    until(&api, &at, |code, now| code == 200 && now["metadata"]["uid"] != *uid).await;
    api.delete(&format!("{services}/a"), &json!({})).await.ok();
    until(&api, &at, |code, _| code == 404).await;
    // The API server's own Service has an IPAddress from the start.
    until(&api, &format!("{ADDRESSES}/10.96.0.1"), |code, _| code == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn skips_allocated_addresses_and_uses_new_ranges() {
    let server = start(|_| {}).await;
    let api = server.admin();
    let services = format!("/api/v1/namespaces/{}/services", api.namespace().await);
    let address = |name: &str, resource: &str, parent: &str| {
        json!({"kind": "IPAddress", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": name},
            "spec": {"parentRef": {"group": "example.com", "resource": resource, "name": parent}}})
    };
    api.post(ADDRESSES, &address("10.96.0.77", "gateways", "g")).await.ok();
    api.get(ADDRESSES).await.ok();
    let taken = api.post(&services, &service("a", Some("10.96.0.77"))).await;
    let taken = taken.refused(422, "Invalid");
    let detail = "spec.clusterIPs: Invalid value: [\"10.96.0.77\"]: failed to allocate IP 10.96.0.77: provided IP is already allocated";
    assert!(taken.contains(detail), "{taken}");
    api.delete(&format!("{ADDRESSES}/10.96.0.77"), &json!({})).await.ok();
    api.get(ADDRESSES).await.ok();
    api.post(&services, &service("a", Some("10.96.0.77"))).await.ok();
    // Added ranges are used until they are deleted.
    let outside = service("b", Some("10.200.0.7"));
    api.post(&services, &outside).await.refused(422, "Invalid");
    let range = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "more"}, "spec": {"cidrs": ["10.200.0.0/24"]}});
    api.post(RANGES, &range).await.ok();
    api.get(RANGES).await.ok();
    api.post(&services, &outside).await.ok();
    api.post(&services, &service("c", Some("10.200.0.0"))).await.refused(422, "Invalid");
    api.post(&services, &service("c", Some("10.200.0.255"))).await.refused(422, "Invalid");
    api.delete(&format!("{RANGES}/more"), &json!({})).await.ok();
    api.get(RANGES).await.ok();
    api.post(&services, &service("c", Some("10.200.0.8"))).await.refused(422, "Invalid");
    let default = api.get(&format!("{RANGES}/kubernetes")).await.ok();
    let ready = &default["status"]["conditions"][0];
    assert_eq!((&ready["type"], &ready["status"]), (&json!("Ready"), &json!("True")));
    assert_eq!(ready["message"], "Kubernetes default Service CIDR is ready");
    server.tasks.shutdown().stop();
}

pub(crate) const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

#[tokio::test(flavor = "multi_thread")]
async fn maintains_api_services() {
    let api = admin();
    for (name, of_group, of_version) in
        [("v1.", 18_000, 1), ("v2.autoscaling", 17_500, 30), ("v1.apps", 17_800, 15)]
    {
        let found = until(&api, &format!("{API_SERVICES}/{name}"), |code, _| code == 200).await;
        assert_eq!(found["spec"]["groupPriorityMinimum"], of_group, "{name}");
        assert_eq!(found["spec"]["versionPriority"], of_version, "{name}");
        let label = "kube-aggregator.kubernetes.io/automanaged";
        assert_eq!(found["metadata"]["labels"][label], "onstart");
        let condition = &found["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["reason"]),
            (&json!("Available"), &json!("Local"))
        );
    }
    let version = json!({"name": "v3", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let crd = json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": "locals.local.example.com"},
        "spec": {"group": "local.example.com", "scope": "Cluster", "names": {"plural": "locals", "kind": "Local"}, "versions": [version]},
    });
    let name = define(&api, &crd).await;
    let at = format!("{API_SERVICES}/v3.local.example.com");
    let found = until(&api, &at, |code, _| code == 200).await;
    assert_eq!(
        found["spec"],
        json!({"group": "local.example.com", "version": "v3", "groupPriorityMinimum": 1000, "versionPriority": 100})
    );
    api.delete(&format!("{DEFINITIONS}/{name}"), &json!({})).await.ok();
    until(&api, &at, |code, _| code == 404).await;
    until(&api, &format!("{API_SERVICES}/v1."), |code, _| code == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn maintains_identity_lease() {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io/identity%3Dkube-apiserver";
    let some = |_: u16, list: &Value| list["items"].as_array().is_some_and(|l| !l.is_empty());
    let list = until(&admin(), leases, some).await;
    let lease = &list["items"][0];
    let name = lease["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("apiserver-"), "{name}");
    assert!(lease["spec"]["holderIdentity"].as_str().unwrap().starts_with(name));
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3600);
    // Expired Leases are deleted.
    let server = start(|_| {}).await;
    let api = server.admin();
    let mut old = lease.clone();
    old["metadata"] = json!({"name": "apiserver-old", "namespace": "kube-system", "labels": lease["metadata"]["labels"]});
    old["spec"]["renewTime"] = json!("2020-01-01T00:00:00.000000Z");
    let all = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    api.post(all, &old).await.ok();
    until(&api, &format!("{all}/apiserver-old"), |code, _| code == 404).await;
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_dangling_condition_of_flow_schemas() {
    let api = admin();
    let group = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let says = |status: &'static str, reason: &'static str| {
        move |_: u16, schema: &Value| {
            let condition = &schema["status"]["conditions"][0];
            (&condition["type"], &condition["status"], &condition["reason"])
                == (&json!("Dangling"), &json!(status), &json!(reason))
        }
    };
    until(&api, &format!("{group}/flowschemas/catch-all"), says("False", "Found")).await;
    let schema = json!({"kind": "FlowSchema", "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "metadata": {"name": "dangler"},
        "spec": {"matchingPrecedence": 9000, "priorityLevelConfiguration": {"name": "nosuch-level"}}});
    api.post(&format!("{group}/flowschemas"), &schema).await.ok();
    let at = format!("{group}/flowschemas/dangler");
    let dangling = until(&api, &at, says("True", "NotFound")).await;
    assert_eq!(
        dangling["status"]["conditions"][0]["message"],
        "This FlowSchema references the PriorityLevelConfiguration object named \"nosuch-level\" but there is no such object"
    );
    let level = json!({"kind": "PriorityLevelConfiguration", "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "metadata": {"name": "nosuch-level"},
        "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}}}});
    api.post(&format!("{group}/prioritylevelconfigurations"), &level).await.ok();
    until(&api, &at, says("False", "Found")).await;
}

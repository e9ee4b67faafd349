//! Addresses and ports of Services.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{admin, start};

fn service(name: &str, spec: Value) -> Value {
    let mut service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}});
    for (field, value) in spec.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    service
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_given_kept_and_returned() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/api/v1/namespaces/{namespace}/services");
    let made = api.post(&path, &service("a", json!({}))).await.ok();
    let ip = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert!(ip.starts_with("10.96."), "{ip}");
    assert_eq!(
        (&made["spec"]["clusterIPs"], &made["spec"]["ipFamilies"]),
        (&json!([ip]), &json!(["IPv4"]))
    );
    let taken =
        api.post(&path, &service("b", json!({"clusterIP": ip}))).await.refused(422, "Invalid");
    assert!(taken.contains("provided IP is already allocated"), "{taken}");
    let outside = api
        .post(&path, &service("b", json!({"clusterIP": "10.1.0.1"})))
        .await
        .refused(422, "Invalid");
    let detail = "spec.clusterIPs: Invalid value: [\"10.1.0.1\"]: failed to allocate IP 10.1.0.1: the provided network does not match the current range";
    assert!(outside.contains(detail), "{outside}");
    // An update that leaves the address out keeps it; one that changes it is refused.
    assert_eq!(
        api.put(&format!("{path}/a"), &service("a", json!({}))).await.ok()["spec"]["clusterIP"],
        json!(ip)
    );
    let other = service("a", json!({"clusterIP": "10.96.77.77"}));
    api.put(&format!("{path}/a"), &other).await.refused(422, "Invalid");
    api.delete(&format!("{path}/a"), &json!({})).await.ok();
    api.get(&path).await.ok();
    api.post(&path, &service("b", json!({"clusterIP": ip}))).await.ok();
    let headless = api.post(&path, &service("h", json!({"clusterIP": "None"}))).await.ok();
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    let external = api
        .post(&path, &service("e", json!({"type": "ExternalName", "externalName": "x.example"})))
        .await
        .ok();
    assert!(external["spec"].get("clusterIP").is_none_or(|ip| ip == ""), "{external}");
}

#[tokio::test(flavor = "multi_thread")]
async fn node_ports() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let path = format!("/api/v1/namespaces/{namespace}/services");
    let made = api.post(&path, &service("a", json!({"type": "NodePort"}))).await.ok();
    let port = made["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30_000..=32_767).contains(&port));
    let wanted = |port: u64| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    let taken = api.post(&path, &service("b", wanted(port))).await.refused(422, "Invalid");
    assert!(taken.contains("provided port is already allocated"), "{taken}");
    let outside = api.post(&path, &service("b", wanted(80))).await.refused(422, "Invalid");
    assert!(outside.contains("The range of valid ports is 30000-32767"), "{outside}");
    let both = json!({"type": "NodePort", "ports": [
        {"name": "t", "port": 53, "protocol": "TCP", "nodePort": 30053},
        {"name": "u", "port": 53, "protocol": "UDP", "nodePort": 30053},
    ]});
    api.post(&path, &service("dns", both)).await.ok();
    // What becomes a ClusterIP gives its port back.
    let back =
        api.put(&format!("{path}/a"), &service("a", json!({"type": "ClusterIP"}))).await.ok();
    assert!(back["spec"]["ports"][0].get("nodePort").is_none(), "{back}");
    api.get(&path).await.ok();
    api.post(&path, &service("b", wanted(port))).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_given_twice() {
    let server = start(|config| {
        config.service_cidrs = vec!["10.96.0.0/27".parse().unwrap()];
        config.node_ports = (30_000, 30_019);
    })
    .await;
    let api = server.admin();
    let path = format!("/api/v1/namespaces/{}/services", api.namespace().await);
    let creates = (0..40).map(|i| {
        let (api, path) = (api.clone(), path.clone());
        tokio::spawn(async move {
            api.post(&path, &service(&format!("s{i}"), json!({"type": "NodePort"}))).await
        })
    });
    let answers = futures_util::future::join_all(creates).await;
    let (mut addresses, mut ports, mut made) = (BTreeSet::new(), BTreeSet::new(), 0);
    for answer in answers.into_iter().map(Result::unwrap) {
        if answer.code == 201 {
            let service = answer.json();
            made += 1;
            addresses.insert(service["spec"]["clusterIP"].to_string());
            ports.insert(service["spec"]["ports"][0]["nodePort"].as_u64().unwrap());
        } else {
            assert!(answer.refused(500, "InternalError").contains("range is full"));
        }
    }
    // The 20 ports run out before the 29 addresses that the kubernetes Service leaves.
    assert_eq!((made, addresses.len(), ports.len()), (20, 20, 20));
    server.tasks.shutdown().stop();
}

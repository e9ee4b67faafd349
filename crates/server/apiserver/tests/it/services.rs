//! Addresses and ports of Services.

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::harness::{admin, start};

pub(crate) fn service(name: &str, spec: Value) -> Value {
    let mut service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}});
    for (field, value) in spec.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    service
}

#[tokio::test(flavor = "multi_thread")]
async fn allocates_keeps_and_releases_addresses() {
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
    // An update without the address keeps it; an update that changes it is rejected.
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
async fn allocates_and_releases_node_ports() {
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
    // A Service that becomes a ClusterIP releases its port.
    let back =
        api.put(&format!("{path}/a"), &service("a", json!({"type": "ClusterIP"}))).await.ok();
    assert!(back["spec"]["ports"][0].get("nodePort").is_none(), "{back}");
    api.get(&path).await.ok();
    api.post(&path, &service("b", wanted(port))).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn allocates_nothing_twice() {
    let server = start(|config| {
        config.service_cidrs = vec!["10.96.0.0/26".parse().unwrap()];
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
    // The 20 ports run out before the 61 addresses that the kubernetes Service leaves.
    assert_eq!((made, addresses.len(), ports.len()), (20, 20, 20));
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn allocates_nothing_twice_when_clients_disconnect() {
    let server = start(|_| {}).await;
    let api = server.admin();
    let path = format!("/api/v1/namespaces/{}/services", api.namespace().await);
    let at = |round: u32| Ipv4Addr::from_bits(0x0a60_0701 + round).to_string();
    let wanted = |name: &str, round: u32| {
        service(&format!("{name}-{round}"), json!({"clusterIP": at(round)}))
    };
    // Clients disconnect at increasing times, until one has waited for the whole request.
    let asked = Instant::now();
    api.post(&path, &wanted("first", 0)).await.ok();
    let whole = asked.elapsed();
    for round in 1.. {
        let patience = whole * round / 20;
        let first = wanted("first", round);
        let mut asking = Box::pin(api.post(&path, &first));
        let asked = Instant::now();
        let mut answered = false;
        while !answered && asked.elapsed() < patience {
            answered = futures_util::poll!(&mut asking).is_ready();
            tokio::task::yield_now().await;
        }
        drop(asking);
        let owners = || async {
            let listed = api.get(&path).await.ok();
            let all = listed["items"].as_array().into_iter().flatten();
            all.filter(|service| service["spec"]["clusterIP"] == at(round).as_str()).count()
        };
        // The rejection is due to the first Service, or to an allocation that is not released yet.
        let settled = async {
            while api.post(&path, &wanted("second", round)).await.code == 422 {
                if owners().await > 0 {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), settled).await.unwrap();
        assert_eq!(owners().await, 1, "after {patience:?}");
        if answered {
            break;
        }
    }
    server.tasks.shutdown().stop();
}

const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";

#[tokio::test(flavor = "multi_thread")]
async fn allocates_second_family_on_request() {
    let server = start(|_| {}).await;
    let api = server.admin();
    let path = format!("/api/v1/namespaces/{}/services", api.namespace().await);
    let policy = |name: &str| json!({"ipFamilyPolicy": name});
    let families = |service: &Value| service["spec"]["ipFamilies"].clone();
    api.post(&path, &service("early", policy("PreferDualStack"))).await.ok();
    api.post(&path, &service("plain", json!({}))).await.ok();
    api.post(&path, &service("both", policy("RequireDualStack"))).await.refused(422, "Invalid");
    server.tasks.shutdown().stop();

    let server =
        server.beside_with(|config| config.service_cidrs.push("fd96::/108".parse().unwrap())).await;
    let api = server.admin();
    let range = api.get(&format!("{RANGES}/kubernetes")).await.ok();
    assert_eq!(range["spec"]["cidrs"], json!(["10.96.0.0/16", "fd96::/108"]));
    let (one, two) = (json!(["IPv4"]), json!(["IPv4", "IPv6"]));
    // As observed with upstream's API server v1.36.2: an unrelated update changes nothing.
    let labelled = api
        .patch(&format!("{path}/early"), "merge", &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .ok();
    assert_eq!(families(&labelled), one);
    let upgraded = api
        .patch(&format!("{path}/plain"), "merge", &json!({"spec": policy("PreferDualStack")}))
        .await
        .ok();
    assert_eq!(families(&upgraded), two);
    let second = upgraded["spec"]["clusterIPs"][1].as_str().unwrap();
    assert!(second.starts_with("fd96::"), "{second}");
    let back = api
        .patch(&format!("{path}/plain"), "merge", &json!({"spec": policy("SingleStack")}))
        .await
        .ok();
    assert_eq!(
        (families(&back), &back["spec"]["clusterIPs"]),
        (one, &json!([upgraded["spec"]["clusterIP"]]))
    );
    api.post(&path, &service("both", policy("RequireDualStack"))).await.ok();

    // A range may only be extended by a second family.
    let more = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}});
    api.post(RANGES, &more).await.ok();
    let cidrs = |list: Value| json!({"spec": {"cidrs": list}});
    let at = format!("{RANGES}/more");
    api.patch(&at, "merge", &cidrs(json!(["10.97.0.0/24", "fd97::/112"]))).await.ok();
    for (list, wrong) in [
        (
            json!(["10.97.0.0/24"]),
            "spec.cidrs: Invalid value: [\"10.97.0.0/24\"]: field is immutable",
        ),
        (
            json!(["10.97.1.0/24", "fd97::/112"]),
            "spec.cidrs[0]: Invalid value: \"10.97.1.0/24\": field is immutable",
        ),
    ] {
        let refused = api.patch(&at, "merge", &cidrs(list)).await.refused(422, "Invalid");
        assert!(refused.contains(wrong), "{refused}");
    }
    server.tasks.shutdown().stop();
}

use client::Resource;
use controllers::{Config, LoadBalancerSource};
use serde_json::{Value, json};
use testkit::until;

use crate::api::Cluster;

const CLEANUP: &str = "service.kubernetes.io/load-balancer-cleanup";

fn config(load_balancer: LoadBalancerSource) -> Config {
    let controllers = vec!["*".to_owned(), "service-lb-controller".to_owned()];
    Config { controllers, load_balancer, ..Config::default() }
}

fn service(name: &str, port: u16) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "finalizers": ["example.com/own"]},
        "spec": {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{"port": port}]}})
}

/// Returns the addresses in a Service's status, separated by spaces.
async fn addresses(cluster: &Cluster, name: &str) -> String {
    let service = cluster.get(&Resource::SERVICES, "default", name).await.unwrap_or_default();
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().cloned();
    let ips = ingress.unwrap_or_default();
    assert!(ips.iter().all(|ingress| ingress["ipMode"] == "VIP"), "{service}");
    ips.iter().filter_map(|ingress| ingress["ip"].as_str()).collect::<Vec<_>>().join(" ")
}

async fn wait_for(cluster: &Cluster, name: &str, expected: &str) {
    let what = format!("{name} has the addresses {expected:?}");
    until(&what, || async { addresses(cluster, name).await == expected }).await;
}

async fn finalizers(cluster: &Cluster, name: &str) -> Value {
    let service = cluster.get(&Resource::SERVICES, "default", name).await.unwrap_or_default();
    service["metadata"]["finalizers"].clone()
}

async fn add_node(cluster: &Cluster, ip: &str) {
    let node = json!({"metadata": {"name": "n"}, "status": {
        "addresses": [{"type": "InternalIP", "address": ip}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]}});
    cluster.create(&Resource::NODES, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_of_node_passes_to_waiting_service() {
    let cluster = Cluster::start(config(LoadBalancerSource::Nodes)).await;
    add_node(&cluster, "192.0.2.1").await;
    cluster.create(&Resource::SERVICES, service("first", 80)).await;
    wait_for(&cluster, "first", "192.0.2.1").await;
    assert_eq!(finalizers(&cluster, "first").await, json!(["example.com/own", CLEANUP]));
    cluster.create(&Resource::SERVICES, service("second", 80)).await;
    cluster.create(&Resource::SERVICES, service("other-port", 81)).await;
    let mut classed = service("classed", 82);
    classed["spec"]["loadBalancerClass"] = json!("example.com/lb");
    cluster.create(&Resource::SERVICES, classed).await;
    wait_for(&cluster, "other-port", "192.0.2.1").await;
    until("an Event says why the second waits", || async {
        let events = cluster.list(&Resource::EVENTS, "default").await;
        events.iter().any(|event| {
            event["involvedObject"]["name"] == "second"
                && event["reason"] == "SyncLoadBalancerFailed"
                && event["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("no node has all ports"))
        })
    })
    .await;
    assert_eq!(addresses(&cluster, "second").await, "");
    assert_eq!(addresses(&cluster, "classed").await, "");
    assert_eq!(finalizers(&cluster, "second").await, json!(["example.com/own"]));
    // The first one gives the port up when its type changes, and the second one when it is deleted.
    let spec = json!({"spec": {"type": "ClusterIP", "allocateLoadBalancerNodePorts": null}});
    cluster.merge(&Resource::SERVICES, "first", spec).await;
    wait_for(&cluster, "second", "192.0.2.1").await;
    wait_for(&cluster, "first", "").await;
    until("only the user's finalizer is left", || async {
        finalizers(&cluster, "first").await == json!(["example.com/own"])
    })
    .await;
    let own = json!({"metadata": {"finalizers": [CLEANUP]}});
    cluster.merge(&Resource::SERVICES, "second", own).await;
    cluster
        .user
        .delete(&Resource::SERVICES, "default", "second", &Default::default())
        .await
        .unwrap();
    until("the second is gone", || async {
        cluster.get(&Resource::SERVICES, "default", "second").await.is_none()
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_of_range_have_one_owner() {
    let range = "198.51.100.0/30".parse().unwrap();
    let cluster = Cluster::start(config(LoadBalancerSource::Ranges(vec![range]))).await;
    for name in ["a", "b", "c", "d"] {
        cluster.create(&Resource::SERVICES, service(name, 80)).await;
    }
    let all = async || {
        let mut all = Vec::new();
        for name in ["a", "b", "c", "d"] {
            all.push(addresses(&cluster, name).await);
        }
        all.sort();
        all
    };
    let expected = ["", "198.51.100.1", "198.51.100.2", "198.51.100.3"];
    until("three of four have an address", || async { all().await == expected }).await;
    cluster.stop().await;
}

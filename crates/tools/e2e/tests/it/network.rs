//! Services by address, name and node port, and cluster DNS.

use e2e::{shared, until};

#[test]
fn service_is_reachable_by_all_its_names_and_its_address() {
    let s = shared("network-names");
    s.deploy("web", "app:1", 2);
    s.kubectl("expose deployment web --port=80 --target-port=8080").ok();
    s.toolbox();
    for name in
        ["web", "web.network-names", "web.network-names.svc", "web.network-names.svc.cluster.local"]
    {
        assert!(s.fetch(name, "80").starts_with("version 1"));
    }
    let address = s.field("service web", "{.spec.clusterIP}");
    assert!(s.fetch(&address, "80").starts_with("version 1"));
    let answer = s.kubectl("exec box -- nslookup web.network-names.svc.cluster.local").ok();
    assert!(answer.contains(&address), "{answer}");
}

#[test]
fn service_spreads_connections_over_its_pods() {
    let s = shared("network-spread");
    s.deploy("web", "app:1", 2);
    s.kubectl("expose deployment web --port=80 --target-port=8080").ok();
    s.toolbox();
    let mut pods = std::collections::BTreeSet::new();
    until("answers of both Pods", || {
        pods.insert(s.fetch("web", "80"));
        if pods.len() == 2 { Ok(()) } else { Err(format!("{pods:?}")) }
    });
}

#[test]
fn headless_service_resolves_to_its_pods() {
    let s = shared("network-headless");
    s.deploy("web", "app:1", 2);
    s.kubectl("expose deployment web --port=80 --target-port=8080 --cluster-ip=None").ok();
    s.toolbox();
    let addresses = s.field("pods -l app=web", "{.items[*].status.podIP}");
    s.until("exec box -- nslookup web.network-headless.svc.cluster.local", |answer| {
        addresses.split_whitespace().all(|address| answer.contains(address))
    });
}

#[test]
fn a_node_port_is_open_on_the_node() {
    let s = shared("network-nodeport");
    s.deploy("web", "app:1", 1);
    s.kubectl("expose deployment web --port=80 --target-port=8080 --type=NodePort").ok();
    s.toolbox();
    let port = s.field("service web", "{.spec.ports[0].nodePort}");
    assert!(s.fetch("192.0.2.10", &port).starts_with("version 1"));
}

#[test]
fn endpoints_follow_readiness() {
    let s = shared("network-endpoints");
    s.deploy("web", "app:1", 2);
    s.kubectl("expose deployment web --port=80 --target-port=8080").ok();
    s.until("get endpointslices -l kubernetes.io/service-name=web -o jsonpath={.items[*].endpoints[*].addresses[0]}", |seen| {
        seen.split_whitespace().count() == 2
    });
    s.kubectl("scale deployment web --replicas=0").ok();
    s.until("get endpointslices -l kubernetes.io/service-name=web -o jsonpath={.items[*].endpoints[*].addresses[0]}", str::is_empty);
}

#[test]
fn pod_reaches_the_api_server_through_its_service() {
    let s = shared("network-api");
    s.toolbox();
    let answer = s.kubectl("exec box -- nslookup kubernetes.default.svc.cluster.local").ok();
    assert!(answer.contains("10.96.0.1"), "{answer}");
    s.kubectl("exec box -- nc -w 5 10.96.0.1 443").ok();
}

#[test]
fn host_network_pod_has_the_nodes_address() {
    let s = shared("network-host");
    s.apply(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"host"},"spec":{"hostNetwork":true,
            "containers":[{"name":"c","image":"box:1"}]}}"#,
    );
    s.kubectl("wait pod/host --for=condition=Ready --timeout=90s").ok();
    assert_eq!(s.field("pod host", "{.status.podIP}"), "192.0.2.10");
    assert!(s.kubectl("exec host -- ip address").ok().contains("192.0.2.10"));
}

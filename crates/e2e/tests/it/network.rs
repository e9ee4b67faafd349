//! Services by address, name and node port, and what cluster DNS answers.

use e2e::shared;

#[test]
fn a_headless_service_names_its_pods() {
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
fn a_pod_on_the_nodes_network_has_the_nodes_address() {
    let s = shared("network-host");
    s.apply(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"host"},"spec":{"hostNetwork":true,
            "containers":[{"name":"c","image":"box:1"}]}}"#,
    );
    s.kubectl("wait pod/host --for=condition=Ready --timeout=90s").ok();
    assert_eq!(s.field("pod host", "{.status.podIP}"), "192.0.2.10");
    assert!(s.kubectl("exec host -- ip address").ok().contains("192.0.2.10"));
}

//! Regression tests for published vulnerabilities in Service rules.

use serde_json::{Value, json};

use crate::{
    Family,
    api::{EndpointSlice, Service},
    endpoints::Slices,
    plan::{self, Config},
};

fn service(namespace: &str, spec: Value) -> Service {
    serde_json::from_value(json!({"metadata": {"name": "s", "namespace": namespace}, "spec": spec}))
        .unwrap()
}

fn slice(namespace: &str, family: &str, address: &str) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"name": "s-1", "namespace": namespace, "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": family, "ports": [{"name": "p", "port": 8080}], "endpoints": [{"addresses": [address]}],
    }))
    .unwrap()
}

/// Returns all rules of a family, for nftables and iptables.
fn rules(
    family: Family,
    config: &Config,
    services: &[Service],
    slices: &[EndpointSlice],
) -> String {
    let table = plan::plan(family, config, services, &Slices::index(slices));
    let chains = plan::iptables::plan(family, config, services, &Slices::index(slices));
    format!("{table:?} {chains:?}")
}

/// CVE-2021-25737 and CVE-2021-25740: an author of EndpointSlices makes the node send to itself or to its link.
#[test]
fn cve_2021_25737_sends_nothing_to_special_addresses() {
    for (kind, family, ip, address, served) in [
        ("IPv4", Family::V4, "10.96.0.5", "10.1.0.2", true),
        ("IPv6", Family::V6, "fd00::5", "fd01::2", true),
        ("IPv4", Family::V4, "10.96.0.5", "127.0.0.1", false),
        ("IPv4", Family::V4, "10.96.0.5", "169.254.169.254", false),
        ("IPv4", Family::V4, "10.96.0.5", "224.0.0.1", false),
        ("IPv4", Family::V4, "10.96.0.5", "0.0.0.0", false),
        ("IPv4", Family::V4, "10.96.0.5", "fd01::2", false),
        ("IPv4", Family::V4, "10.96.0.5", "::ffff:127.0.0.1", false),
        ("IPv6", Family::V6, "fd00::5", "::1", false),
        ("IPv6", Family::V6, "fd00::5", "::ffff:127.0.0.1", false),
        ("IPv6", Family::V6, "fd00::5", "::ffff:10.1.0.2", false),
        ("IPv6", Family::V6, "fd00::5", "fe80::1", false),
        ("IPv6", Family::V6, "fd00::5", "10.1.0.2", false),
    ] {
        let spec = json!({"clusterIP": ip, "ports": [{"name": "p", "port": 80}]});
        let written = rules(
            family,
            &Config::default(),
            &[service("ns", spec)],
            &[slice("ns", kind, address)],
        );
        let sent = written.contains("dnat to") || written.contains("DNAT --to-destination");
        assert_eq!(sent, served, "{address} in a slice of {kind}");
    }
}

/// CVE-2020-8554: a Service that comes earlier in order claims another one's cluster IP as its external address.
#[test]
fn cve_2020_8554_leaves_cluster_ips_to_their_services() {
    let ports = json!([{"name": "p", "port": 443}]);
    let api = service("default", json!({"clusterIP": "10.96.0.1", "ports": ports}));
    let alone = rules(Family::V4, &Config::default(), std::slice::from_ref(&api), &[]);
    assert!(alone.contains("10.96.0.1 . tcp . 443"), "{alone}");
    let spec = json!({"clusterIP": "10.96.0.66", "externalIPs": ["10.96.0.1"], "ports": ports});
    let attacker = service("a-tenant", spec);
    let slices = [slice("default", "IPv4", "192.0.2.1"), slice("a-tenant", "IPv4", "10.1.0.66")];
    let both = [attacker, api];
    let table = plan::plan(Family::V4, &Config::default(), &both, &Slices::index(&slices));
    let crate::nft::Content::Ours(elements) = &table.sets["service-ips"].content else {
        panic!("a dynamic map")
    };
    assert!(elements["10.96.0.1 . tcp . 443"].contains("default/s"), "{elements:?}");
    let chains =
        plan::iptables::plan(Family::V4, &Config::default(), &both, &Slices::index(&slices));
    let rules = chains.rules("nat", "KUBE-SERVICES");
    let to_api: Vec<_> = rules.iter().filter(|rule| rule.contains("-d 10.96.0.1 ")).collect();
    assert!(to_api.len() == 1 && to_api[0].contains("default/s"), "{to_api:?}");
}

use serde_json::{Value, json};

use super::{Config, LocalTraffic, NodePorts, iptables::plan};
use crate::{
    Family,
    api::{EndpointSlice, Service},
    endpoints::Slices,
    xtables::Chains,
};

fn config() -> Config {
    Config {
        node: "n1".into(),
        local: LocalTraffic::From(vec!["10.1.0.0/16".parse().unwrap()]),
        node_ports: NodePorts::All,
        ..Config::default()
    }
}

fn chains(spec: Value, endpoints: Value) -> Chains {
    let mut spec = spec;
    let defaults = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{"name": "https", "port": 443}]});
    for (key, value) in defaults.as_object().unwrap() {
        spec.as_object_mut().unwrap().entry(key).or_insert(value.clone());
    }
    let status = spec.as_object_mut().unwrap().remove("ingress").unwrap_or(json!([]));
    let service: Service =
        serde_json::from_value(json!({"metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": spec, "status": {"loadBalancer": {"ingress": status}}}))
        .unwrap();
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "s-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}], "endpoints": endpoints,
    }))
    .unwrap();
    plan(Family::V4, &config(), [&service], &Slices::index([&slice]))
}

fn two_endpoints() -> Value {
    json!([{"addresses": ["10.1.0.2"], "nodeName": "n1"}, {"addresses": ["10.1.1.2"], "nodeName": "n2"}])
}

/// Upstream gives the chain of this Service the same name in every cluster.
const SVC: &str = "KUBE-SVC-NPX46M4PTMTKRN6Y";

#[test]
fn cluster_ip_uses_upstream_chain_names() {
    let chains = chains(json!({}), two_endpoints());
    assert_eq!(
        chains.rules("nat", "KUBE-SERVICES")[0],
        format!(
            "-m comment --comment \"default/kubernetes:https cluster IP\" -d 10.96.0.1 -p tcp -m tcp --dport 443 -j {SVC}"
        )
    );
    let rules = chains.rules("nat", SVC);
    assert_eq!(rules.len(), 3, "{rules:?}");
    assert!(rules[0].ends_with("--dport 443 ! -s 10.1.0.0/16 -j KUBE-MARK-MASQ"), "{rules:?}");
    assert!(
        rules[1].contains("--mode random --probability 0.5000000000 -j KUBE-SEP-"),
        "{rules:?}"
    );
    let endpoint = rules[2].rsplit(' ').next().unwrap();
    assert_eq!(
        chains.rules("nat", endpoint),
        [
            "-m comment --comment default/kubernetes:https -s 10.1.1.2 -j KUBE-MARK-MASQ",
            "-m comment --comment default/kubernetes:https -m tcp -p tcp -j DNAT --to-destination 10.1.1.2:6443",
        ]
    );
}

#[test]
fn rejects_without_endpoints_and_drops_without_local() {
    let dead = chains(json!({}), json!([]));
    let rules = dead.rules("filter", "KUBE-SERVICES");
    assert!(rules[0].contains("has no endpoints") && rules[0].contains("-j REJECT"), "{rules:?}");
    assert!(!dead.has("nat", SVC));
    let elsewhere = json!([{"addresses": ["10.1.1.2"], "nodeName": "n2"}]);
    let local = chains(json!({"internalTrafficPolicy": "Local"}), elsewhere);
    let rules = local.rules("filter", "KUBE-SERVICES");
    assert!(
        rules[0].contains("has no local endpoints") && rules[0].ends_with("-j DROP"),
        "{rules:?}"
    );
}

#[test]
fn external_traffic_has_chain_and_node_ports_come_last() {
    let spec = json!({"type": "LoadBalancer", "ports": [{"name": "https", "port": 443, "nodePort": 30443}],
        "loadBalancerSourceRanges": ["10.9.0.0/16"], "ingress": [{"ip": "5.6.7.8"}]});
    let open = chains(spec.clone(), two_endpoints());
    let ext = SVC.replace("SVC", "EXT");
    assert!(open.rules("nat", "KUBE-NODEPORTS")[0].ends_with(&format!("--dport 30443 -j {ext}")));
    assert!(open.rules("nat", &ext)[0].ends_with("-j KUBE-MARK-MASQ"));
    assert_eq!(open.rules("nat", &ext)[1], format!("-j {SVC}"));
    let services = open.rules("nat", "KUBE-SERVICES");
    assert!(services[1].contains("loadbalancer IP") && services[1].contains("-d 5.6.7.8 "));
    assert!(
        services.last().unwrap().ends_with("--dst-type LOCAL -j KUBE-NODEPORTS"),
        "{services:?}"
    );
    let firewall = open.rules("filter", &SVC.replace("SVC", "FW"));
    assert!(firewall[0].contains("-s 10.9.0.0/16 -j RETURN") && firewall[1].ends_with("-j DROP"));

    let mut spec = spec;
    spec["externalTrafficPolicy"] = json!("Local");
    let local = chains(spec, two_endpoints());
    let rules = local.rules("nat", &ext);
    assert!(rules[0].contains("-s 10.1.0.0/16 ") && rules[0].ends_with(SVC), "{rules:?}");
    assert_eq!(*rules.last().unwrap(), format!("-j {}", SVC.replace("SVC", "SVL")));
    assert_eq!(local.rules("nat", &SVC.replace("SVC", "SVL")).len(), 1, "one endpoint is here");
}

#[test]
fn affinity_returns_client_to_endpoint() {
    let spec = json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}});
    let sticky = chains(spec, two_endpoints());
    let rules = sticky.rules("nat", SVC);
    assert!(rules[1].contains("--rcheck --seconds 60 --reap"), "{rules:?}");
    let endpoint = rules[1].rsplit(' ').next().unwrap();
    assert!(
        sticky.rules("nat", endpoint)[1].contains(&format!("-m recent --name {endpoint} --set"))
    );
}

#[test]
fn ports_share_source_ranges() {
    let ranges: Vec<_> = (0..2000).map(|i| format!("10.{}.{}.0/24", i / 250, i % 250)).collect();
    let ports: Vec<_> = (1..2000).map(|p| json!({"name": format!("p{p}"), "port": p})).collect();
    let spec = json!({"type": "LoadBalancer", "ports": ports, "loadBalancerSourceRanges": ranges,
        "ingress": [{"ip": "5.6.7.8"}]});
    let chains = chains(spec, two_endpoints());
    let firewall = chains.rules("filter", "KUBE-PROXY-FIREWALL");
    assert_eq!(firewall.len(), 1999);
    let target = |rule: &String| rule.rsplit(' ').next().unwrap().to_owned();
    let shared = target(&firewall[0]);
    assert!(firewall.iter().all(|rule| target(rule) == shared));
    assert_eq!(chains.rules("filter", &shared).len(), 2000 + 1);
    let rules = chains.rule_count("filter");
    assert!(rules < 10_000, "{rules}");
}

#[test]
fn ports_times_endpoints_are_limited() {
    let ports = |count: usize| -> Vec<Value> {
        (1..=count).map(|p| json!({"name": "https", "port": p})).collect()
    };
    let endpoints: Vec<_> = (0..1000)
        .map(|n| json!({"addresses": [format!("10.1.{}.{}", n / 250, n % 250 + 1)]}))
        .collect();
    let rules = |count| {
        let spec = json!({"ports": ports(count)});
        chains(spec, json!(endpoints)).rule_count("nat")
    };
    // A port has the same name as others in this test, so it shares their chain.
    let few = rules(10);
    assert_eq!(rules(65) - few, 55);
    assert_eq!(
        rules(20_000),
        rules(65),
        "65 ports of 1001 addresses and endpoints are 65,065 pairs"
    );
}

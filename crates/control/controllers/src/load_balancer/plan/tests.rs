use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde_json::{Value, json};

use super::*;
use crate::{context::merged, load_balancer::model::FINALIZER, views::Node};

/// Returns a Service that is older than those with a higher number.
fn service(number: usize, more: Value) -> Service {
    let base = json!({"metadata": {"name": format!("s{number}"), "namespace": "ns", "uid": format!("u{number}"),
            "creationTimestamp": format!("2026-01-01T00:{:02}:{:02}Z", number / 60 % 60, number % 60)},
        "spec": {"type": "LoadBalancer", "ipFamilies": ["IPv4"], "ports": [{"port": 80, "protocol": "TCP"}]}});
    serde_json::from_value(merged(&base, &more)).unwrap()
}

fn node(name: &str, addresses: &[&str], more: Value) -> Node {
    let addresses: Vec<_> =
        addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
    let base = json!({"metadata": {"name": name}, "status": {"addresses": addresses,
        "conditions": [{"type": "Ready", "status": "True"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}});
    serde_json::from_value(merged(&base, &more)).unwrap()
}

/// A cluster of two nodes, whose API server is on the first.
struct World {
    source: LoadBalancerSource,
    services: Vec<Service>,
    nodes: Vec<Node>,
    assigned: BTreeMap<String, Vec<IpAddr>>,
    local: BTreeMap<String, BTreeSet<String>>,
}

impl World {
    fn new(services: Vec<Service>) -> Self {
        Self {
            source: LoadBalancerSource::Nodes,
            services,
            nodes: vec![
                node("a", &["192.0.2.1", "fd00::1"], json!({})),
                node("b", &["192.0.2.2"], json!({})),
            ],
            assigned: BTreeMap::new(),
            local: BTreeMap::new(),
        }
    }

    fn with_ranges(services: Vec<Service>, ranges: &[&str]) -> Self {
        let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        Self { source: LoadBalancerSource::Ranges(ranges), ..Self::new(services) }
    }

    /// Returns each decision as text: the addresses and the shortage.
    fn plan(&self) -> BTreeMap<String, String> {
        let api_servers = ["192.0.2.1:6443".parse().unwrap()].into();
        let decisions = plan(&Snapshot {
            source: &self.source,
            services: self.services.iter().collect(),
            nodes: self.nodes.iter().collect(),
            assigned: &self.assigned,
            local: &self.local,
            api_servers: &api_servers,
        });
        let text = |decision| match decision {
            Decision::Release => "release".to_owned(),
            Decision::Assign { addresses, shortage } => {
                let mut words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                words.extend(shortage.map(|shortage| format!("{shortage:?}")));
                words.join(" ")
            }
        };
        let named =
            |(service, decision): (&Service, _)| (service.metadata.name.clone(), text(decision));
        decisions.into_iter().map(named).collect()
    }

    fn of(&self, number: usize) -> String {
        self.plan().remove(&format!("s{number}")).unwrap_or_default()
    }
}

#[test]
fn decides_by_spec_and_status() {
    let status = |ips: &[&str]| {
        let ingress: Vec<_> = ips.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        json!({"status": {"loadBalancer": {"ingress": ingress}}})
    };
    let finalizer = json!({"metadata": {"finalizers": [FINALIZER]}});
    let deleted = json!({"metadata": {"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-02T00:00:00Z"}});
    let class = json!({"spec": {"loadBalancerClass": "example.com/lb"}});
    for (more, expected) in [
        (json!({}), "192.0.2.1 192.0.2.2"),
        (json!({"spec": {"allocateLoadBalancerNodePorts": false}}), "192.0.2.1 192.0.2.2"),
        (json!({"spec": {"ipFamilies": ["IPv6", "IPv4"]}}), "fd00::1 192.0.2.1 192.0.2.2"),
        (json!({"spec": {"ipFamilies": ["IPv6"]}}), "fd00::1"),
        (json!({"spec": {"ipFamilies": null}}), "192.0.2.1 192.0.2.2"),
        (json!({"spec": {"loadBalancerClass": ""}}), "192.0.2.1 192.0.2.2"),
        (class.clone(), ""),
        (merged(&class, &deleted), ""),
        (json!({"spec": {"loadBalancerIP": "192.0.2.2"}}), "192.0.2.2"),
        (json!({"spec": {"loadBalancerIP": "198.51.100.1"}}), "NotOfNode(198.51.100.1)"),
        (json!({"spec": {"ports": [{"port": 6443}]}}), "192.0.2.2"),
        (json!({"spec": {"ports": [{"port": 6443, "protocol": "UDP"}]}}), "192.0.2.1 192.0.2.2"),
        (json!({"spec": {"ports": [{"port": 10250, "protocol": "TCP"}]}}), "PortsInUse"),
        (json!({"spec": {"externalTrafficPolicy": "Local"}}), "NoEndpoint"),
        (json!({"spec": {"type": "ClusterIP"}}), ""),
        (merged(&json!({"spec": {"type": "ClusterIP"}}), &finalizer), "release"),
        (merged(&json!({"spec": {"type": "ExternalName", "ports": null}}), &finalizer), "release"),
        (deleted, "release"),
        (json!({"metadata": {"deletionTimestamp": "2026-01-02T00:00:00Z"}}), ""),
        // An address that a client wrote into the status gives no right to it.
        (status(&["198.51.100.7", "192.0.2.2", "nonsense"]), "192.0.2.1 192.0.2.2"),
    ] {
        assert_eq!(World::new(vec![service(1, more.clone())]).of(1), expected, "{more}");
    }
}

#[test]
fn labels_of_k3s_select_nodes() {
    let label = |key: &str, value: &str| json!({"metadata": {"labels": {key: value}}});
    let enable = |value: &str| label("svccontroller.k3s.cattle.io/enablelb", value);
    let pool = |value: &str| label("svccontroller.k3s.cattle.io/lbpool", value);
    let none = json!({});
    for (of_a, of_b, of_service, expected) in [
        (enable("true"), none.clone(), none.clone(), "192.0.2.1"),
        (enable("false"), none.clone(), none.clone(), "NoNode"),
        // Pools count only once a node is enabled.
        (pool("x"), none.clone(), pool("x"), "192.0.2.1 192.0.2.2"),
        (merged(&enable("true"), &pool("x")), enable("true"), pool("x"), "192.0.2.1"),
        (merged(&enable("true"), &pool("x")), enable("true"), none.clone(), "192.0.2.1 192.0.2.2"),
        (merged(&enable("true"), &pool("x")), enable("true"), pool("y"), "NoNode"),
        (
            label("node.kubernetes.io/exclude-from-external-load-balancers", ""),
            none.clone(),
            none.clone(),
            "192.0.2.2",
        ),
        (
            json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
            none.clone(),
            none.clone(),
            "192.0.2.2",
        ),
        (
            json!({"metadata": {"deletionTimestamp": "2026-01-02T00:00:00Z"}}),
            none.clone(),
            none,
            "192.0.2.2",
        ),
    ] {
        let mut world = World::new(vec![service(1, of_service.clone())]);
        world.nodes =
            vec![node("a", &["192.0.2.1"], of_a.clone()), node("b", &["192.0.2.2"], of_b.clone())];
        assert_eq!(world.of(1), expected, "{of_a} {of_b} {of_service}");
    }
}

#[test]
fn second_service_of_port_waits_until_first_is_gone() {
    let mut world = World::new(vec![service(2, json!({})), service(1, json!({}))]);
    assert_eq!((&*world.of(1), &*world.of(2)), ("192.0.2.1 192.0.2.2", "PortsInUse"));
    // The owner keeps its ports when an older Service appears, also while the informer lacks its status.
    world.assigned.insert("u2".into(), vec!["192.0.2.1".parse().unwrap()]);
    assert_eq!((&*world.of(1), &*world.of(2)), ("192.0.2.2", "192.0.2.1"));
    world.services.retain(|service| service.metadata.name == "s1");
    assert_eq!(world.of(1), "192.0.2.1 192.0.2.2");
    // Other ports and protocols share the addresses.
    for ports in [json!([{"port": 81}]), json!([{"port": 80, "protocol": "UDP"}])] {
        let other = service(3, json!({"spec": {"ports": ports}}));
        let world = World::new(vec![service(1, json!({})), other]);
        assert_eq!(world.of(3), "192.0.2.1 192.0.2.2");
    }
    // All ports or none: otherwise a client would reach another Service at one of them.
    let both = service(4, json!({"spec": {"ports": [{"port": 443}, {"port": 80}]}}));
    let world = World::new(vec![
        service(1, json!({})),
        both,
        service(5, json!({"spec": {"ports": [{"port": 443}]}})),
    ]);
    assert_eq!((&*world.of(4), &*world.of(5)), ("PortsInUse", "192.0.2.1 192.0.2.2"));
}

#[test]
fn local_service_has_addresses_of_nodes_with_endpoint() {
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
    let mut world = World::new(vec![service(1, local), service(2, json!({}))]);
    world.local.insert("ns/s1".into(), ["b".to_owned()].into());
    assert_eq!(world.of(1), "192.0.2.2");
    assert_eq!(world.of(2), "PortsInUse", "an endpoint may move to any node");
}

#[test]
fn allocates_from_ranges() {
    let dual = json!({"spec": {"ipFamilies": ["IPv6", "IPv4"]}});
    let ask = |ip: &str| json!({"spec": {"loadBalancerIP": ip}});
    let has = |ip: &str| json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
    let ranges = ["198.51.100.0/30", "2001:db8::/126"];
    for (more, expected) in [
        (json!({}), "198.51.100.1"),
        (dual, "2001:db8::1 198.51.100.1"),
        (local, "198.51.100.1"),
        (ask("198.51.100.3"), "198.51.100.3"),
        (ask("198.51.100.4"), "OutsideRanges(198.51.100.4)"),
        (ask("192.0.2.1"), "OutsideRanges(192.0.2.1)"),
        (has("198.51.100.2"), "198.51.100.2"),
        (has("198.51.100.9"), "198.51.100.1"),
        (has("2001:db8::2"), "198.51.100.1"),
        (merged(&has("198.51.100.2"), &ask("198.51.100.3")), "198.51.100.3"),
    ] {
        let world = World::with_ranges(vec![service(1, more.clone())], &ranges);
        assert_eq!(world.of(1), expected, "{more}");
    }
    let asks = |number| service(number, ask("198.51.100.2"));
    let world = World::with_ranges(vec![asks(1), asks(2)], &ranges);
    assert_eq!(world.of(2), "InUse(198.51.100.2)");
    let many = (1..5).map(|number| service(number, json!({}))).collect();
    assert_eq!(World::with_ranges(many, &ranges).of(4), "RangeExhausted(V4)");
    let six = json!({"spec": {"ipFamilies": ["IPv4", "IPv6"]}});
    let world = World::with_ranges(vec![service(1, six)], &["198.51.100.0/30"]);
    assert_eq!(world.of(1), "198.51.100.1 NoRange(V6)");
    let mut world = World::with_ranges(vec![service(1, json!({}))], &ranges);
    world.nodes = vec![node("a", &["198.51.100.1"], json!({}))];
    assert_eq!(world.of(1), "198.51.100.2", "a node's address belongs to the node");
}

/// Plans random clusters again and again, with informers that lag.
#[test]
fn gives_each_address_and_port_to_one_service_and_keeps_it() {
    let mut random = StdRng::seed_from_u64(36);
    for round in 0..200 {
        let source = if random.random() {
            LoadBalancerSource::Nodes
        } else {
            LoadBalancerSource::Ranges(vec!["198.51.100.0/29".parse().unwrap()])
        };
        let mut world = World { source, ..World::new(Vec::new()) };
        for step in 0..20 {
            if world.services.is_empty() || random.random_bool(0.6) {
                let port = random.random_range(80..83);
                world.services.push(service(step, json!({"spec": {"ports": [{"port": port}]}})));
            } else {
                let gone = random.random_range(0..world.services.len());
                world.assigned.remove(&world.services.remove(gone).metadata.uid);
            }
            let api_servers = BTreeSet::new();
            let snapshot = Snapshot {
                source: &world.source,
                services: world.services.iter().collect(),
                nodes: world.nodes.iter().collect(),
                assigned: &world.assigned,
                local: &world.local,
                api_servers: &api_servers,
            };
            let mut owners = BTreeSet::new();
            let mut next = BTreeMap::new();
            for (service, decision) in plan(&snapshot) {
                let Decision::Assign { addresses, .. } = decision else { panic!("released") };
                for ip in &addresses {
                    let port = match world.source {
                        LoadBalancerSource::Nodes => service.spec.ports[0].port,
                        LoadBalancerSource::Ranges(_) => 0,
                    };
                    assert!(owners.insert((*ip, port)), "{ip} has two owners in round {round}");
                }
                let before = world.assigned.get(&service.metadata.uid);
                let keeps = before.is_none_or(|b| b.iter().all(|ip| addresses.contains(ip)));
                assert!(keeps, "{} lost an address in round {round}", service.metadata.name);
                next.insert(service.metadata.uid.clone(), addresses);
            }
            world.assigned = next;
        }
    }
}

#[test]
fn plans_thousands_of_services_within_a_second() {
    let ports = |number: usize| json!({"spec": {"ports": [{"port": number}]}});
    let services: Vec<_> = (1..4000).map(|number| service(number, ports(number))).collect();
    let mut world = World::with_ranges(services, &["10.0.0.0/8"]);
    let start = std::time::Instant::now();
    assert!(world.of(3999).parse::<IpAddr>().is_ok());
    world.source = LoadBalancerSource::Nodes;
    assert_eq!(world.of(3999), "192.0.2.1 192.0.2.2");
    // Debug builds are slow; a quadratic plan would take minutes.
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

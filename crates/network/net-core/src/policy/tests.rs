//! Interprets the rules and compares the results with a literal reading of the API, for random clusters.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::nft::Content;

/// The first packet of a connection.
#[derive(Clone, Copy, Debug)]
struct Packet {
    from: IpAddr,
    to: IpAddr,
    protocol: Protocol,
    port: u16,
}

/// Reports whether the table accepts a forwarded packet.
fn passes(table: &Table, packet: Packet) -> bool {
    ["egress", "ingress"].iter().all(|chain| run(table, chain, packet) != Some(false))
}

/// Returns the verdict of a chain, if it reaches one.
fn run(table: &Table, chain: &str, packet: Packet) -> Option<bool> {
    for rule in &table.chains[chain].rules {
        let words: Vec<&str> = rule.split_whitespace().collect();
        let verdict = match matches(table, &words, packet) {
            None => continue,
            Some(["accept"]) => return Some(true),
            Some(["drop"]) => return Some(false),
            Some(["return"]) => return None,
            Some(["jump", target]) => run(table, target, packet),
            Some([ip, field, "vmap", map]) => {
                let key = address(ip, field, packet);
                match elements(table, map.trim_start_matches('@')).get(&key) {
                    Some(target) => {
                        return run(table, target.strip_prefix("goto ").unwrap(), packet);
                    }
                    None => None,
                }
            }
            Some(other) => panic!("{other:?} is not understood"),
        };
        if verdict.is_some() {
            return verdict;
        }
    }
    None
}

/// Returns the rest of a rule after its matches, if all match.
fn matches<'r, 'w>(table: &Table, words: &'r [&'w str], packet: Packet) -> Option<&'r [&'w str]> {
    let protocol = packet.protocol.lower();
    let (held, used) = match words {
        ["ct", "state", "{", "established,", "related", "}", ..] => (false, 6),
        [ip @ "ip", "daddr", ".", "meta", "l4proto", ".", "th", "dport", set, ..] => {
            let key = format!("{} . {protocol} . {}", address(ip, "daddr", packet), packet.port);
            (elements(table, &set[1..]).contains_key(&key), 9)
        }
        ["ip", _, "vmap", ..] => return Some(words),
        [ip @ "ip", field, set, ..] if set.starts_with('@') => {
            (elements(table, &set[1..]).contains_key(&address(ip, field, packet)), 3)
        }
        [ip @ "ip", field, cidr, ..] => (within(cidr, &address(ip, field, packet)), 3),
        ["meta", "l4proto", wanted, ..] => (*wanted == protocol, 3),
        [wanted, "dport", ports, ..] => {
            let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
            let range = first.parse::<u16>().unwrap()..=last.parse().unwrap();
            (*wanted == protocol && range.contains(&packet.port), 3)
        }
        rest => return Some(rest),
    };
    if held { matches(table, &words[used..], packet) } else { None }
}

fn address(_ip: &str, field: &str, packet: Packet) -> String {
    if field == "saddr" { packet.from.to_string() } else { packet.to.to_string() }
}

fn within(cidr: &str, ip: &str) -> bool {
    let cidr = cidr.parse().unwrap_or_else(|_| Cidr::host(cidr.parse().unwrap()));
    cidr.contains(ip.parse().unwrap())
}

fn elements<'t>(table: &'t Table, set: &str) -> &'t BTreeMap<String, String> {
    match &table.sets[set].content {
        Content::Ours(elements) => elements,
        Content::Dynamic => panic!(),
    }
}

impl PeerSelector {
    fn matches(&self, own: &str, pod: &Pod, namespaces: &Namespaces) -> bool {
        let namespace = &*pod.metadata.namespace;
        let fits = match &self.namespaces {
            None => namespace == own,
            Some(selector) => {
                namespaces.get(namespace).is_some_and(|labels| selector.matches(labels))
            }
        };
        fits && self.pods.matches(&pod.metadata.labels)
    }
}

/// Evaluates the policies literally.
fn allowed(snapshot: &Snapshot<'_>, packet: Packet) -> bool {
    let pod = |ip| snapshot.pods.iter().copied().find(|pod| pod.address(Family::V4) == Some(ip));
    let (from, to) = (pod(packet.from), pod(packet.to));
    if packet.from == packet.to {
        return true;
    }
    let direction = |own: Option<&Pod>, peer: Option<&Pod>, peer_ip: IpAddr, of: PolicyType| {
        let Some(own) = own.filter(|own| *own.spec.node_name == *snapshot.node) else {
            return true;
        };
        let mut policies = snapshot
            .policies
            .iter()
            .filter(|policy| {
                policy.metadata.namespace == own.metadata.namespace
                    && policy.spec.is_of(of)
                    && selector(&policy.spec.pod_selector).matches(&own.metadata.labels)
            })
            .peekable();
        if policies.peek().is_none() {
            return true;
        }
        policies.any(|policy| {
            let rules =
                if of == PolicyType::Ingress { &policy.spec.ingress } else { &policy.spec.egress };
            rules.iter().any(|rule| {
                let peer_fits = rule.peers.is_empty()
                    || rule.peers.iter().any(|one| match &one.ip_block {
                        Some(block) => {
                            within(&block.cidr, &peer_ip.to_string())
                                && !block
                                    .except
                                    .iter()
                                    .any(|except| within(except, &peer_ip.to_string()))
                        }
                        None => peer.is_some_and(|peer| {
                            PeerSelector::of(one).matches(
                                &policy.metadata.namespace,
                                peer,
                                snapshot.namespaces,
                            )
                        }),
                    });
                let port_fits = rule.ports.is_empty()
                    || rule.ports.iter().any(|port| {
                        port.protocol == packet.protocol
                            && match &port.port {
                                None => true,
                                Some(IntOrString::Int(number)) => (*number
                                    ..=port.end_port.map_or(*number, i32::from))
                                    .contains(&packet.port.into()),
                                Some(IntOrString::String(name)) => {
                                    // An egress rule's named ports are known only for the Pods that it selects.
                                    let by_block = of == PolicyType::Egress
                                        && !rule.peers.is_empty()
                                        && !rule.peers.iter().any(|one| {
                                            one.ip_block.is_none()
                                                && peer.is_some_and(|peer| {
                                                    PeerSelector::of(one).matches(
                                                        &policy.metadata.namespace,
                                                        peer,
                                                        snapshot.namespaces,
                                                    )
                                                })
                                        });
                                    !by_block
                                        && to.is_some_and(|to| {
                                            to.port_numbers(name, packet.protocol)
                                                .any(|known| known == packet.port)
                                        })
                                }
                            }
                    });
                peer_fits && port_fits
            })
        })
    };
    direction(from, to, packet.to, PolicyType::Egress)
        && direction(to, from, packet.from, PolicyType::Ingress)
}

const LABELS: [&str; 3] = ["a", "b", "c"];

fn any_selector() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        (0..3usize).prop_map(|label| json!({"matchLabels": {"app": LABELS[label]}})),
        (0..3usize).prop_map(|label| json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [LABELS[label]]}]})),
    ]
}

fn any_rule(key: &'static str) -> impl Strategy<Value = Value> {
    let peer = prop_oneof![
        any_selector().prop_map(|pods| json!({"podSelector": pods})),
        any_selector().prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        (any_selector(), any_selector()).prop_map(
            |(pods, namespaces)| json!({"podSelector": pods, "namespaceSelector": namespaces})
        ),
        Just(json!({"ipBlock": {"cidr": "10.1.0.0/24", "except": ["10.1.0.4/30"]}})),
    ];
    let port = prop_oneof![
        Just(json!({"port": 80})),
        Just(json!({"port": 80, "endPort": 82, "protocol": "TCP"})),
        Just(json!({"protocol": "UDP"})),
        Just(json!({"port": "web"})),
    ];
    (prop::collection::vec(peer, 0..3), prop::collection::vec(port, 0..3))
        .prop_map(move |(peers, ports)| json!({key: peers, "ports": ports}))
}

fn any_policy() -> impl Strategy<Value = Value> {
    let types = prop_oneof![
        Just(json!(null)),
        Just(json!(["Ingress"])),
        Just(json!(["Egress"])),
        Just(json!(["Ingress", "Egress"]))
    ];
    let rules = (
        prop::collection::vec(any_rule("from"), 0..3),
        prop::collection::vec(any_rule("to"), 0..3),
    );
    (0..2u8, any_selector(), types, rules).prop_map(|(namespace, pods, types, (ingress, egress))| {
        json!({"metadata": {"namespace": format!("n{namespace}")},
            "spec": {"podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress}})
    })
}

fn pod(number: usize, namespace: u8, label: usize, here: bool) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("p{number}"), "namespace": format!("n{namespace}"), "labels": {"app": LABELS[label]}},
        "spec": {"nodeName": if here { "here" } else { "there" },
            "containers": [{"ports": [{"name": "web", "containerPort": 80 + number % 2 * 8}]}]},
        "status": {"podIPs": [{"ip": format!("10.1.0.{number}")}]},
    }))
    .unwrap()
}

proptest! {
    #[test]
    fn rules_agree_with_policies(
        pods in prop::collection::vec((0..2u8, 0..3usize, any::<bool>()), 1..7),
        policies in prop::collection::vec(any_policy(), 0..4),
    ) {
        let pods: Vec<_> = pods.into_iter().enumerate().map(|(n, (namespace, label, here))| pod(n + 1, namespace, label, here)).collect();
        let policies: Vec<NetworkPolicy> = policies.into_iter().enumerate().map(|(n, mut policy)| {
            policy["metadata"]["name"] = json!(format!("policy{n}"));
            serde_json::from_value(policy).unwrap()
        }).collect();
        let namespaces: Namespaces = [("n0", "a"), ("n1", "b")].map(|(name, label)| (name.into(), [("app".to_owned(), label.to_owned())].into())).into();
        let snapshot = Snapshot { node: "here", pods: pods.iter().collect(), namespaces: &namespaces, policies: policies.iter().collect() };
        let table = plan(Family::V4, &snapshot).table;
        let addresses: Vec<IpAddr> = (1..=pods.len()).map(|n| [10, 1, 0, n as u8].into()).chain([[192, 0, 2, 1].into()]).collect();
        for from in &addresses {
            for to in &addresses {
                for (protocol, port) in [(Protocol::Tcp, 80), (Protocol::Tcp, 82), (Protocol::Tcp, 88), (Protocol::Udp, 80)] {
                    let packet = Packet { from: *from, to: *to, protocol, port };
                    prop_assert_eq!(passes(&table, packet), allowed(&snapshot, packet), "{:?} in {:#?}", packet, table);
                }
            }
        }
    }
}

#[test]
fn ignores_host_network_and_unselected_pods() {
    let mut host = pod(1, 0, 0, true);
    host.spec.host_network = true;
    let policy: NetworkPolicy = serde_json::from_value(
        json!({"metadata": {"name": "deny", "namespace": "n0"}, "spec": {"podSelector": {}}}),
    )
    .unwrap();
    let namespaces = Namespaces::new();
    let empty = plan(
        Family::V4,
        &Snapshot { node: "here", pods: vec![], namespaces: &namespaces, policies: vec![] },
    );
    let other = pod(2, 1, 0, true);
    let table = plan(
        Family::V4,
        &Snapshot {
            node: "here",
            pods: vec![&host, &other],
            namespaces: &namespaces,
            policies: vec![&policy],
        },
    );
    assert_eq!(table, empty);
}

#[test]
fn rules_grow_with_object_and_not_with_pairs() {
    let pod = |name: String, ip: String| -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "a"},
            "spec": {"nodeName": "n"}, "status": {"podIP": ip, "podIPs": [{"ip": ip}]}}))
        .unwrap()
    };
    let pods: Vec<_> = (0..200).map(|i| pod(format!("p{i}"), format!("10.0.1.{i}"))).collect();
    let blocks: Vec<_> =
        (0..200).map(|i| json!({"ipBlock": {"cidr": format!("10.1.{i}.0/24")}})).collect();
    let ports: Vec<_> = (1..=200).map(|port| json!({"protocol": "TCP", "port": port})).collect();
    let wide = json!({"from": blocks, "ports": ports});
    let equal = vec![json!({"from": [{"podSelector": {}}]}); 200];
    let rules = [vec![wide], equal].concat();
    let policy: NetworkPolicy = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "a"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"],
            "ingress": rules}}))
    .unwrap();
    let namespaces = Namespaces::default();
    let snapshot = Snapshot {
        node: "n",
        pods: pods.iter().collect(),
        namespaces: &namespaces,
        policies: vec![&policy],
    };
    let table = plan(Family::V4, &snapshot).table;
    let rules: usize = table.chains.values().map(|chain| chain.rules.len()).sum();
    assert!(rules < 200 * 7, "{rules}");
    let sets = table.sets.keys().filter(|set| set.ends_with("-peers")).count();
    assert_eq!(sets, 1, "rules with the same Pods share a set");
    let packet = |from: &str, port| Packet {
        from: from.parse().unwrap(),
        to: "10.0.1.7".parse().unwrap(),
        protocol: Protocol::Tcp,
        port,
    };
    for (from, port, expected) in [
        ("10.1.5.9", 200, true),
        ("10.1.5.9", 201, false),
        ("10.2.0.1", 1, false),
        ("10.0.1.9", 9, true),
    ] {
        assert_eq!(passes(&table, packet(from, port)), expected, "{from} {port}");
    }
}

fn policies_of(namespace: &str, specs: Vec<Value>) -> Vec<NetworkPolicy> {
    let policy = |(number, spec): (usize, Value)| {
        let meta = json!({"name": format!("p{number:04}"), "namespace": namespace});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    };
    specs.into_iter().enumerate().map(policy).collect()
}

fn labels_of_namespaces() -> Namespaces {
    [("n0", "a"), ("n1", "b")]
        .map(|(name, label)| (name.into(), [("app".to_owned(), label.to_owned())].into()))
        .into()
}

#[test]
fn accepts_long_names_and_many_exceptions() {
    let mut pods = [pod(1, 0, 0, true)];
    pods[0].metadata.name = "p".repeat(253).into();
    let except: Vec<_> = (0..200).map(|n| format!("10.1.{n}.0/25")).collect();
    let rule = json!({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": except}}, {"podSelector": {}}],
        "ports": [{"port": 80}, {"port": "web"}]});
    let mut policies = policies_of("n0", vec![json!({"podSelector": {}, "ingress": [rule]})]);
    policies[0].metadata.name = "q".repeat(253).into();
    let namespaces = labels_of_namespaces();
    let snapshot = Snapshot {
        node: "here",
        pods: pods.iter().collect(),
        namespaces: &namespaces,
        policies: policies.iter().collect(),
    };
    let table = plan(Family::V4, &snapshot).table;
    let names = || table.chains.keys().chain(table.sets.keys());
    assert!(names().all(|name| name.len() <= 255), "{table:?}");
    // The kernel rejects a rule of more than 128 expressions, of which a match may need three.
    let rules = table.chains.values().flat_map(|chain| &chain.rules);
    assert!(rules.clone().all(|rule| rule.matches("ip ").count() < 10), "{table:?}");
    for (from, port, expected) in
        [("10.1.7.200", 80, true), ("10.1.7.100", 80, false), ("10.1.7.200", 82, false)]
    {
        let from = from.parse().unwrap();
        let packet = Packet { from, to: [10, 1, 0, 1].into(), protocol: Protocol::Tcp, port };
        assert_eq!(passes(&table, packet), expected, "{packet:?}");
    }
}

#[test]
fn limits_rules_of_a_namespace_and_isolates_its_pods() {
    let pods: Vec<_> = (1..=200).map(|n| pod(n, u8::from(n > 100), n % 3, n % 2 == 0)).collect();
    let except = |n: usize| json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": [format!("{n}")]}]});
    let peers: Vec<_> = (0..1000)
        .map(|n| json!({"namespaceSelector": except(n), "podSelector": except(n)}))
        .collect();
    let allow = json!({"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [{"from": peers}]});
    let policies = policies_of("n0", vec![allow; 100]);
    let other = policies_of("n1", vec![json!({"podSelector": {}, "ingress": [{}]})]);
    let namespaces = labels_of_namespaces();
    let snapshot = Snapshot {
        node: "here",
        pods: pods.iter().collect(),
        namespaces: &namespaces,
        policies: policies.iter().chain(&other).collect(),
    };
    let Rules { table, exceeded } = plan(Family::V4, &snapshot);
    assert_eq!(exceeded, ["n0".into()].into());
    let chains = table.chains.keys().filter(|name| name.starts_with("policy-in-n0/")).count();
    assert!((5..50).contains(&chains), "{chains}");
    let passes = |to: u8| {
        let (from, to) = ([192, 0, 2, 1].into(), [10, 1, 0, to].into());
        passes(&table, Packet { from, to, protocol: Protocol::Tcp, port: 80 })
    };
    // The policies select every third Pod. All of the namespace on this node are isolated, and no others.
    assert_eq!([2, 4, 6, 102].map(passes), [false, false, false, true]);
}

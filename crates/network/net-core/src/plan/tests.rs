use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::{EndpointSlice, Protocol},
    nft::Content,
};

fn config() -> Config {
    Config {
        node: "n1".into(),
        zone: Some("z1".into()),
        local: LocalTraffic::From(vec!["10.1.0.0/16".parse().unwrap()]),
        node_ports: NodePorts::Addresses(vec!["192.168.0.1".parse().unwrap()]),
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        ..Config::default()
    }
}

fn service(spec: Value) -> Service {
    let mut spec = spec;
    let defaults = json!({"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"], "ports": [{"name": "p80", "port": 80}]});
    for (key, value) in defaults.as_object().unwrap() {
        spec.as_object_mut().unwrap().entry(key).or_insert(value.clone());
    }
    let status = spec.as_object_mut().unwrap().remove("ingress").unwrap_or(json!([]));
    serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": spec, "status": {"loadBalancer": {"ingress": status}}})).unwrap()
}

fn slice(endpoints: Value) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"name": "s-1", "namespace": "ns", "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": "IPv4", "ports": [{"name": "p80", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints,
    })).unwrap()
}

fn table(config: &Config, service: &Service, endpoints: Value) -> Table {
    let slice = slice(endpoints);
    plan(Family::V4, config, [service], &Slices::index([&slice]))
}

fn element<'t>(table: &'t Table, set: &str, key: &str) -> Option<&'t str> {
    match &table.sets[set].content {
        Content::Ours(elements) => elements.get(key).map(String::as_str),
        Content::Dynamic => None,
    }
}

fn rules(table: &Table, chain: &str) -> Vec<String> {
    table.chains.get(chain).map(|chain| chain.rules.clone()).unwrap_or_default()
}

const VIP: &str = "10.96.0.5 . tcp . 80";

fn two_endpoints() -> Value {
    json!([{"addresses": ["10.1.0.2"], "nodeName": "n1"}, {"addresses": ["10.1.1.2"], "nodeName": "n2"}])
}

#[test]
fn cluster_ip_leads_to_endpoints() {
    let table = table(&config(), &service(json!({})), two_endpoints());
    assert_eq!(element(&table, "service-ips", VIP), Some("goto service-VJSWWEDI-ns/s/tcp/p80"));
    assert_eq!(element(&table, "cluster-ips", "10.96.0.5"), Some(""));
    assert_eq!(
        rules(&table, "service-VJSWWEDI-ns/s/tcp/p80"),
        [
            "ip daddr 10.96.0.5 tcp dport 80 ip saddr != 10.1.0.0/16 jump mark-for-masquerade",
            "numgen random mod 2 0 goto endpoint-VJSWWEDI-ns/s/tcp/p80__10.1.0.2/8080",
            "goto endpoint-VJSWWEDI-ns/s/tcp/p80__10.1.1.2/8080",
        ]
    );
    assert_eq!(
        rules(&table, "endpoint-VJSWWEDI-ns/s/tcp/p80__10.1.0.2/8080"),
        ["ip saddr 10.1.0.2 jump mark-for-masquerade", "meta l4proto tcp dnat to 10.1.0.2:8080",]
    );
}

#[test]
fn rejects_without_endpoints_and_drops_without_local() {
    let none = table(&config(), &service(json!({})), json!([]));
    assert_eq!(element(&none, "no-endpoint-services", VIP), Some("goto reject-chain"));
    assert_eq!(element(&none, "service-ips", VIP), None);
    let elsewhere = json!([{"addresses": ["10.1.1.2"], "nodeName": "n2"}]);
    let local = table(&config(), &service(json!({"internalTrafficPolicy": "Local"})), elsewhere);
    assert_eq!(element(&local, "no-endpoint-services", VIP), Some("drop"));
}

#[test]
fn external_traffic_is_masqueraded_unless_it_stays_on_the_node() {
    let spec = json!({"type": "LoadBalancer", "ports": [{"name": "p80", "port": 80, "nodePort": 30080}],
        "externalIPs": ["1.2.3.4"], "ingress": [{"ip": "5.6.7.8"}, {"ip": "5.6.7.9", "ipMode": "Proxy"}]});
    let open = table(&config(), &service(spec.clone()), two_endpoints());
    for (set, key) in [
        ("service-ips", "1.2.3.4 . tcp . 80"),
        ("service-ips", "5.6.7.8 . tcp . 80"),
        ("service-nodeports", "tcp . 30080"),
    ] {
        assert_eq!(element(&open, set, key), Some("goto external-VJSWWEDI-ns/s/tcp/p80"), "{key}");
    }
    assert_eq!(element(&open, "service-ips", "5.6.7.9 . tcp . 80"), None);
    assert_eq!(
        rules(&open, "external-VJSWWEDI-ns/s/tcp/p80"),
        ["jump mark-for-masquerade", "goto service-VJSWWEDI-ns/s/tcp/p80"]
    );

    let mut spec = spec;
    spec["externalTrafficPolicy"] = json!("Local");
    let local = table(&config(), &service(spec.clone()), two_endpoints());
    let chain = rules(&local, "external-VJSWWEDI-ns/s/tcp/p80");
    assert_eq!(chain.last().unwrap(), "goto local-VJSWWEDI-ns/s/tcp/p80");
    assert!(chain[0].starts_with("ip saddr 10.1.0.0/16 goto service-"), "{chain:?}");
    assert_eq!(rules(&local, "local-VJSWWEDI-ns/s/tcp/p80").len(), 1);

    let elsewhere = json!([{"addresses": ["10.1.1.2"], "nodeName": "n2"}]);
    let remote = table(&config(), &service(spec), elsewhere);
    assert_eq!(element(&remote, "no-endpoint-nodeports", "tcp . 30080"), Some("drop"));
    assert_eq!(
        element(&remote, "service-nodeports", "tcp . 30080"),
        Some("goto external-VJSWWEDI-ns/s/tcp/p80")
    );
    assert_eq!(
        element(&remote, "no-endpoint-services", VIP),
        None,
        "the ClusterIP is served by any node"
    );
}

#[test]
fn published_port_leads_to_node_port() {
    let publish = |port, protocol| PublishedPort { protocol, port, node_port: 30080 };
    let published = vec![publish(8080, Protocol::Tcp), publish(8081, Protocol::Udp)];
    let config = Config { published, ..config() };
    let spec =
        json!({"type": "NodePort", "ports": [{"name": "p80", "port": 80, "nodePort": 30080}]});
    let open = table(&config, &service(spec.clone()), two_endpoints());
    for key in ["tcp . 30080", "tcp . 8080"] {
        let chain = element(&open, "service-nodeports", key);
        assert_eq!(chain, Some("goto external-VJSWWEDI-ns/s/tcp/p80"), "{key}");
    }
    assert_eq!(element(&open, "service-nodeports", "udp . 8081"), None, "another protocol");
    let dead = table(&config, &service(spec), json!([]));
    assert_eq!(element(&dead, "no-endpoint-nodeports", "tcp . 8080"), Some("goto reject-chain"));
}

#[test]
fn source_ranges_protect_balancer_address() {
    let spec = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.9.0.0/16", " 203.0.113.0/24 "], "ingress": [{"ip": "5.6.7.8"}]});
    let table = table(&config(), &service(spec), two_endpoints());
    assert_eq!(
        element(&table, "firewall-ips", "5.6.7.8 . tcp . 80"),
        Some("goto firewall-VJSWWEDI-ns/s/tcp/p80")
    );
    assert_eq!(
        rules(&table, "firewall-VJSWWEDI-ns/s/tcp/p80"),
        ["ip saddr @sources-TNO7VA74-ns/s return", "drop"]
    );
    let Content::Ours(sources) = &table.sets["sources-TNO7VA74-ns/s"].content else { panic!() };
    assert_eq!(sources.keys().collect::<Vec<_>>(), ["10.9.0.0/16", "203.0.113.0/24"]);
}

#[test]
fn ports_share_source_ranges() {
    let number = |i: u16| format!("10.{}.{}.0/24", i / 250, i % 250);
    let ranges: Vec<_> = (0..2000).map(number).chain(["10.0.0.0/16".to_owned()]).collect();
    let ports: Vec<_> = (1..2000).map(|p| json!({"name": format!("p{p}"), "port": p})).collect();
    let spec = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ranges, "ports": ports, "ingress": [{"ip": "5.6.7.8"}]});
    let table = table(&config(), &service(spec), two_endpoints());
    let rules: usize = table.chains.values().map(|chain| chain.rules.len()).sum();
    assert!(rules < 20_000, "{rules}");
    let Content::Ours(sources) = &table.sets["sources-TNO7VA74-ns/s"].content else { panic!() };
    assert_eq!(sources.len(), 2000 - 250 + 1, "the large range contains 250 others");
}

#[test]
fn affinity_stores_clients_per_endpoint() {
    let spec = json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}});
    let table = table(&config(), &service(spec), two_endpoints());
    let set = "affinity-endpoint-VJSWWEDI-ns/s/tcp/p80__10.1.0.2/8080";
    assert_eq!(table.sets[set].content, Content::Dynamic);
    assert_eq!(
        rules(&table, "service-VJSWWEDI-ns/s/tcp/p80")[1],
        format!("ip saddr @{set} goto endpoint-VJSWWEDI-ns/s/tcp/p80__10.1.0.2/8080")
    );
    assert_eq!(
        rules(&table, "endpoint-VJSWWEDI-ns/s/tcp/p80__10.1.0.2/8080")[1],
        format!("update @{set} {{ ip saddr timeout 60s }}")
    );
}

#[test]
fn uses_verdict_map_for_many_endpoints() {
    let endpoints: Vec<_> = (0..9).map(|n| json!({"addresses": [format!("10.1.0.{n}")]})).collect();
    let table = table(&config(), &service(json!({})), json!(endpoints));
    let rule = rules(&table, "service-VJSWWEDI-ns/s/tcp/p80").pop().unwrap();
    assert!(
        rule.starts_with("numgen random mod 9 vmap { 0 : goto ") && rule.contains(" , 8 : goto "),
        "{rule}"
    );
}

fn targets(table: &Table) -> Vec<String> {
    let ends = table.chains.keys().filter_map(|name| name.split_once("__"));
    ends.map(|(_, end)| end.to_owned()).collect()
}

#[test]
fn conditions_and_hints_choose_endpoints() {
    let hint = |zone| json!({"forZones": [{"name": zone}]});
    let on = |node| json!({"forNodes": [{"name": node}]});
    for (why, endpoints, expected) in [
        (
            "not ready is left out",
            json!([{"addresses": ["10.1.0.2"]}, {"addresses": ["10.1.0.3"], "conditions": {"ready": false}}]),
            vec!["10.1.0.2/8080"],
        ),
        (
            "terminating but serving is the last resort",
            json!([{"addresses": ["10.1.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true}}]),
            vec!["10.1.0.3/8080"],
        ),
        (
            "own zone",
            json!([{"addresses": ["10.1.0.2"], "hints": hint("z1")}, {"addresses": ["10.1.0.3"], "hints": hint("z2")}]),
            vec!["10.1.0.2/8080"],
        ),
        (
            "no endpoint in own zone",
            json!([{"addresses": ["10.1.0.3"], "hints": hint("z2")}]),
            vec!["10.1.0.3/8080"],
        ),
        (
            "partial hints",
            json!([{"addresses": ["10.1.0.2"], "hints": hint("z1")}, {"addresses": ["10.1.0.3"]}]),
            vec!["10.1.0.2/8080", "10.1.0.3/8080"],
        ),
        (
            "own node",
            json!([{"addresses": ["10.1.0.2"], "hints": on("n2")}, {"addresses": ["10.1.0.3"], "hints": on("n1")}]),
            vec!["10.1.0.3/8080"],
        ),
        (
            "no endpoint on own node, but in own zone",
            json!([
                {"addresses": ["10.1.0.2"], "hints": {"forNodes": [{"name": "n2"}], "forZones": [{"name": "z1"}]}},
                {"addresses": ["10.1.0.3"], "hints": {"forNodes": [{"name": "n3"}], "forZones": [{"name": "z2"}]}},
            ]),
            vec!["10.1.0.2/8080"],
        ),
        (
            "no endpoint on own node or in own zone",
            json!([
                {"addresses": ["10.1.0.2"], "hints": {"forNodes": [{"name": "n2"}], "forZones": [{"name": "z3"}]}},
                {"addresses": ["10.1.0.3"], "hints": {"forNodes": [{"name": "n3"}], "forZones": [{"name": "z2"}]}},
            ]),
            vec!["10.1.0.2/8080", "10.1.0.3/8080"],
        ),
        (
            "endpoint on own node is not ready",
            json!([
                {"addresses": ["10.1.0.2"], "hints": {"forNodes": [{"name": "n1"}]}, "conditions": {"ready": false}},
                {"addresses": ["10.1.0.3"], "hints": {"forNodes": [{"name": "n2"}]}},
            ]),
            vec!["10.1.0.3/8080"],
        ),
        (
            "null hints",
            json!([{"addresses": ["10.1.0.2"], "hints": {"forZones": null, "forNodes": null}}]),
            vec!["10.1.0.2/8080"],
        ),
        (
            "one endpoint twice",
            json!([{"addresses": ["10.1.0.2"], "conditions": {"ready": false}}, {"addresses": ["10.1.0.2"]}]),
            vec!["10.1.0.2/8080"],
        ),
    ] {
        assert_eq!(targets(&table(&config(), &service(json!({})), endpoints)), expected, "{why}");
    }
}

#[test]
fn plans_families_separately() {
    let spec = json!({"clusterIP": "fd00::5", "clusterIPs": ["fd00::5", "10.96.0.5"]});
    let service = service(spec);
    let mut six = slice(json!([{"addresses": ["fd01::2"]}]));
    six.address_type = crate::api::AddressType::IPv6;
    let four = slice(two_endpoints());
    let slices = Slices::index([&four, &six]);
    let [v4, v6] = Family::ALL.map(|family| plan(family, &config(), [&service], &slices));
    assert_eq!(element(&v4, "service-ips", VIP), Some("goto service-VJSWWEDI-ns/s/tcp/p80"));
    assert_eq!(
        element(&v6, "service-ips", "fd00::5 . tcp . 80"),
        Some("goto service-VJSWWEDI-ns/s/tcp/p80")
    );
    assert_eq!(
        rules(&v6, "endpoint-VJSWWEDI-ns/s/tcp/p80__fd01..2/8080")[1],
        "meta l4proto tcp dnat to [fd01::2]:8080"
    );
    assert!(!v4.chains.keys().any(|name| name.contains("fd01")));
}

#[test]
fn skips_headless_and_foreign_services() {
    let mut foreign = service(json!({}));
    foreign
        .metadata
        .labels
        .insert("service.kubernetes.io/service-proxy-name".into(), "other".into());
    let empty = plan(Family::V4, &config(), [], &Slices::index([]));
    for (why, service) in [
        ("headless", service(json!({"clusterIP": "None", "clusterIPs": ["None"]}))),
        (
            "external name",
            service(json!({"type": "ExternalName", "clusterIP": "", "clusterIPs": []})),
        ),
        ("another proxy's", foreign),
    ] {
        assert_eq!(table(&config(), &service, two_endpoints()), empty, "{why}");
    }
}

#[test]
fn first_service_wins_shared_address() {
    let with_ip = |name: &str| {
        let mut service = service(json!({"externalIPs": ["1.2.3.4"]}));
        service.metadata.name = name.into();
        service
    };
    let (a, b) = (with_ip("a"), with_ip("b"));
    for order in [[&a, &b], [&b, &a]] {
        let table = plan(Family::V4, &config(), order, &Slices::index([]));
        assert_eq!(
            element(&table, "no-endpoint-services", "1.2.3.4 . tcp . 80"),
            Some("goto reject-chain")
        );
    }
    let endpoints = slice(two_endpoints());
    let served = with_ip("s");
    let dead_last = with_ip("t");
    for order in [[&served, &dead_last], [&dead_last, &served]] {
        let table = plan(Family::V4, &config(), order, &Slices::index([&endpoints]));
        assert_eq!(
            element(&table, "service-ips", "1.2.3.4 . tcp . 80"),
            Some("goto external-VJSWWEDI-ns/s/tcp/p80")
        );
        assert_eq!(element(&table, "no-endpoint-services", "1.2.3.4 . tcp . 80"), None);
    }
    for order in [[&a, &b], [&b, &a]] {
        // A packet stops at the first rule that fits.
        let chains = iptables::plan(Family::V4, &config(), order, &Slices::index([]));
        let rules = chains.rules("filter", "KUBE-EXTERNAL-SERVICES");
        assert!(rules[0].contains("ns/a") && rules[1].contains("ns/b"), "{rules:?}");
    }
    let forward = plan(Family::V4, &config(), [&a, &b], &Slices::index([]));
    assert_eq!(forward, plan(Family::V4, &config(), [&b, &a], &Slices::index([])));
}

proptest! {
    /// Every chain and set that a rule or an element refers to exists in the planner's output.
    #[test]
    fn plans_contain_every_referenced_chain_and_set(kinds in prop::collection::vec((0u8..3, any::<bool>(), any::<bool>(), any::<bool>(), 0u8..3), 0..6)) {
        let services: Vec<_> = kinds.iter().enumerate().map(|(n, (kind, sticky, internal, external, _))| {
            let kinds = ["ClusterIP", "NodePort", "LoadBalancer"];
            let mut service = service(json!({
                "type": kinds[usize::from(*kind)],
                "clusterIP": format!("10.96.0.{n}"), "clusterIPs": [format!("10.96.0.{n}")],
                "sessionAffinity": if *sticky { "ClientIP" } else { "None" },
                "internalTrafficPolicy": if *internal { "Local" } else { "Cluster" },
                "externalTrafficPolicy": if *external { "Local" } else { "Cluster" },
                "ports": [{"name": "p80", "port": 80, "nodePort": if *kind > 0 { 30000 + n } else { 0 }}],
                "ingress": [{"ip": "5.6.7.8"}], "loadBalancerSourceRanges": ["10.0.0.0/8"],
            }));
            service.metadata.name = format!("s{n}").into();
            service
        }).collect();
        let slices: Vec<_> = kinds.iter().enumerate().map(|(n, (.., endpoints))| {
            let list: Vec<_> = (0..*endpoints).map(|e| json!({"addresses": [format!("10.1.{n}.{e}")], "nodeName": format!("n{e}")})).collect();
            let mut slice = slice(json!(list));
            slice.metadata.labels.insert(EndpointSlice::SERVICE_NAME.into(), format!("s{n}"));
            slice
        }).collect();
        let table = plan(Family::V4, &config(), &services, &Slices::index(&slices));
        for word in table.chains.values().flat_map(|chain| &chain.rules).chain(table.sets.values().flat_map(values)).flat_map(|text| named(text)) {
            prop_assert!(table.chains.contains_key(word) || table.sets.contains_key(word), "{}", word);
        }
    }
}

fn values(set: &crate::nft::Set) -> Vec<&String> {
    match &set.content {
        Content::Ours(elements) => elements.values().collect(),
        Content::Dynamic => Vec::new(),
    }
}

fn named(text: &str) -> Vec<&str> {
    let words: Vec<_> = text.split(' ').collect();
    let jumps =
        words.windows(2).filter(|pair| pair[0] == "goto" || pair[0] == "jump").map(|pair| pair[1]);
    jumps.chain(words.iter().filter_map(|word| word.strip_prefix('@'))).collect()
}

//! Tables and properties of the records of names.

use std::collections::BTreeMap;

use api_meta::Timestamp;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

use super::*;

fn node(name: &str, role: &str, internal: &[&str], external: &[&str]) -> NodeAddresses {
    let address = |kind: &str, ip: &str| json!({"type": kind, "address": ip});
    let mut addresses: Vec<_> = internal.iter().map(|ip| address("InternalIP", ip)).collect();
    addresses.extend(external.iter().map(|ip| address("ExternalIP", ip)));
    addresses.push(address("Hostname", name));
    node_addresses(&json!({
        "metadata": {"name": name, "labels": {(format!("node-role.kubernetes.io/{role}")): ""}},
        "status": {"addresses": addresses},
    }))
}

fn object(namespace: &str, name: &str, annotations: Value, rest: Value) -> Value {
    let mut object =
        json!({"metadata": {"namespace": namespace, "name": name, "annotations": annotations}});
    if let (Value::Object(object), Value::Object(rest)) = (&mut object, rest) {
        object.extend(rest);
    }
    object
}

/// Returns the API server's Pod on a Node.
fn pod(node: &str, ips: &[&str]) -> Value {
    let annotations = json!({INTERNAL: "api.internal.a.example", EXTERNAL: " API.a.example. ,"});
    let ips: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    object(
        "kube-system",
        &format!("kube-apiserver-{node}"),
        annotations,
        json!({
            "spec": {"hostNetwork": true, "nodeName": node},
            "status": {"podIP": ips.first().map(|ip| ip["ip"].clone()), "podIPs": ips},
        }),
    )
}

fn service(namespace: &str, kind: &str, annotations: Value, ingress: Value) -> Claims {
    let rest = json!({"spec": {"type": kind}, "status": {"loadBalancer": {"ingress": ingress}}});
    service_claims(&object(namespace, "web", annotations, rest))
}

/// Returns the records as text: `name A 1.2.3.4,5.6.7.8; name CNAME other`.
fn shown(wanted: &DesiredRecords) -> String {
    let name = |(name, records): (&String, &Records)| {
        let sets = records.by_type().into_iter();
        let sets: Vec<_> =
            sets.map(|(kind, values)| format!(" {kind} {}", values.join(","))).collect();
        format!("{name}{}", if sets.is_empty() { " -".to_owned() } else { sets.concat() })
    };
    wanted.names.iter().map(name).collect::<Vec<_>>().join("; ")
}

#[test]
fn api_servers_have_addresses_of_their_nodes() {
    let nodes = [
        node("cp-1", "control-plane", &["10.0.0.1"], &["192.0.2.1"]),
        node("cp-2", "control-plane", &["10.0.0.2", "fd00::2"], &["192.0.2.2"]),
        node("w-1", "node", &["10.0.0.9"], &["192.0.2.9"]),
    ];
    let both = [pod("cp-1", &["10.0.0.1"]), pod("cp-2", &["10.0.0.2", "fd00::2"])];
    let claims: Vec<_> = both.iter().map(pod_claims).collect();
    let options = AddressOptions::default();
    let result = wanted(&nodes, &claims, options);
    assert_eq!(
        shown(&result),
        "api.a.example A 192.0.2.1,192.0.2.2 AAAA fd00::2; \
         api.internal.a.example A 10.0.0.1,10.0.0.2 AAAA fd00::2"
    );
    assert!(result.problems.is_empty());
    let v4 = AddressOptions { internal_ipv6: false, ..options };
    assert!(
        shown(&wanted(&nodes, &claims, v4)).ends_with("internal.a.example A 10.0.0.1,10.0.0.2")
    );
    let v6 = AddressOptions { internal_ipv4: false, ..options };
    assert!(shown(&wanted(&nodes, &claims, v6)).ends_with("internal.a.example AAAA fd00::2"));
    // Without external addresses, as on machines without a cloud.
    let nodes = [node("cp-1", "control-plane", &["10.0.0.1"], &[])];
    assert_eq!(
        shown(&wanted(&nodes, &claims[..1], options)),
        "api.a.example -; api.internal.a.example A 10.0.0.1"
    );
    let fallback = AddressOptions { internal_as_external: true, ..options };
    assert!(
        shown(&wanted(&nodes, &claims[..1], fallback)).starts_with("api.a.example A 10.0.0.1;")
    );
}

#[test]
fn pods_without_an_address_only_claim_names() {
    let mut ended = pod("cp-1", &["10.0.0.1"]);
    ended["status"]["phase"] = json!("Failed");
    let mut pod_network = pod("cp-1", &["10.0.0.1"]);
    pod_network["spec"]["hostNetwork"] = json!(false);
    let nodes = [node("cp-1", "control-plane", &["10.0.0.1"], &["192.0.2.1"])];
    for (pod, expected) in [
        (pod("cp-1", &[]), "api.a.example A 192.0.2.1; api.internal.a.example -"),
        (pod("other", &[]), "api.a.example -; api.internal.a.example -"),
        (ended, "api.a.example -; api.internal.a.example -"),
        (pod_network, ""),
    ] {
        let found = wanted(&nodes, [&pod_claims(&pod)], AddressOptions::default());
        assert_eq!(shown(&found), expected);
    }
}

#[test]
fn services_have_addresses_of_balancers_or_workers() {
    let nodes = [
        node("w-1", "node", &["10.0.0.8"], &["192.0.2.8"]),
        node("w-2", "node", &["10.0.0.9"], &["192.0.2.9"]),
        node("cp-1", "control-plane", &["10.0.0.1"], &["192.0.2.1"]),
    ];
    let (internal, external) =
        (json!({INTERNAL: "in.a.example"}), json!({EXTERNAL: "ex.a.example"}));
    let both = json!({INTERNAL: "in.a.example", EXTERNAL: "ex.a.example"});
    let host = json!([{"hostname": "B.elb.example."}, {"hostname": "c.elb.example"}]);
    for (kind, annotations, ingress, expected) in [
        ("NodePort", internal.clone(), json!([]), "in.a.example A 10.0.0.8,10.0.0.9"),
        ("NodePort", external.clone(), json!([]), "ex.a.example A 192.0.2.8,192.0.2.9"),
        ("NodePort", both.clone(), json!([]), "ex.a.example -; in.a.example -"),
        ("ClusterIP", both.clone(), json!([]), ""),
        ("LoadBalancer", internal, host.clone(), "in.a.example CNAME b.elb.example"),
        (
            "LoadBalancer",
            both,
            json!([{"ip": "192.0.2.5"}, {"ip": "2001:db8::5"}]),
            "ex.a.example A 192.0.2.5 AAAA 2001:db8::5; in.a.example A 192.0.2.5 AAAA 2001:db8::5",
        ),
        // Addresses and a host name cannot be combined.
        (
            "LoadBalancer",
            external.clone(),
            json!([{"hostname": "b.elb.example"}, {"ip": "192.0.2.5"}]),
            "ex.a.example A 192.0.2.5",
        ),
        ("LoadBalancer", external.clone(), json!([{"hostname": "EX.a.example"}]), "ex.a.example -"),
        ("LoadBalancer", external, json!([{"hostname": "a b"}, {"ip": "x"}, 7]), "ex.a.example -"),
    ] {
        let claims = service("default", kind, annotations, ingress);
        assert_eq!(
            shown(&wanted(&nodes, [&claims], AddressOptions::default())),
            expected,
            "{kind}"
        );
    }
}

#[test]
fn ingresses_have_their_hosts() {
    let rules = json!([{"host": "a.b.example"}, {"host": "*.b.example"}, {"http": {}}]);
    let rest = json!({
        "spec": {"rules": rules}, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}},
    });
    let claims = ingress_claims(&object("default", "a", json!({}), rest));
    let found = wanted(&[], [&claims], AddressOptions::default());
    assert_eq!(shown(&found), "*.b.example A 192.0.2.7; a.b.example A 192.0.2.7");
}

#[test]
fn other_namespaces_cannot_change_names_of_kube_system() {
    let nodes = [node("cp-1", "control-plane", &["10.0.0.1"], &["192.0.2.1"])];
    let attack = json!({EXTERNAL: "api.a.example,mine.a.example"});
    let attack = service("tenant", "LoadBalancer", attack, json!([{"ip": "203.0.113.6"}]));
    let own = pod_claims(&pod("cp-1", &["10.0.0.1"]));
    for order in [[&attack, &own], [&own, &attack]] {
        let found = wanted(&nodes, order, AddressOptions::default());
        let text = shown(&found);
        assert!(text.starts_with("api.a.example A 192.0.2.1; "), "{text}");
        assert!(text.ends_with("mine.a.example A 203.0.113.6"), "{text}");
        let problem =
            "Service tenant/web: Pod kube-system/kube-apiserver-cp-1 claims api.a.example";
        assert_eq!(found.problems, [problem]);
    }
    // A Pod without an address keeps the name, too.
    let own = pod_claims(&pod("cp-2", &[]));
    let found = wanted(&nodes, [&attack, &own], AddressOptions::default());
    assert!(shown(&found).starts_with("api.a.example -; "));
}

#[test]
fn rejects_names_that_are_no_dns_names() {
    let long = format!("{}.example", "a".repeat(64));
    let longest = vec!["a".repeat(63); 4].join(".");
    for text in [
        "",
        ".",
        "localhost",
        "a..example",
        "-a.example",
        "a-.example",
        "a b.example",
        "ä.example",
        "a.example/x",
        "*",
        "*.",
        "a.*.example",
        "*a.example",
        "a.example\n",
        "a\0.example",
        "\\052.example",
        &long,
        &longest,
        "a.example..",
    ] {
        assert_eq!(parse_name(text), None, "{text:?}");
    }
    for (text, name) in [
        ("A.Example.", "a.example"),
        ("*.a.example", "*.a.example"),
        ("_x._tcp.example", "_x._tcp.example"),
        ("1.2.3.4", "1.2.3.4"),
    ] {
        assert_eq!(parse_name(text).as_deref(), Some(name));
    }
    let names = json!({EXTERNAL: "good.a.example,bad name,x"});
    let claims = service("a", "LoadBalancer", names, json!([{"ip": "192.0.2.1"}]));
    let found = wanted(&[], [&claims], AddressOptions::default());
    assert_eq!(shown(&found), "good.a.example A 192.0.2.1");
    assert_eq!(found.problems.len(), 2, "{:?}", found.problems);
}

#[test]
fn huge_annotations_are_ignored() {
    // The API server limits all annotations of an object to 256 KiB.
    let many: String = (0..20_000).map(|n| format!("n{n}.a.example,")).collect();
    let bad = "x,".repeat(128 << 10);
    for text in [many, bad, "y".repeat(256 << 10)] {
        let claims =
            service("a", "LoadBalancer", json!({EXTERNAL: text}), json!([{"ip": "1.1.1.1"}]));
        let found = wanted(&[], [&claims], AddressOptions::default());
        assert!(found.names.is_empty());
        assert!(!found.problems.is_empty() && found.problems.len() <= 50);
        assert!(found.problems.iter().all(|problem| problem.len() < 300));
    }
}

#[test]
fn ten_thousand_pods_of_one_name_are_combined() {
    let nodes: Vec<_> = (0..10_000)
        .map(|n| node(&format!("n-{n}"), "node", &[&format!("10.0.{}.{}", n / 250, n % 250)], &[]))
        .collect();
    let mut claims: Vec<_> = (0..10_000)
        .map(|n| pod_claims(&pod(&format!("n-{n}"), &[&format!("10.0.{}.{}", n / 250, n % 250)])))
        .collect();
    claims.push(service("a", "NodePort", json!({INTERNAL: "all.a.example"}), json!([])));
    let found = wanted(&nodes, &claims, AddressOptions::default());
    assert_eq!(found.names["api.internal.a.example"].ipv4.len(), 100);
    assert_eq!(found.names["all.a.example"].ipv4.len(), 100);
    assert!(found.names["api.a.example"].is_empty());
    assert_eq!(found.problems.len(), 2);
}

#[test]
fn names_of_many_workers_have_the_first_addresses_of_both_families() {
    let nodes = |count: u8| -> Vec<_> {
        let ips = (0..count).map(|n| [format!("10.0.0.{n}"), format!("fd00::{n:x}")]);
        ips.map(|[v4, v6]| node(&v4, "node", &[&v4, &v6], &[])).collect()
    };
    let claims = service("a", "NodePort", json!({INTERNAL: "all.a.example"}), json!([]));
    for (count, problems) in [(100, 0), (101, 1), (200, 1)] {
        let found = wanted(&nodes(count), [&claims], AddressOptions::default());
        let records = &found.names["all.a.example"];
        assert_eq!((records.ipv4.len(), records.ipv6.len()), (100, 100), "{count}");
        assert!(records.ipv4.iter().all(|ip| ip.octets()[3] < 100), "{count}");
        assert!(records.ipv6.iter().all(|ip| ip.octets()[15] < 100), "{count}");
        assert_eq!(found.problems.len(), problems, "{count}");
    }
}

#[test]
fn selects_zones_by_rules() {
    let zone = |id: &str, name: &str| Zone::new(id, name).unwrap();
    let zones = [
        zone("Z1", "Example."),
        zone("Z2", "sub.example."),
        zone("Z3", "two.example."),
        zone("Z4", "two.example"),
        zone("Z5", "other.test"),
    ];
    let find = |rules: &[&str], name: &str| {
        let rules: Vec<_> = rules.iter().map(|&rule| rule.to_owned()).collect();
        let zones = ZoneRules::parse(&rules).unwrap().select(zones.clone());
        zones.find(name).map_or_else(|error| error.to_string(), |zone| zone.id.clone())
    };
    let missing = "no permitted zone contains it; see --zone";
    let ambiguous = "several zones are called two.example; name one with --zone two.example/ID";
    for (rules, name, expected) in [
        (&[][..], "a.example", "Z1"),
        (&["*"], "example", "Z1"),
        (&["*/*"], "a.sub.example", "Z2"),
        (&["*"], "sub.example", "Z2"),
        (&["*"], "xsub.example", "Z1"),
        (&["*"], "*.b.sub.example", "Z2"),
        (&["*"], "a.two.example", ambiguous),
        (&["two.example"], "a.two.example", ambiguous),
        (&["two.example/Z4"], "a.two.example", "Z4"),
        (&["*/Z3", "*"], "a.two.example", "Z3"),
        (&["*/Z3", "*/Z4"], "a.two.example", ambiguous),
        (&["other.test/Z4", "example"], "a.two.example", "Z1"),
        (&["*/Z1"], "a.sub.example", "Z1"),
        (&["other.test"], "a.example", missing),
        (&["SUB.example."], "a.sub.example", "Z2"),
        (&["*"], "a.nowhere", missing),
        (&["example/*"], "a.example", "Z1"),
    ] {
        assert_eq!(find(rules, name), expected, "{rules:?} {name}");
    }
    for rule in ["", "/", "*/", "a.example/", "a b", "*.example", "a/b/c", "*/*/*", "a/**"] {
        assert!(ZoneRules::parse(&[rule.to_owned()]).is_err(), "{rule:?}");
    }
    let rules = ["a.example", "b.example/Z", "*/Z", "*"].map(str::to_owned);
    let rules = ZoneRules::parse(&rules).unwrap();
    assert_eq!(rules.names().collect::<Vec<_>>(), ["a.example", "b.example"]);
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix(seconds, 0)
}

fn records(ip: &str) -> Records {
    Records { ipv4: [ip.parse().unwrap()].into(), ..Records::default() }
}

fn names(all: &[(&str, Records)]) -> BTreeMap<String, Records> {
    all.iter().map(|(name, records)| ((*name).to_owned(), records.clone())).collect()
}

#[test]
fn name_is_removed_after_a_grace_if_this_process_wrote_it() {
    let mut published = Published::default();
    let one = names(&[("a.example", records("10.0.0.1"))]);
    let all = published.changes(&one, at(0));
    assert_eq!(all.len(), 1);
    assert_eq!(published.changes(&one, at(1)), all);
    published.succeeded(&all[0]);
    assert!(published.changes(&one, at(2)).is_empty());
    // No address is known: the name stays.
    assert!(published.changes(&names(&[("a.example", Records::default())]), at(9_000)).is_empty());
    // The Pod is deleted and created again.
    assert!(published.changes(&names(&[]), at(9_010)).is_empty());
    assert!(published.changes(&one, at(9_060)).is_empty());
    assert!(published.changes(&names(&[]), at(9_070)).is_empty());
    assert!(published.changes(&names(&[]), at(9_129)).is_empty());
    let removal = published.changes(&names(&[]), at(9_130));
    assert_eq!(removal, [Change { name: "a.example".to_owned(), records: Records::default() }]);
    published.succeeded(&removal[0]);
    assert!(published.changes(&names(&[]), at(99_999)).is_empty());
}

#[test]
fn failed_names_are_retried_with_backoff_and_do_not_delay_others() {
    let mut published = Published::default();
    let both = names(&[("a.example", records("10.0.0.1")), ("b.example", records("10.0.0.2"))]);
    let (mut now, mut pauses) = (0, Vec::new());
    for _ in 0..8 {
        let due = published.changes(&both, at(now));
        let change = due.iter().find(|change| change.name == "a.example").unwrap().clone();
        assert!(due.iter().any(|change| change.name == "b.example"));
        published.failed(&change, true, at(now));
        let retry = (now..).find(|&at_| {
            published.changes(&both, at(at_)).iter().any(|change| change.name == "a.example")
        });
        pauses.push(retry.unwrap() - now);
        now = retry.unwrap();
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 160, 160]);
    // The provider rejected all writes, so a record of this name is not ours.
    assert!(published.changes(&names(&[]), at(now)).is_empty());
    assert!(published.changes(&names(&[]), at(now + 9_999)).is_empty());
    // After a failure with an unknown outcome, the record may be ours.
    let change = published.changes(&both, at(now))[0].clone();
    published.failed(&change, false, at(now));
    assert!(published.changes(&names(&[]), at(now + 9_999)).is_empty());
    assert_eq!(published.changes(&names(&[]), at(now + 99_999)).len(), 1);
}

/// Simulates objects that come, go and lose their addresses, and a provider that fails.
#[test]
fn claimed_names_never_lose_their_last_record() {
    for seed in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut zone =
            names(&[("n0.example", records("192.0.2.1")), ("own.example", records("192.0.2.2"))]);
        let mut published = Published::default();
        for step in 0..200_i64 {
            let now = step * 5;
            let mut wanted = BTreeMap::new();
            for n in 0..4 {
                match rng.random_range(0..4) {
                    0 => {}
                    1 => drop(wanted.insert(format!("n{n}.example"), Records::default())),
                    last => drop(
                        wanted.insert(format!("n{n}.example"), records(&format!("10.0.0.{last}"))),
                    ),
                }
            }
            let before = zone.clone();
            for change in published.changes(&wanted, at(now)) {
                let outcome = rng.random_range(0..4);
                if outcome != 0 {
                    zone.remove(&change.name);
                    if !change.records.is_empty() {
                        zone.insert(change.name.clone(), change.records.clone());
                    }
                }
                match outcome {
                    0 => published.failed(&change, true, at(now)),
                    1 => published.failed(&change, false, at(now)),
                    _ => published.succeeded(&change),
                }
            }
            for name in before.keys() {
                assert!(zone.contains_key(name) || !wanted.contains_key(name), "{seed} {name}");
            }
            assert_eq!(zone["own.example"], records("192.0.2.2"));
        }
        // Once the provider works, the zone has what is wanted, and nothing else of this process.
        let wanted = names(&[("n1.example", records("10.9.9.9"))]);
        for round in 0..100 {
            for change in published.changes(&wanted, at(10_000 + 5 * round)) {
                zone.remove(&change.name);
                if !change.records.is_empty() {
                    zone.insert(change.name.clone(), change.records.clone());
                }
                published.succeeded(&change);
            }
        }
        assert_eq!(zone["n1.example"], records("10.9.9.9"));
        assert!(!zone.contains_key("n2.example") && !zone.contains_key("n3.example"));
    }
}

#[test]
fn requests_are_bounded() {
    let change = |n: usize, count: u8| Change {
        name: format!("n{n}.example"),
        records: Records {
            ipv4: (0..count).map(|n| [10, 0, 0, n].into()).collect(),
            ..Records::default()
        },
    };
    let sizes =
        |changes: &[Change]| batches(changes).iter().map(|all| all.len()).collect::<Vec<_>>();
    assert!(sizes(&[]).is_empty());
    assert_eq!(sizes(&(0..45).map(|n| change(n, 1)).collect::<Vec<_>>()), [20, 20, 5]);
    assert_eq!(sizes(&(0..5).map(|n| change(n, 100)).collect::<Vec<_>>()), [2, 2, 1]);
    assert_eq!(sizes(&[change(0, 255), change(1, 0), change(2, 255)]), [1, 1, 1]);
}

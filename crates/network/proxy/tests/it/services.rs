use std::{collections::BTreeSet, net::UdpSocket, time::Duration};

use proxy::Mode;
use serde_json::json;

use crate::world::{Connection, NODE, OUTSIDE, World, ask, pod_ip, service, slice};

const VIP: &str = "10.96.0.5:80";

/// Runs a test in both modes, because Services must behave the same.
macro_rules! in_both_modes {
    ($($name:ident),* $(,)?) => {
        mod nftables {
            $(#[test] fn $name() { super::$name(proxy::Mode::Nftables) })*
        }
        mod iptables {
            $(#[test] fn $name() { super::$name(proxy::Mode::Iptables) })*
        }
    };
}

in_both_modes!(
    cluster_ip_serves_pods_node_and_endpoint_itself,
    rejects_missing_endpoints_and_unknown_ports,
    changes_and_restarts_keep_open_connections,
    node_ports_serve_external_clients,
    affinity_keeps_client_on_endpoint,
    moves_udp_flows_when_endpoint_is_removed,
    cleanup_removes_all_rules_and_is_idempotent,
    serves_ipv6_beside_ipv4,
);

fn cluster_ip_serves_pods_node_and_endpoint_itself(mode: Mode) {
    let mut world = World::new(3, mode);
    world.serve_tcp(0, "10.1.0.2");
    world.serve_tcp(1, "10.1.0.3");
    world.sync(&[service("s", json!({}))], &[slice("s", "TCP", &[0, 1])]);
    let answers: Vec<_> = (0..24).map(|_| ask(&world.pods[2], VIP).unwrap()).collect();
    let servers: BTreeSet<_> = answers.iter().map(|(pod, _)| *pod).collect();
    assert_eq!(servers, [0, 1].into(), "both endpoints are used");
    assert!(
        answers.iter().all(|(_, peer)| *peer == pod_ip(2).to_string()),
        "a Pod's address is kept"
    );
    ask(&world.node, VIP).unwrap();

    world.serve_tcp(2, "10.1.0.4");
    world.sync(&[service("s", json!({}))], &[slice("s", "TCP", &[0, 1, 2])]);
    let mut counts = [0; 3];
    for _ in 0..300 {
        counts[ask(&world.node, VIP).unwrap().0] += 1;
    }
    assert!(counts.iter().all(|count| (60..=140).contains(count)), "evenly: {counts:?}");

    // A Pod that is the only endpoint reaches itself, and sees the node as the peer.
    world.sync(&[service("s", json!({}))], &[slice("s", "TCP", &[0])]);
    assert_eq!(ask(&world.pods[0], VIP).unwrap(), (0, "10.1.0.1".to_owned()));
}

fn rejects_missing_endpoints_and_unknown_ports(mode: Mode) {
    let mut world = World::new(1, mode);
    world.sync(&[service("s", json!({}))], &[]);
    let mut refused = vec![(&world.pods[0], VIP), (&world.node, VIP)];
    // Only nftables finds a Service's address without a rule for each port.
    if mode == Mode::Nftables {
        refused.push((&world.pods[0], "10.96.0.5:81"));
    }
    for (from, to) in refused {
        // A dropped packet would end in a timeout.
        let error = ask(from, to).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{to}");
    }
}

fn changes_and_restarts_keep_open_connections(mode: Mode) {
    let mut world = World::new(3, mode);
    for (pod, ip) in [(0, "10.1.0.2"), (1, "10.1.0.3")] {
        world.serve_tcp(pod, ip);
    }
    let (a, b) = (service("s", json!({})), service("t", json!({"clusterIP": "10.96.0.6"})));
    let slices = [slice("s", "TCP", &[0]), slice("t", "TCP", &[1])];
    let first = world.sync(&[a.clone(), b.clone()], &slices);
    assert_eq!(first.transactions, 1);
    let mut connection = Connection::open(&world.pods[2], VIP).unwrap();
    assert_eq!(connection.ask().0, 0);

    let moved =
        world.sync(&[a.clone(), b.clone()], &[slice("s", "TCP", &[1]), slice("t", "TCP", &[1])]);
    assert!(moved.transactions == 1 && moved.operations < 12, "{moved:?}");
    assert_eq!(connection.ask().0, 0, "an open connection stays where it is");
    assert_eq!(ask(&world.pods[2], VIP).unwrap().0, 1, "a new connection follows the rules");

    world.restart();
    let again =
        world.sync(&[a.clone(), b.clone()], &[slice("s", "TCP", &[1]), slice("t", "TCP", &[1])]);
    assert_eq!(again.transactions, 0, "a restart finds its rules unchanged");
    world.restart();
    world.sync(&[b], &slices);
    assert_eq!(connection.ask().0, 0);
    assert!(ask(&world.pods[2], VIP).is_err(), "the Service is gone");
    assert_eq!(ask(&world.pods[2], "10.96.0.6:80").unwrap().0, 1);
}

fn node_ports_serve_external_clients(mode: Mode) {
    let mut world = World::new(2, mode);
    world.serve_tcp(0, "10.1.0.2");
    let spec = |policy: &str| {
        json!({"type": "NodePort", "externalTrafficPolicy": policy, "externalIPs": ["198.51.100.7"],
        "ports": [{"name": "p", "port": 80, "nodePort": 30080}]})
    };
    let target = format!("{NODE}:30080");
    world.sync(&[service("s", spec("Cluster"))], &[slice("s", "TCP", &[0])]);
    assert_eq!(ask(&world.outside, &target).unwrap(), (0, "10.1.0.1".to_owned()));
    assert_eq!(ask(&world.outside, "198.51.100.7:80").unwrap().0, 0);
    ask(&world.pods[1], &target).unwrap();
    ask(&world.node, &target).unwrap();

    world.sync(&[service("s", spec("Local"))], &[slice("s", "TCP", &[0])]);
    assert_eq!(ask(&world.outside, &target).unwrap(), (0, OUTSIDE.to_owned()));

    let mut elsewhere = slice("s", "TCP", &[0]);
    elsewhere["endpoints"][0]["nodeName"] = json!("n2");
    world.sync(&[service("s", spec("Local"))], &[elsewhere]);
    let error = ask(&world.outside, &target).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "dropped: another node serves it");
    ask(&world.pods[1], &target).expect("from inside any endpoint will do");
}

fn affinity_keeps_client_on_endpoint(mode: Mode) {
    let mut world = World::new(4, mode);
    for (pod, ip) in [(0, "10.1.0.2"), (1, "10.1.0.3"), (2, "10.1.0.4")] {
        world.serve_tcp(pod, ip);
    }
    let sticky = service("s", json!({"sessionAffinity": "ClientIP"}));
    let endpoints = |pods: &[usize]| [slice("s", "TCP", pods)];
    world.sync(std::slice::from_ref(&sticky), &endpoints(&[0, 1, 2]));
    let first = ask(&world.pods[3], VIP).unwrap().0;
    for _ in 0..12 {
        assert_eq!(ask(&world.pods[3], VIP).unwrap().0, first);
    }
    // Resynchronizing after a restart keeps client affinity, which the kernel stores.
    world.restart();
    let other = service("t", json!({"clusterIP": "10.96.0.6"}));
    world.sync(&[sticky.clone(), other.clone()], &endpoints(&[0, 1, 2]));
    assert_eq!(ask(&world.pods[3], VIP).unwrap().0, first);
    let rest: Vec<_> = (0..3).filter(|pod| *pod != first).collect();
    world.sync(&[sticky, other], &endpoints(&rest));
    assert_ne!(ask(&world.pods[3], VIP).unwrap().0, first, "its endpoint is gone");
}

fn moves_udp_flows_when_endpoint_is_removed(mode: Mode) {
    let mut world = World::new(3, mode);
    world.serve_udp(0);
    world.serve_udp(1);
    let spec = json!({"ports": [{"name": "p", "port": 53, "protocol": "UDP"}]});
    world.sync(&[service("s", spec.clone())], &[slice("s", "UDP", &[0])]);
    let client = world.pods[2].run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    client.connect("10.96.0.5:53").unwrap();
    let ask = || {
        let mut answer = [0; 8];
        client.send(b"x").unwrap();
        client
            .recv(&mut answer)
            .map(|length| String::from_utf8_lossy(&answer[..length]).into_owned())
            .unwrap()
    };
    assert_eq!(ask(), "0");
    let report = world.sync(&[service("s", spec)], &[slice("s", "UDP", &[1])]);
    assert_eq!(report.flows_deleted, 1);
    assert_eq!(ask(), "1", "the same socket, and so the same flow");
}

fn cleanup_removes_all_rules_and_is_idempotent(mode: Mode) {
    let mut world = World::new(2, mode);
    world.serve_tcp(0, "10.1.0.2");
    world.sync(&[service("s", json!({}))], &[slice("s", "TCP", &[0])]);
    ask(&world.pods[1], VIP).unwrap();
    for _ in 0..2 {
        world.clean_up();
    }
    assert!(ask(&world.pods[1], VIP).is_err(), "nothing leads to the Service any more");
}

fn serves_ipv6_beside_ipv4(mode: Mode) {
    let mut world = World::new(2, mode);
    world.serve_tcp(0, "[fd01::2]");
    let spec = json!({"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5", "fd96::5"]});
    let mut six = slice("s", "TCP", &[0]);
    six["addressType"] = json!("IPv6");
    six["endpoints"][0]["addresses"] = json!(["fd01::2"]);
    let report = world.sync(&[service("s", spec)], &[six]);
    assert_eq!(report.transactions, 2);
    assert_eq!(ask(&world.pods[1], "[fd96::5]:80").unwrap(), (0, "fd01::3".to_owned()));
    assert_eq!(ask(&world.pods[1], VIP).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn other_mode_takes_over_and_removes_old_rules() {
    let mut world = World::new(2, Mode::Iptables);
    world.serve_tcp(0, "10.1.0.2");
    // An upstream proxy's rules in iptables tables that nft does not list, beside the kubelet's chain.
    for line in [
        "-N KUBE-SVC-OLD",
        "-N KUBE-SERVICES",
        "-A KUBE-SERVICES -j KUBE-SVC-OLD",
        "-N KUBE-KUBELET-CANARY",
    ] {
        world.on_node("iptables-legacy", &format!("-t nat {line}"));
    }
    world.on_node("iptables-legacy", "-t nat -A OUTPUT -d 10.96.0.5 -j KUBE-SERVICES");
    for mode in [Mode::Nftables, Mode::Iptables, Mode::Nftables] {
        world.mode = mode;
        world.restart();
        world.sync(&[service("s", json!({}))], &[slice("s", "TCP", &[0])]);
        ask(&world.pods[1], VIP).unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        let rules = world.on_node("nft", "list ruleset");
        let has = (rules.contains("table ip kube-proxy"), rules.contains("KUBE-SVC-"));
        assert_eq!(has, (mode == Mode::Nftables, mode == Mode::Iptables), "{rules}");
        if mode == Mode::Nftables {
            let older = world.on_node("iptables-legacy-save", "-t nat");
            assert!(!older.contains("KUBE-S") && older.contains("KUBE-KUBELET-CANARY"), "{older}");
        }
    }
}

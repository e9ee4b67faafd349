//! Regression tests for published vulnerabilities of service proxies.

use std::{net::UdpSocket, time::Duration};

use netlink::{Net, Route};
use proxy::Mode;
use serde_json::json;

use crate::{
    api::FakeApi,
    run::{Running, eventually, status},
    world::{NODE, OUTSIDE, World, ask, serve_lines, service, slice},
};

fn api_with_node() -> FakeApi {
    let api = FakeApi::default();
    let status = json!({"addresses": [{"type": "InternalIP", "address": NODE}]});
    api.put("nodes", json!({"metadata": {"name": "n1"}, "status": status}));
    api
}

/// The number that the node's own program answers with.
const PROGRAM: usize = 99;

fn takes_no_port_that_the_node_listens_on(mode: Mode) {
    let world = World::new(2, mode);
    world.serve_tcp(0, "10.1.0.2");
    serve_lines(&world.node, "0.0.0.0:6443".parse().unwrap(), PROGRAM);
    serve_lines(&world.node, "0.0.0.0:30443".parse().unwrap(), PROGRAM);
    let api = api_with_node();
    // The attacker's Services come first in order of names.
    for (name, ip, port) in [
        ("attack", "10.96.0.66", json!({"port": 6443})),
        ("attack-node-port", "10.96.0.67", json!({"port": 81, "nodePort": 30443})),
        ("fair", "10.96.0.68", json!({"port": 8443, "nodePort": 30080})),
    ] {
        let mut port = port;
        port["name"] = json!("p");
        let spec =
            json!({"type": "NodePort", "clusterIP": ip, "externalIPs": [NODE], "ports": [port]});
        api.put("services", service(name, spec));
        api.put("endpointslices", slice(name, "TCP", &[0]));
    }
    let running = Running::start(&world, &api);
    let to = |port: u16| format!("{NODE}:{port}");
    for port in [8443, 30080, 81] {
        eventually("a free port of the node is served", || ask(&world.outside, &to(port)).is_ok());
        assert_eq!(ask(&world.outside, &to(port)).unwrap().0, 0, "{port}");
    }
    for from in [&world.outside, &world.node, &world.pods[1]] {
        for port in [6443, 30443] {
            assert_eq!(ask(from, &to(port)).unwrap().0, PROGRAM, "{port}");
        }
    }
    drop(running);
}

#[test]
fn cve_2020_8554_takes_no_port_of_the_node_with_nftables() {
    takes_no_port_that_the_node_listens_on(Mode::Nftables);
}

#[test]
fn cve_2020_8554_takes_no_port_of_the_node_with_iptables() {
    takes_no_port_that_the_node_listens_on(Mode::Iptables);
}

/// A neighbour on the link sends to 127.0.0.1, which the node routes for node ports.
fn keeps_neighbours_from_loopback(mode: Mode) {
    let world = World::new(1, mode);
    let routed = || {
        let path = "/proc/sys/net/ipv4/conf/all/route_localnet";
        world.node.run(|| std::fs::read_to_string(path).unwrap()).unwrap().trim() == "1"
    };
    // A new network namespace starts with the machine's value.
    world.on_node("sysctl", "-w net.ipv4.conf.all.route_localnet=0");
    let api = api_with_node();
    let running = Running::start(&world, &api);
    eventually("healthy", || status(&world, 10256, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(!routed(), "no rule guards loopback addresses yet");
    api.put("services", service("s", json!({})));
    eventually("loopback addresses are routed", routed);

    let secret = world.node.run(|| UdpSocket::bind("127.0.0.1:7777").unwrap()).unwrap();
    secret.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let inside = world.outside.kernel().unwrap();
    let eth0 = inside.link("eth0").unwrap().unwrap().index;
    let lo = inside.link("lo").unwrap().unwrap().index;
    let path = "/proc/sys/net/ipv4/conf/eth0/route_localnet";
    world.outside.run(|| std::fs::write(path, "1").unwrap()).unwrap();
    inside.delete_address(lo, "127.0.0.1/8".parse().unwrap()).unwrap();
    let to_node = Route {
        gateway: NODE.parse().ok(),
        device: Some(eth0),
        ..Route::new("127.0.0.0/8".parse().unwrap())
    };
    inside.put_route(&to_node).unwrap();
    let send = || UdpSocket::bind((OUTSIDE, 0)).unwrap().send_to(b"x", "127.0.0.1:7777").unwrap();
    world.outside.run(send).unwrap();
    assert!(secret.recv(&mut [0; 8]).is_err(), "a packet from the link came to 127.0.0.1");
    drop(running);
    world.outside.run(send).unwrap();
    assert!(secret.recv(&mut [0; 8]).is_err(), "after the proxy's end");
}

#[test]
fn cve_2020_8558_keeps_neighbours_from_loopback_with_nftables() {
    keeps_neighbours_from_loopback(Mode::Nftables);
}

#[test]
fn cve_2020_8558_keeps_neighbours_from_loopback_with_iptables() {
    keeps_neighbours_from_loopback(Mode::Iptables);
}

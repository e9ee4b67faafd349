//! Runs the plugin against the real kernel with namespaces for a node, Pods and an outside host. Needs root and nft.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod bandwidth;
mod cves;

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use cni::{Environment, Failure, handle};
use netlink::{LinkChange, Namespace, Net, NewKind, NewLink, Route};
use serde_json::{Value, json};

const NODE: &str = "192.0.2.1";
const OUTSIDE: &str = "192.0.2.9";

struct Node {
    namespace: Namespace,
    outside: Namespace,
    data: tempfile::TempDir,
}

struct Pod {
    id: String,
    namespace: Namespace,
    address: String,
    result: Value,
}

impl Node {
    fn new() -> Self {
        let (namespace, outside) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let (node, host) = (namespace.kernel().unwrap(), outside.kernel().unwrap());
        let kind =
            NewKind::Veth { peer: "eth0", peer_mac: None, netns: Some(outside.file().as_fd()) };
        node.add_link(&NewLink { name: "wan0", mtu: 0, mac: None, kind }).unwrap();
        for (kernel, name, address, gateway) in
            [(&node, "wan0", NODE, OUTSIDE), (&host, "eth0", OUTSIDE, "")]
        {
            let link = kernel.link(name).unwrap().unwrap();
            kernel
                .change_link(link.index, &LinkChange { up: Some(true), ..LinkChange::default() })
                .unwrap();
            kernel.add_address(link.index, format!("{address}/24").parse().unwrap()).unwrap();
            if let Ok(gateway) = gateway.parse() {
                kernel
                    .put_route(&Route {
                        gateway: Some(gateway),
                        ..Route::new("0.0.0.0/0".parse().unwrap())
                    })
                    .unwrap();
            }
        }
        Self { namespace, outside, data: tempfile::tempdir().unwrap() }
    }

    fn config(&self, more: Value) -> Value {
        let mut config = json!({"cniVersion": "1.0.0", "name": "pods", "type": "windlass-cni", "bridge": "wl0",
            "subnets": ["10.9.0.0/24", "fd09::/64"], "clusterCIDRs": ["10.9.0.0/16"], "dataDir": self.data.path()});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    }

    fn call(
        &self,
        command: &str,
        id: &str,
        netns: Option<&Namespace>,
        more: Value,
    ) -> Result<Option<Value>, Failure> {
        let environment = Environment {
            command: command.into(),
            container: id.into(),
            netns: netns
                .map(|netns| format!("/proc/self/fd/{}", netns.file().as_raw_fd()))
                .unwrap_or_default(),
            interface: "eth0".into(),
        };
        let input = self.config(more).to_string();
        self.namespace.run(|| handle(&environment, input.as_bytes())).unwrap()
    }

    fn add(&self, id: &str, more: Value) -> Pod {
        let namespace = Namespace::new().unwrap();
        let result = self.call("ADD", id, Some(&namespace), more).unwrap().unwrap();
        let address =
            result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        Pod { id: id.into(), namespace, address, result }
    }

    fn delete(&self, pod: &Pod) {
        self.call("DEL", &pod.id, Some(&pod.namespace), json!({})).unwrap();
    }
}

impl Pod {
    /// Answers each connection with the peer's address and closes it.
    fn serve(&self, port: u16) {
        let bind = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        let listener = self.namespace.run(bind).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let peer = stream.peer_addr().unwrap().ip().to_string();
                let _ = stream.write_all(peer.as_bytes());
            }
        });
    }
}

/// Returns the client address that the server at `to` sees.
fn seen_as(from: &Namespace, to: &str) -> std::io::Result<String> {
    let to: SocketAddr = to.parse().unwrap();
    let mut stream =
        from.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(2))).unwrap()?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn port(protocol: &str, host_ip: &str, host: u16, container: u16) -> Value {
    json!({"runtimeConfig": {"portMappings": [{"hostPort": host, "containerPort": container, "protocol": protocol, "hostIP": host_ip}]}})
}

#[test]
fn pods_reach_each_other_node_and_outside() {
    let node = Node::new();
    let (a, b) = (node.add("a", json!({})), node.add("b", json!({})));
    assert_eq!((a.address.as_str(), b.address.as_str()), ("10.9.0.2", "10.9.0.3"));
    assert_eq!(a.result["interfaces"][2]["name"], "eth0");
    assert_eq!(a.result["routes"][0]["gw"], "10.9.0.1");
    a.serve(80);
    assert_eq!(seen_as(&b.namespace, "10.9.0.2:80").unwrap(), "10.9.0.3");
    assert_eq!(seen_as(&node.namespace, "10.9.0.2:80").unwrap(), "10.9.0.1");
    let listener = node.outside.run(|| TcpListener::bind("192.0.2.9:80").unwrap()).unwrap();
    let target: SocketAddr = "192.0.2.9:80".parse().unwrap();
    let _stream = a
        .namespace
        .run(|| TcpStream::connect_timeout(&target, Duration::from_secs(2)).unwrap())
        .unwrap();
    assert_eq!(listener.accept().unwrap().1.ip().to_string(), NODE, "masqueraded");
    let six: SocketAddr = "[fd09::3]:81".parse().unwrap();
    let refused = a
        .namespace
        .run(|| TcpStream::connect_timeout(&six, Duration::from_secs(5)).unwrap_err())
        .unwrap();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "IPv6 gets there");
}

#[test]
fn calls_are_idempotent_and_leave_nothing() {
    let node = Node::new();
    let pod = node.add("a", json!({}));
    let again = node.call("ADD", "a", Some(&pod.namespace), json!({})).unwrap().unwrap();
    assert_eq!(again["ips"], pod.result["ips"], "a repeated ADD, as after a crash");
    let previous = json!({"prevResult": again});
    node.call("CHECK", "a", Some(&pod.namespace), previous.clone()).unwrap();
    let inside = pod.namespace.kernel().unwrap();
    let eth0 = inside.link("eth0").unwrap().unwrap();
    inside.delete_address(eth0.index, "10.9.0.2/32".parse().unwrap()).unwrap();
    assert_eq!(node.call("CHECK", "a", Some(&pod.namespace), previous).unwrap_err().code, 102);
    for _ in 0..2 {
        node.delete(&pod);
    }
    node.call("DEL", "a", None, json!({})).unwrap();
    assert_eq!(inside.link("eth0").unwrap(), None);
    let ports = node.namespace.kernel().unwrap().links().unwrap();
    assert!(!ports.iter().any(|link| link.name.starts_with("veth")), "{ports:?}");
    assert_eq!(node.add("b", json!({})).address, "10.9.0.3", "addresses go round");
}

#[test]
fn host_ports_answer_on_every_address_while_pod_lives() {
    let node = Node::new();
    let pod = node.add("a", port("TCP", "", 8080, 80));
    pod.serve(80);
    // The format of containerd.
    let mapping =
        json!({"HostPort": 9090, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "127.0.0.1"});
    let other = node.add("b", json!({"runtimeConfig": {"portMappings": [mapping]}}));
    other.serve(80);
    assert_eq!(seen_as(&node.outside, "192.0.2.1:8080").unwrap(), OUTSIDE);
    assert_eq!(seen_as(&node.namespace, "127.0.0.1:8080").unwrap(), "10.9.0.1");
    assert_eq!(seen_as(&node.namespace, "127.0.0.1:9090").unwrap(), "10.9.0.1");
    assert_eq!(
        seen_as(&other.namespace, "192.0.2.1:8080").unwrap(),
        "10.9.0.1",
        "from another Pod"
    );
    assert_eq!(seen_as(&pod.namespace, "192.0.2.1:8080").unwrap(), "10.9.0.1", "to itself");
    assert_eq!(
        seen_as(&node.outside, "192.0.2.1:9090").unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    node.delete(&pod);
    assert_eq!(
        seen_as(&node.outside, "192.0.2.1:8080").unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert!(seen_as(&node.namespace, "127.0.0.1:9090").is_ok(), "the other's port stays");
}

#[test]
fn allows_pods_through_dropping_firewall() {
    let node = Node::new();
    let iptables = |args: &[&str]| {
        let run = || std::process::Command::new("iptables").args(args).output().unwrap();
        String::from_utf8(node.namespace.run(run).unwrap().stdout).unwrap()
    };
    iptables(&["-P", "FORWARD", "DROP"]);
    let (a, b) = (node.add("a", json!({})), node.add("b", port("TCP", "", 8080, 80)));
    b.serve(80);
    assert!(seen_as(&a.namespace, "10.9.0.3:80").is_ok());
    assert!(seen_as(&node.outside, "192.0.2.1:8080").is_ok());
    assert_eq!(iptables(&["-S", "FORWARD"]).matches("windlass").count(), 2, "once for each way");
    node.namespace.run(|| cni::disallow_forwarding("wl0")).unwrap();
    assert_eq!(iptables(&["-S", "FORWARD"]).trim(), "-P FORWARD DROP");
}

#[test]
fn udp_senders_follow_host_port_to_new_pod() {
    let node = Node::new();
    let client = node.outside.run(|| UdpSocket::bind("192.0.2.9:0").unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    client.connect("192.0.2.1:5353").unwrap();
    for id in ["a", "b"] {
        let pod = node.add(id, port("UDP", "", 5353, 53));
        let server = pod.namespace.run(|| UdpSocket::bind("0.0.0.0:53").unwrap()).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        client.send(id.as_bytes()).unwrap();
        let mut buffer = [0; 8];
        let (length, _) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], id.as_bytes());
        node.delete(&pod);
    }
}

#[test]
fn concurrent_adds_get_addresses_and_gc_releases_stale() {
    let node = Node::new();
    let pods: Vec<Pod> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|n| {
                scope.spawn({
                    let node = &node;
                    move || node.add(&format!("c{n}"), json!({}))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let addresses: std::collections::BTreeSet<_> = pods.iter().map(|pod| &pod.address).collect();
    assert_eq!(addresses.len(), pods.len());
    let valid: Vec<_> =
        pods[..3].iter().map(|pod| json!({"containerID": pod.id, "ifname": "eth0"})).collect();
    node.call("GC", "", None, json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid}))
        .unwrap();
    let left = node.namespace.kernel().unwrap().links().unwrap();
    assert_eq!(left.iter().filter(|link| link.kind == "veth" && link.name != "wan0").count(), 3);
    node.call("STATUS", "", None, json!({"cniVersion": "1.1.0"})).unwrap();
}

#[test]
fn new_pod_loses_no_packet() {
    let node = Node::new();
    let gateway: SocketAddr = "10.9.0.1:9".parse().unwrap();
    for n in 0..20 {
        let pod = node.add(&format!("c{n}"), json!({}));
        let connect =
            || TcpStream::connect_timeout(&gateway, Duration::from_millis(500)).unwrap_err();
        assert_eq!(
            pod.namespace.run(connect).unwrap().kind(),
            ErrorKind::ConnectionRefused,
            "Pod {n}, at once"
        );
    }
}

#[test]
fn invalid_calls_fail_with_specified_codes() {
    let node = Node::new();
    let pod = Namespace::new().unwrap();
    for (code, command, id, netns, more) in [
        (1, "ADD", "a", Some(&pod), json!({"cniVersion": "9.0.0"})),
        (4, "ADD", "a", None, json!({})),
        (4, "ADD", "../a", Some(&pod), json!({})),
        (4, "DANCE", "a", Some(&pod), json!({})),
        (6, "ADD", "a", Some(&pod), json!({"subnets": "10.0.0.0/8"})),
        (6, "ADD", "a", Some(&pod), json!({"subnets": ["10.0.0.0"]})),
        (7, "ADD", "a", Some(&pod), json!({"subnets": []})),
        (7, "ADD", "a", Some(&pod), json!({"bridge": "wan0"})),
        (101, "ADD", "a", Some(&pod), json!({"name": "tiny", "subnets": ["10.9.0.0/31"]})),
    ] {
        let failure = node.call(command, id, netns, more.clone()).unwrap_err();
        assert_eq!(failure.code, code, "{command} {more}: {failure}");
    }
    let environment = Environment {
        command: "ADD".into(),
        container: "a".into(),
        netns: "/no/such/netns".into(),
        interface: "eth0".into(),
    };
    let failure = handle(&environment, node.config(json!({})).to_string().as_bytes()).unwrap_err();
    assert_eq!(failure.code, 3);
    assert!(
        failure.message.contains("/no/such/netns") && failure.message.contains("No such file"),
        "{failure}"
    );
    let answer = node.call("VERSION", "", None, json!({})).unwrap().unwrap();
    assert!(answer["supportedVersions"].as_array().unwrap().contains(&json!("1.1.0")));
}

#[test]
fn loopback_comes_up_in_containerds_version() {
    let node = Node::new();
    let pod = Namespace::new().unwrap();
    let inside = pod.kernel().unwrap();
    let lo = inside.link("lo").unwrap().unwrap();
    inside.change_link(lo.index, &LinkChange { up: Some(false), ..LinkChange::default() }).unwrap();
    let more = json!({"cniVersion": "0.3.1", "type": "loopback", "name": "cni-loopback"});
    let result = node.call("ADD", "a", Some(&pod), more.clone()).unwrap().unwrap();
    assert_eq!(result["ips"][0]["version"], "4");
    assert!(inside.link("lo").unwrap().unwrap().up);
    node.call("DEL", "a", None, more).unwrap();
}

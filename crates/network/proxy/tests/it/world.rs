//! A node with Pods behind a bridge and a host outside, each in its own network namespace.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd,
    process::Command,
    sync::Arc,
    time::Duration,
};

use net_core::{
    Cidr,
    api::{EndpointSlice, Service},
    plan::{Config, LocalTraffic, NodePorts},
};
use netlink::{Iptables, Kernel, LinkChange, Namespace, Net, NewKind, NewLink, Route};
use proxy::{Mode, Report, Syncer};
use serde_json::{Value, json};

pub(crate) const NODE: &str = "192.0.2.1";
pub(crate) const OUTSIDE: &str = "192.0.2.9";

pub(crate) struct World {
    pub(crate) node: Namespace,
    pub(crate) outside: Namespace,
    pub(crate) pods: Vec<Namespace>,
    net: Arc<Kernel>,
    pub(crate) mode: Mode,
    pub(crate) syncer: Syncer,
}

fn up(net: &Kernel, name: &str) -> u32 {
    let link = net.link(name).unwrap().unwrap();
    net.change_link(link.index, &LinkChange { up: Some(true), ..LinkChange::default() }).unwrap();
    link.index
}

/// Connects `namespace` to the node: an address on its eth0 and a default route through the node.
fn attach(
    bridge: Option<u32>,
    node: &Kernel,
    namespace: &Namespace,
    name: &str,
    addresses: &[&str],
    gateways: &[&str],
) -> u32 {
    let kind =
        NewKind::Veth { peer: "eth0", peer_mac: None, netns: Some(namespace.file().as_fd()) };
    node.add_link(&NewLink { name, mtu: 0, mac: None, kind }).unwrap();
    // The port joins the bridge before the Pod's end comes up and announces itself.
    let outer = up(node, name);
    if bridge.is_some() {
        node.change_link(
            outer,
            &LinkChange { master: bridge, hairpin: Some(true), ..LinkChange::default() },
        )
        .unwrap();
    }
    let inside = namespace.kernel().unwrap();
    let eth0 = up(&inside, "eth0");
    for (address, gateway) in addresses.iter().zip(gateways) {
        inside.add_address(eth0, address.parse().unwrap()).unwrap();
        let any = if address.contains(':') { "::/0" } else { "0.0.0.0/0" };
        let gateway = gateway.parse().unwrap();
        inside.put_route(&Route { device: Some(eth0), ..Route::new(Cidr::host(gateway)) }).unwrap();
        let route = Route::new(any.parse().unwrap());
        inside.put_route(&Route { gateway: Some(gateway), device: Some(eth0), ..route }).unwrap();
    }
    outer
}

fn syncer(net: &Arc<Kernel>, mode: Mode) -> Syncer {
    match mode {
        Mode::Nftables => Syncer::new(net.clone()),
        Mode::Iptables => Syncer::with_iptables(
            net.clone(),
            Arc::new(Iptables::find().expect("iptables is installed")),
        ),
    }
}

impl World {
    pub(crate) fn new(pods: usize, mode: Mode) -> Self {
        let node = Namespace::new().unwrap();
        let net = Arc::new(node.kernel().unwrap());
        net.add_link(&NewLink { name: "cni0", mtu: 0, mac: None, kind: NewKind::Bridge }).unwrap();
        let bridge = up(&net, "cni0");
        net.add_address(bridge, "10.1.0.1/24".parse().unwrap()).unwrap();
        net.add_address(bridge, "fd01::1/64".parse().unwrap()).unwrap();
        let pods: Vec<_> = (0..pods)
            .map(|n| {
                let pod = Namespace::new().unwrap();
                let addresses = [pod_ip(n).to_string() + "/32", format!("fd01::{}/128", n + 2)];
                let addresses = [addresses[0].as_str(), addresses[1].as_str()];
                attach(
                    Some(bridge),
                    &net,
                    &pod,
                    &format!("pod{n}"),
                    &addresses,
                    &["10.1.0.1", "fd01::1"],
                );
                pod
            })
            .collect();
        let outside = Namespace::new().unwrap();
        let wire = attach(None, &net, &outside, "wan0", &["192.0.2.9/24"], &[NODE]);
        net.add_address(wire, "192.0.2.1/24".parse().unwrap()).unwrap();
        let gateway = OUTSIDE.parse().ok();
        net.put_route(&Route { gateway, ..Route::new("0.0.0.0/0".parse().unwrap()) }).unwrap();
        node.run(|| {
            for (path, value) in [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")] {
                std::fs::write(format!("/proc/sys/net/{path}"), value).unwrap();
            }
        })
        .unwrap();
        let syncer = syncer(&net, mode);
        Self { node, outside, pods, net, mode, syncer }
    }

    /// Replaces the proxy by a new one without state.
    pub(crate) fn restart(&mut self) {
        self.syncer = syncer(&self.net, self.mode);
    }

    /// Runs a program on the node and returns its output.
    pub(crate) fn on_node(&self, program: &str, line: &str) -> String {
        let run = || Command::new(program).args(line.split_whitespace()).output().unwrap();
        let output = self.node.run(run).unwrap();
        assert!(output.status.success(), "{program} {line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Does the same as `--cleanup`.
    pub(crate) fn clean_up(&self) {
        self.node.run(|| proxy::clean_up(&*self.net).unwrap()).unwrap();
    }

    pub(crate) fn sync(&mut self, services: &[Value], slices: &[Value]) -> Report {
        let services: Vec<Arc<Service>> =
            services.iter().map(|value| serde_json::from_value(value.clone()).unwrap()).collect();
        let slices: Vec<Arc<EndpointSlice>> =
            slices.iter().map(|value| serde_json::from_value(value.clone()).unwrap()).collect();
        let config = Config {
            node: "n1".into(),
            local: LocalTraffic::From(vec!["10.1.0.0/16".parse().unwrap()]),
            node_ports: NodePorts::Addresses(vec![NODE.parse().unwrap()]),
            service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
            ..Config::default()
        };
        let syncer = &mut self.syncer;
        self.node.run(|| syncer.sync(&config, &services, &slices).unwrap()).unwrap()
    }

    /// Serves TCP on a Pod's port 8080 until the test ends. Answers lines with the Pod's number and the peer's address.
    pub(crate) fn serve_tcp(&self, pod: usize, ip: &str) {
        let address: SocketAddr = format!("{ip}:8080").parse().unwrap();
        serve_lines(&self.pods[pod], address, pod);
    }

    pub(crate) fn serve_udp(&self, pod: usize) {
        let socket = self.pods[pod].run(|| UdpSocket::bind((pod_ip(pod), 8080)).unwrap()).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(pod.to_string().as_bytes(), peer);
            }
        });
    }
}

/// Answers every line at `address` with a number and the peer, until the test ends.
pub(crate) fn serve_lines(host: &Namespace, address: SocketAddr, number: usize) {
    let listener = host.run(|| TcpListener::bind(address).unwrap()).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let peer = stream.peer_addr().unwrap().ip();
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|n| n > 0) {
                    let _ = writeln!(stream, "{number} {peer}");
                }
            });
        }
    });
}

pub(crate) fn pod_ip(n: usize) -> IpAddr {
    "10.1.0.0/24".parse::<Cidr>().unwrap().nth(n as u128 + 2).unwrap()
}

/// An open connection whose server answers with its number and the peer's address.
pub(crate) struct Connection(TcpStream);

impl Connection {
    pub(crate) fn open(from: &Namespace, to: &str) -> std::io::Result<Self> {
        let to: SocketAddr = to.parse().unwrap();
        let stream =
            from.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(5))).unwrap()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        Ok(Self(stream))
    }

    pub(crate) fn ask(&mut self) -> (usize, String) {
        self.0.write_all(b"x").unwrap();
        let mut line = String::new();
        let mut byte = [0];
        while !line.ends_with('\n') {
            self.0.read_exact(&mut byte).unwrap();
            line.push(char::from(byte[0]));
        }
        let (pod, peer) = line.trim().split_once(' ').unwrap();
        (pod.parse().unwrap(), peer.to_owned())
    }
}

pub(crate) fn ask(from: &Namespace, to: &str) -> std::io::Result<(usize, String)> {
    Connection::open(from, to).map(|mut connection| connection.ask())
}

pub(crate) fn service(name: &str, mut spec: Value) -> Value {
    for (key, value) in [
        ("clusterIP", json!("10.96.0.5")),
        ("ports", json!([{"name": "p", "port": 80, "protocol": "TCP", "nodePort": 0}])),
    ] {
        spec.as_object_mut().unwrap().entry(key).or_insert(value);
    }
    json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec})
}

/// Pods 0, 1, … are on this node, as endpoints' `nodeName` says.
pub(crate) fn slice(service: &str, protocol: &str, pods: &[usize]) -> Value {
    let endpoints: Vec<_> =
        pods.iter().map(|pod| json!({"addresses": [pod_ip(*pod)], "nodeName": "n1"})).collect();
    json!({"metadata": {"name": format!("{service}-1"), "namespace": "ns", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "p", "port": 8080, "protocol": protocol}], "endpoints": endpoints})
}

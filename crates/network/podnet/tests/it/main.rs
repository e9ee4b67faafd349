//! Sends real packets between Pods of two nodes and a router in network namespaces. Needs root and nft.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[path = "../../../proxy/tests/it/api.rs"]
mod api;
mod policies;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use net_core::{api::Node, overlay};
use netlink::{Kernel, LinkChange, Namespace, Net, NewKind, NewLink, Route};
use podnet::Overlay;
use serde_json::json;

struct Host {
    namespace: Namespace,
    kernel: Kernel,
    data: tempfile::TempDir,
    address: &'static str,
    range: &'static str,
}

impl Host {
    /// Creates a node on the router's next port.
    fn new(
        router: &Kernel,
        port: &str,
        address: &'static str,
        gateway: &str,
        range: &'static str,
    ) -> Self {
        let namespace = Namespace::new().unwrap();
        let kernel = namespace.kernel().unwrap();
        let kind =
            NewKind::Veth { peer: "eth0", peer_mac: None, netns: Some(namespace.file().as_fd()) };
        router.add_link(&NewLink { name: port, mtu: 0, mac: None, kind }).unwrap();
        for (kernel, name, address) in [(router, port, gateway), (&kernel, "eth0", address)] {
            let link = kernel.link(name).unwrap().unwrap();
            kernel
                .change_link(link.index, &LinkChange { up: Some(true), ..LinkChange::default() })
                .unwrap();
            kernel.add_address(link.index, format!("{address}/24").parse().unwrap()).unwrap();
        }
        let gateway = gateway.parse().ok();
        kernel.put_route(&Route { gateway, ..Route::new("0.0.0.0/0".parse().unwrap()) }).unwrap();
        Self { namespace, kernel, data: tempfile::tempdir().unwrap(), address, range }
    }

    fn add_pod(&self, id: &str) -> (Namespace, String) {
        let pod = Namespace::new().unwrap();
        let environment = cni::Environment {
            command: "ADD".into(),
            container: id.into(),
            netns: format!("/proc/self/fd/{}", pod.file().as_raw_fd()),
            interface: "eth0".into(),
        };
        let config = json!({"cniVersion": "1.0.0", "name": "pods", "type": "windlass-cni", "bridge": "wl0", "mtu": 1450,
            "subnets": [self.range], "clusterCIDRs": ["10.9.0.0/16"], "dataDir": self.data.path()});
        let result = self
            .namespace
            .run(|| cni::handle(&environment, config.to_string().as_bytes()))
            .unwrap()
            .unwrap()
            .unwrap();
        let address =
            result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        (pod, address)
    }

    fn apply(&self, nodes: &[Node], name: &str, always_tunnel: bool) -> usize {
        let connected: Vec<_> =
            self.kernel.addresses().unwrap().into_iter().map(|address| address.cidr).collect();
        let plan =
            overlay::plan(&overlay::Config { node: name.into(), always_tunnel }, nodes, &connected);
        let overlay = Overlay { device: "wlvx0".into(), mtu: 1450 };
        self.namespace.run(|| overlay.apply(&self.kernel, &plan).unwrap()).unwrap()
    }
}

fn nodes(hosts: &[(&str, &Host)]) -> Vec<Node> {
    let node = |(name, host): &(&str, &Host)| {
        let node = json!({"metadata": {"name": name}, "spec": {"podCIDR": host.range},
            "status": {"addresses": [{"type": "InternalIP", "address": host.address}]}});
        serde_json::from_value(node).unwrap()
    };
    hosts.iter().map(node).collect()
}

fn router() -> (Namespace, Kernel) {
    let router = Namespace::new().unwrap();
    router.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap()).unwrap();
    let kernel = router.kernel().unwrap();
    (router, kernel)
}

/// Sends more than one packet's worth of data between two Pods, and returns the client address that the receiver sees.
fn talk(from: &Namespace, to: &Namespace, address: &str) -> String {
    let listener = to.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).unwrap()).unwrap();
    let target: SocketAddr = format!("{address}:80").parse().unwrap();
    let mut stream =
        from.run(|| TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap()).unwrap();
    let (mut served, peer) = listener.accept().unwrap();
    stream.write_all(&[7; 100_000]).unwrap();
    drop(stream);
    served.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut bytes = Vec::new();
    assert_eq!(served.read_to_end(&mut bytes).unwrap(), 100_000);
    peer.ip().to_string()
}

#[test]
fn tunnels_between_nodes_behind_router() {
    let (_router, wires) = router();
    let a = Host::new(&wires, "r0", "192.0.2.1", "192.0.2.254", "10.9.1.0/24");
    let b = Host::new(&wires, "r1", "198.51.100.1", "198.51.100.254", "10.9.2.0/24");
    let ((pod_a, address_a), (pod_b, address_b)) = (a.add_pod("a"), b.add_pod("b"));
    let nodes = nodes(&[("a", &a), ("b", &b)]);
    for (host, name) in [(&a, "a"), (&b, "b")] {
        assert!(host.apply(&nodes, name, false) > 0);
        assert_eq!(host.apply(&nodes, name, false), 0, "an unchanged state writes nothing");
    }
    assert_eq!(talk(&pod_a, &pod_b, &address_b), address_a, "without masquerading");
    assert_eq!(talk(&pod_b, &pod_a, &address_a), address_b);

    assert!(a.apply(&nodes[..1], "a", false) > 0);
    assert_eq!(a.kernel.link("wlvx0").unwrap(), None, "no peer needs the tunnel");
    assert!(
        !a.kernel
            .routes()
            .unwrap()
            .iter()
            .any(|route| route.destination == b.range.parse().unwrap())
    );
}

#[test]
fn neighbours_use_routes_or_tunnel_if_configured() {
    let (_switch, wires) = router();
    wires.add_link(&NewLink { name: "sw0", mtu: 0, mac: None, kind: NewKind::Bridge }).unwrap();
    let switch = wires.link("sw0").unwrap().unwrap().index;
    wires.change_link(switch, &LinkChange { up: Some(true), ..LinkChange::default() }).unwrap();
    let a = Host::new(&wires, "r0", "192.0.2.1", "192.0.2.254", "10.9.1.0/24");
    let b = Host::new(&wires, "r1", "192.0.2.2", "192.0.2.253", "10.9.2.0/24");
    for port in ["r0", "r1"] {
        let index = wires.link(port).unwrap().unwrap().index;
        wires
            .change_link(index, &LinkChange { master: Some(switch), ..LinkChange::default() })
            .unwrap();
    }
    let ((pod_a, address_a), (pod_b, address_b)) = (a.add_pod("a"), b.add_pod("b"));
    let nodes = nodes(&[("a", &a), ("b", &b)]);
    for always_tunnel in [false, true, false] {
        a.apply(&nodes, "a", always_tunnel);
        b.apply(&nodes, "b", always_tunnel);
        assert_eq!(a.kernel.link("wlvx0").unwrap().is_some(), always_tunnel);
        assert_eq!(talk(&pod_a, &pod_b, &address_b), address_a);
    }
}

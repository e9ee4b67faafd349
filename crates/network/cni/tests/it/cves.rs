//! Regression tests for published vulnerabilities of Pod networks.

use std::{
    net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use netlink::{Namespace, Net, Route};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sockopt};
use serde_json::json;

use crate::{Node, Pod};

/// A router advertisement with a default router, a prefix for address autoconfiguration, and the sender's link-local
/// address (RFC 4861, 4.2).
const ADVERTISEMENT: [u8; 48] = [
    134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, // A router for half an hour.
    3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0, // A prefix for an hour,
    0x20, 0x01, 0x0d, 0xb8, 0x0b, 0xad, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, // which is 2001:db8:bad::/64.
];

/// Sends an ICMPv6 message from a Pod to all hosts on its link, with the hop limit that proves that it was not routed.
fn send_to_link(pod: &Namespace, message: &[u8]) {
    let index = pod.kernel().unwrap().link("eth0").unwrap().unwrap().index;
    let own = own_link_local(pod);
    let send = || {
        let icmp = Some(ipproto::ICMPV6);
        let socket: OwnedFd =
            rustix::net::socket(AddressFamily::INET6, SocketType::RAW, icmp).unwrap();
        sockopt::set_ipv6_multicast_hops(&socket, 255).unwrap();
        let address = |ip| SocketAddrV6::new(ip, 0, 0, index);
        // The kernel does not bind an address during duplicate address detection.
        wait(|| rustix::net::bind(&socket, &address(own)));
        let all = address("ff02::1".parse().unwrap());
        let sent = rustix::net::sendto(&socket, message, SendFlags::empty(), &all).unwrap();
        assert_eq!(sent, message.len());
    };
    pod.run(send).unwrap();
}

fn own_link_local(pod: &Namespace) -> Ipv6Addr {
    wait(|| {
        let addresses = pod.kernel().unwrap().addresses().unwrap();
        let found = addresses.iter().find_map(|address| match address.cidr.address {
            std::net::IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
            _ => None,
        });
        found.ok_or(addresses)
    })
}

/// Retries `attempt` until it succeeds.
fn wait<T, E: std::fmt::Debug>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let began = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the routes and addresses that a host took from an advertisement.
fn taken(host: &Namespace) -> Vec<String> {
    let kernel = host.kernel().unwrap();
    let routes = kernel.routes().unwrap().into_iter().filter(|route| {
        let is_default = route.destination.prefix == 0 && route.destination.address.is_ipv6();
        is_default && route.gateway.is_some_and(|gateway| gateway.to_string().starts_with("fe80"))
    });
    let routes: Vec<String> = routes.map(|route| format!("{route:?}")).collect();
    let addresses = kernel.addresses().unwrap().into_iter();
    let made = addresses.map(|address| address.cidr.to_string());
    routes.into_iter().chain(made.filter(|cidr| cidr.starts_with("2001:db8:bad:"))).collect()
}

/// Waits until earlier packets of the Pod have been processed: sends a packet and awaits the node's answer.
fn barrier(pod: &Pod) {
    let gateway: SocketAddr = "10.9.0.1:9".parse().unwrap();
    let connect = || std::net::TcpStream::connect_timeout(&gateway, Duration::from_secs(5));
    let refused = pod.namespace.run(connect).unwrap().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// A Pod that may send raw packets, as every Pod by default, advertises itself as a router.
#[test]
fn cve_2020_10749_router_advertisements_of_pods_have_no_effect() {
    for subnets in [json!(["10.9.0.0/24"]), json!(["10.9.0.0/24", "fd09::/64"])] {
        let node = Node::new();
        let network = json!({"subnets": subnets});
        let attacker = node.add("a", network.clone());
        let victim = node.add("b", network);
        send_to_link(&attacker.namespace, &ADVERTISEMENT);
        barrier(&attacker);
        barrier(&victim);
        assert_eq!(taken(&node.namespace), [""; 0], "the node, {subnets}");
        assert_eq!(taken(&victim.namespace), [""; 0], "another Pod, {subnets}");
    }
}

/// Programs on the host or in another Pod that listen for routers receive nothing from a Pod.
#[test]
fn cve_2020_10749_nobody_hears_advertisements_of_pods() {
    let node = Node::new();
    let network = json!({"subnets": ["10.9.0.0/24"]});
    let (attacker, victim) = (node.add("a", network.clone()), node.add("b", network));
    let listen = || {
        let icmp = Some(ipproto::ICMPV6);
        let socket = rustix::net::socket(AddressFamily::INET6, SocketType::RAW, icmp).unwrap();
        let patience = Some(Duration::from_millis(300));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, patience).unwrap();
        socket
    };
    let sockets = [&node.namespace, &victim.namespace].map(|host| host.run(listen).unwrap());
    send_to_link(&attacker.namespace, &ADVERTISEMENT);
    barrier(&attacker);
    for socket in sockets {
        let mut buffer = [0; 256];
        while let Ok((length, _)) =
            rustix::net::recv(&socket, &mut buffer[..], rustix::net::RecvFlags::empty())
        {
            assert!(length > 0 && buffer[0] != 134, "an advertisement came through");
        }
    }
    // Routers send redirects to hosts, but no link of a Pod leads to a router.
    let refuses = |host: &Namespace, interface: &str| {
        let read = || {
            [
                "ipv4/conf/IF/accept_redirects",
                "ipv6/conf/IF/accept_redirects",
                "ipv6/conf/IF/accept_ra",
            ]
            .map(|name| format!("/proc/sys/net/{}", name.replace("IF", interface)))
            .map(|path| std::fs::read_to_string(path).unwrap().trim().to_owned())
        };
        assert_eq!(host.run(read).unwrap(), ["0"; 3], "{interface}");
    };
    refuses(&node.namespace, "wl0");
    refuses(&victim.namespace, "eth0");
    let links = node.namespace.kernel().unwrap().links().unwrap();
    let ports = links.iter().filter(|link| link.master.is_some());
    assert_eq!(ports.map(|port| refuses(&node.namespace, &port.name)).count(), 2);
}

/// A Pod sends to the node's 127.0.0.1, which the bridge routes for host ports.
#[test]
fn cve_2020_8558_a_pod_cannot_use_the_nodes_loopback() {
    let node = Node::new();
    let pod = node.add("a", json!({}));
    let secret = node.namespace.run(|| UdpSocket::bind("127.0.0.1:7777").unwrap()).unwrap();
    secret.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let inside = pod.namespace.kernel().unwrap();
    let eth0 = inside.link("eth0").unwrap().unwrap();
    pod.namespace
        .run(|| std::fs::write("/proc/sys/net/ipv4/conf/eth0/route_localnet", "1").unwrap())
        .unwrap();
    let lo = inside.link("lo").unwrap().unwrap();
    inside.delete_address(lo.index, "127.0.0.1/8".parse().unwrap()).unwrap();
    let gateway = "10.9.0.1".parse().ok();
    inside
        .put_route(&Route {
            gateway,
            device: Some(eth0.index),
            ..Route::new("127.0.0.0/8".parse().unwrap())
        })
        .unwrap();
    let send =
        || UdpSocket::bind("10.9.0.2:0").and_then(|socket| socket.send_to(b"x", "127.0.0.1:7777"));
    let _ = pod.namespace.run(send).unwrap();
    assert!(secret.recv(&mut [0; 8]).is_err());
}

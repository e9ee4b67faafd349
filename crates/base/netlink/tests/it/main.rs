//! Tests with the real kernel in new network namespaces. They require root.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
};

use net_core::{Cidr, Family, nft};
use netlink::{Kernel, LinkChange, Namespace, Neighbour, Net, NewKind, NewLink, Route};

fn in_new_namespace(work: impl FnOnce(&Kernel) + Send) {
    let run = || work(&Kernel::open().unwrap());
    Namespace::new().unwrap().run(run).unwrap();
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

const VETH: NewKind<'static> = NewKind::Veth { peer: "v1", peer_mac: None, netns: None };

#[test]
fn creates_changes_lists_and_deletes_links() {
    in_new_namespace(|net| {
        net.add_link(&NewLink {
            name: "br0",
            mtu: 1400,
            mac: Some([2, 0, 0, 0, 0, 1]),
            kind: NewKind::Bridge,
        })
        .unwrap();
        let again =
            net.add_link(&NewLink { name: "br0", mtu: 0, mac: None, kind: NewKind::Bridge });
        assert!(again.unwrap_err().is_exists());
        net.add_link(&NewLink { name: "v0", mtu: 0, mac: None, kind: VETH }).unwrap();
        let bridge = net.link("br0").unwrap().unwrap();
        assert_eq!(
            (bridge.kind.as_str(), bridge.mtu, bridge.mac.as_slice()),
            ("bridge", 1400, &[2, 0, 0, 0, 0, 1][..])
        );
        let port = net.link("v0").unwrap().unwrap();
        net.change_link(
            port.index,
            &LinkChange {
                up: Some(true),
                master: Some(bridge.index),
                hairpin: Some(true),
                ..LinkChange::default()
            },
        )
        .unwrap();
        let port = net.link("v0").unwrap().unwrap();
        assert_eq!((port.up, port.master), (true, Some(bridge.index)));
        assert_eq!(port.peer, Some(net.link("v1").unwrap().unwrap().index));
        let hairpin = std::process::Command::new("bridge")
            .args(["-d", "link", "show", "dev", "v0"])
            .output()
            .unwrap();
        assert!(String::from_utf8_lossy(&hairpin.stdout).contains("hairpin on"));
        net.delete_link(port.index).unwrap();
        assert_eq!(net.link("v1").unwrap(), None, "the peer goes too");
        assert!(net.delete_link(port.index).unwrap_err().is_missing());
        let names: Vec<_> = net.links().unwrap().into_iter().map(|link| link.name).collect();
        assert!(names.contains(&"lo".to_owned()) && names.contains(&"br0".to_owned()), "{names:?}");
    });
}

#[test]
fn creates_veth_peer_in_other_namespace() {
    let other = Namespace::new().unwrap();
    in_new_namespace(|net| {
        let kind = NewKind::Veth {
            peer: "eth0",
            peer_mac: Some([2, 0, 0, 0, 0, 9]),
            netns: Some(other.file().as_fd()),
        };
        net.add_link(&NewLink { name: "v0", mtu: 1300, mac: None, kind }).unwrap();
        assert_eq!(net.link("eth0").unwrap(), None);
        let inside = other.kernel().unwrap();
        let peer = inside.link("eth0").unwrap().unwrap();
        assert_eq!((peer.mtu, peer.mac.as_slice()), (1300, &[2, 0, 0, 0, 0, 9][..]));
    });
}

#[test]
fn configures_both_address_families() {
    in_new_namespace(|net| {
        net.add_link(&NewLink { name: "v0", mtu: 0, mac: None, kind: VETH }).unwrap();
        let index = net.link("v0").unwrap().unwrap().index;
        net.change_link(index, &LinkChange { up: Some(true), ..LinkChange::default() }).unwrap();
        for (address, destination, gateway) in
            [("10.7.0.1/24", "0.0.0.0/0", "10.7.0.9"), ("fd07::1/64", "fd08::/64", "fd07::9")]
        {
            let address = cidr(address);
            net.add_address(index, address).unwrap();
            net.add_address(index, address).unwrap();
            assert!(
                net.addresses()
                    .unwrap()
                    .iter()
                    .any(|found| found.index == index && found.cidr == address)
            );
            let gateway = gateway.parse().unwrap();
            let route = Route {
                gateway: Some(gateway),
                device: Some(index),
                protocol: 99,
                ..Route::new(cidr(destination))
            };
            net.put_route(&route).unwrap();
            net.put_route(&route).unwrap();
            let ours: Vec<_> =
                net.routes().unwrap().into_iter().filter(|found| found.protocol == 99).collect();
            assert_eq!(
                (ours.len(), ours[0].gateway, ours[0].destination),
                (1, Some(gateway), cidr(destination))
            );
            net.delete_route(&ours[0]).unwrap();
            assert!(net.delete_route(&ours[0]).unwrap_err().is_missing());
            let neighbour =
                Neighbour { index, address: gateway, mac: [2, 0, 0, 0, 0, 5], bridge: false };
            net.put_neighbour(&neighbour).unwrap();
            assert!(net.neighbours().unwrap().contains(&neighbour));
            net.delete_neighbour(&neighbour).unwrap();
            assert!(!net.neighbours().unwrap().contains(&neighbour));
            net.delete_address(index, address).unwrap();
            assert!(!net.addresses().unwrap().iter().any(|found| found.cidr == address));
        }
    });
}

#[test]
fn stores_forwarding_entries_of_vxlan() {
    in_new_namespace(|net| {
        let kind = NewKind::Vxlan { vni: 7, port: 4789, local: None, device: None };
        net.add_link(&NewLink { name: "vx0", mtu: 1450, mac: None, kind }).unwrap();
        let index = net.link("vx0").unwrap().unwrap().index;
        let entry = Neighbour {
            index,
            address: "192.0.2.7".parse().unwrap(),
            mac: [2, 0, 0, 0, 0, 7],
            bridge: true,
        };
        net.put_neighbour(&entry).unwrap();
        net.put_neighbour(&entry).unwrap();
        assert_eq!(net.neighbours().unwrap().iter().filter(|found| **found == entry).count(), 1);
    });
}

#[test]
fn finds_and_lists_nft_tables() {
    in_new_namespace(|net| {
        assert!(!net.has_table(Family::V4, "t").unwrap());
        assert_eq!(net.table(Family::V4, "t").unwrap(), None);
        let mut table = nft::Table::new(Family::V4, "t");
        table.map("ports", "type inet_proto . inet_service : verdict;");
        table.dynamic_set("seen", "type ipv4_addr; flags dynamic,timeout;");
        table.chain("service-a/b", vec!["update @seen { ip saddr timeout 5s }".into()]);
        table.element("ports", "tcp . 80".into(), "goto service-a/b".into());
        table.seal();
        net.nft(&nft::create(&table).to_string()).unwrap();
        assert!(
            net.has_table(Family::V4, "t").unwrap() && !net.has_table(Family::V6, "t").unwrap()
        );
        let installed = net.table(Family::V4, "t").unwrap().unwrap();
        assert_eq!(installed.digest.as_deref(), table.digest());
        assert!(installed.chains.contains("service-a/b"));
        assert_eq!(
            (installed.sets.get("ports"), installed.sets.get("seen")),
            (Some(&true), Some(&false))
        );
        let mut other = table.clone();
        other.chains.remove("service-a/b");
        other.sets.remove("seen");
        other.sets.remove("ports");
        other.seal();
        for transaction in
            [nft::resync(&installed, &other), nft::diff(&other, &table), nft::diff(&table, &other)]
        {
            net.nft(&transaction.to_string()).unwrap();
        }
        let error = net.nft("add rule ip t nowhere accept\n").unwrap_err().to_string();
        assert!(error.contains("add rule ip t nowhere"), "{error}");
    });
}

#[test]
fn deletes_conntrack_entries_by_destination() {
    in_new_namespace(|net| {
        let lo = net.link("lo").unwrap().unwrap();
        net.change_link(lo.index, &LinkChange { up: Some(true), ..LinkChange::default() }).unwrap();
        net.nft(
            "add table ip t\nadd chain ip t c { type filter hook output priority 0; }\nadd rule ip t c ct state new accept\n",
        )
        .unwrap();
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"x", server.local_addr().unwrap()).unwrap();
        let target: SocketAddr = server.local_addr().unwrap();
        assert_eq!(net.delete_flows(6, &|_| true).unwrap(), 0, "no TCP");
        assert_eq!(
            net.delete_flows(17, &|flow| flow.destination == target && flow.answered_by == target)
                .unwrap(),
            1
        );
        assert_eq!(net.delete_flows(17, &|_| true).unwrap(), 0);
    });
}

#[test]
fn lists_addresses_of_services_as_deprecated() {
    in_new_namespace(|net| {
        net.add_link(&NewLink { name: "v0", mtu: 0, mac: None, kind: VETH }).unwrap();
        let index = net.link("v0").unwrap().unwrap().index;
        for (own, service) in [("10.7.0.1/32", "10.7.0.2/32"), ("fd07::1/128", "fd07::2/128")] {
            net.add_address(index, cidr(own)).unwrap();
            net.add_service_address(index, cidr(service)).unwrap();
            let all = net.addresses().unwrap();
            let is_deprecated = |text| {
                let found = all.iter().find(|address| address.cidr == cidr(text));
                found.map(|address| address.deprecated)
            };
            assert_eq!((is_deprecated(own), is_deprecated(service)), (Some(false), Some(true)));
        }
    });
}

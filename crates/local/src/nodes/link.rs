//! The link between the nodes of one machine: a bridge where the first node is, and a cable to each further node.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsFd,
};

use net_core::{
    Cidr, Family, ipam,
    nft::{self, Table},
};
use netlink::{Kernel, LinkChange, Namespace, Net, NewKind, NewLink, Route};

use super::space;
use crate::{Cluster, Error};

/// The node's end of its cable.
pub(crate) const INSIDE: &str = "eth0";

fn failed(error: netlink::Error) -> Error {
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
    let causes = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    Error::Other(format!("linking the nodes: {causes}"))
}

/// A range that nothing on this machine leads to, of those that few use.
pub(crate) fn choose_subnet(taken: &[Cidr]) -> Result<Cidr, Error> {
    let mut candidates =
        (0..=255).filter_map(|n| Cidr::new(Ipv4Addr::new(172, 29, n, 0).into(), 24));
    let overlaps = |a: Cidr, b: Cidr| a.contains(b.address) || b.contains(a.address);
    candidates.find(|candidate| !taken.iter().any(|other| overlaps(*candidate, *other))).ok_or_else(
        || Error::Other("every range in 172.29.0.0/16 is in use on this machine".to_owned()),
    )
}

/// The ranges that this machine knows the way to, the default route apart.
pub(crate) fn known_ranges() -> Result<Vec<Cidr>, Error> {
    let net = Kernel::open().map_err(failed)?;
    let routes = net.routes().map_err(failed)?.into_iter().map(|route| route.destination);
    let addresses = net.addresses().map_err(failed)?.into_iter().map(|address| address.cidr);
    Ok(routes.chain(addresses).filter(|cidr| cidr.prefix > 0).collect())
}

/// The next node's address.
pub(crate) fn next_address(subnet: Cidr, taken: &BTreeSet<IpAddr>) -> Result<IpAddr, Error> {
    ipam::allocate(subnet, taken, None)
        .ok_or_else(|| Error::Other(format!("there is no room for another node in {subnet}")))
}

fn bridge(cluster: &Cluster) -> String {
    cluster.bridge().replacen("wl-", "wn-", 1)
}

/// The machine's end of a node's cable, told apart by the last byte of the node's address.
pub(crate) fn cable(cluster: &Cluster, node: &Cluster) -> String {
    let last = match node.settings.address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    let short: String = bridge(cluster).chars().take(11).collect();
    format!("{short}-{last}")
}

fn mac_of(address: IpAddr) -> [u8; 6] {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [0x0e, 0x57, a, b, c, d]
        }
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            [0x0e, 0x57, octets[12], octets[13], octets[14], octets[15]]
        }
    }
}

/// The first node's own address on the link.
pub(crate) fn gateway(subnet: Cidr) -> Result<IpAddr, Error> {
    ipam::gateway(subnet).ok_or_else(|| Error::Other(format!("{subnet} has no room for nodes")))
}

/// Makes the bridge, its address, and the way from the nodes to the world.
fn ensure_bridge(net: &dyn Net, cluster: &Cluster, subnet: Cidr) -> Result<u32, Error> {
    let (name, gateway) = (bridge(cluster), gateway(subnet)?);
    let link = match net.link(&name).map_err(failed)? {
        Some(link) => link,
        None => {
            // With an address of its own it does not change while nodes come and go.
            let mac = Some(mac_of(gateway));
            let new = NewLink { name: &name, mtu: 0, mac, kind: NewKind::Bridge };
            net.add_link(&new).map_err(failed)?;
            let made = net.link(&name).map_err(failed)?;
            made.ok_or_else(|| Error::Other(format!("bridge {name} vanished")))?
        }
    };
    net.add_address(link.index, Cidr { address: gateway, prefix: subnet.prefix })
        .map_err(failed)?;
    if !link.up {
        net.change_link(link.index, &LinkChange { up: Some(true), ..LinkChange::default() })
            .map_err(failed)?;
    }
    if !net.has_table(Family::V4, &table_name(cluster)).map_err(failed)? {
        cni::allow_forwarding(&name);
        net.nft(&nft::create(&table(cluster, subnet)).to_string()).map_err(failed)?;
    }
    Ok(link.index)
}

fn table_name(cluster: &Cluster) -> String {
    format!("windlass-link-{}", bridge(cluster))
}

/// Nodes speak to the world by the machine's address.
fn table(cluster: &Cluster, subnet: Cidr) -> Table {
    let mut table = Table::new(Family::V4, &table_name(cluster));
    let out = format!(
        "ip saddr {} oifname != \"{}\" masquerade fully-random",
        subnet.network(),
        bridge(cluster)
    );
    table.base_chain("postrouting", "type nat hook postrouting priority 100", &[&out]);
    table.seal();
    table
}

/// Connects a node whose namespaces a process holds; what is there already is left as it is.
pub(crate) fn connect(cluster: &Cluster, node: &Cluster, holder: i32) -> Result<(), Error> {
    let subnet = cluster.link_subnet()?;
    let net = Kernel::open().map_err(failed)?;
    let bridge = ensure_bridge(&net, cluster, subnet)?;
    let space = Namespace::open(&space::file(holder, "net")).map_err(failed)?;
    let inside = space.kernel().map_err(failed)?;
    let (name, address) = (cable(cluster, node), node.settings.address);
    if inside.link(INSIDE).map_err(failed)?.is_none() {
        remove_link(&net, &name)?;
        let (peer_mac, netns) = (Some(mac_of(address)), Some(space.file().as_fd()));
        let kind = NewKind::Veth { peer: INSIDE, peer_mac, netns };
        net.add_link(&NewLink { name: &name, mtu: 0, mac: None, kind }).map_err(failed)?;
    }
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    for name in ["lo", INSIDE] {
        let link = inside.link(name).map_err(failed)?;
        let link = link.ok_or_else(|| Error::Other(format!("{name} vanished from the node")))?;
        if name == INSIDE {
            let own = Cidr { address, prefix: subnet.prefix };
            inside.add_address(link.index, own).map_err(failed)?;
        }
        inside.change_link(link.index, &up).map_err(failed)?;
    }
    let attach =
        LinkChange { up: Some(!node.is_cut()), master: Some(bridge), ..LinkChange::default() };
    let outside = net.link(&name).map_err(failed)?;
    let outside = outside.ok_or_else(|| Error::Other(format!("the cable {name} vanished")))?;
    net.change_link(outside.index, &attach).map_err(failed)?;
    set_routes(cluster, &inside, subnet)?;
    let forward = "/proc/sys/net/ipv4/ip_forward";
    let written = space.run(|| fs::write(forward, "1")).map_err(failed)?;
    written.map_err(Error::file("allowing to forward packets by", forward))
}

fn set_routes(cluster: &Cluster, inside: &Kernel, subnet: Cidr) -> Result<(), Error> {
    let device = inside.link(INSIDE).map_err(failed)?.map(|link| link.index);
    // The first node is on the link whatever its address says: it answers for all of its addresses.
    let first = cluster.settings.address;
    if !subnet.contains(first) {
        let route = Route { device, ..Route::new(Cidr::host(first)) };
        inside.put_route(&route).map_err(failed)?;
    }
    let any = Cidr { address: Ipv4Addr::UNSPECIFIED.into(), prefix: 0 };
    let out = Route { gateway: Some(gateway(subnet)?), device, ..Route::new(any) };
    inside.put_route(&out).map_err(failed)
}

/// Takes a node's cable out, or puts it back.
pub(crate) fn set_cut(cluster: &Cluster, node: &Cluster, cut: bool) -> Result<(), Error> {
    let net = Kernel::open().map_err(failed)?;
    let name = cable(cluster, node);
    let link = net.link(&name).map_err(failed)?.ok_or_else(|| {
        Error::Other(format!(
            "node {} has no link {name}; it does not run",
            node.settings.node_name
        ))
    })?;
    net.change_link(link.index, &LinkChange { up: Some(!cut), ..LinkChange::default() })
        .map_err(failed)
}

fn remove_link(net: &dyn Net, name: &str) -> Result<(), Error> {
    let Some(link) = net.link(name).map_err(failed)? else { return Ok(()) };
    match net.delete_link(link.index) {
        Err(error) if !error.is_missing() => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Takes the cables, the bridge and its rules away.
pub(crate) fn remove(cluster: &Cluster, nodes: &[Cluster]) -> Result<(), Error> {
    let net = Kernel::open().map_err(failed)?;
    for node in nodes {
        remove_link(&net, &cable(cluster, node))?;
    }
    let name = bridge(cluster);
    remove_link(&net, &name)?;
    let table = table_name(cluster);
    if net.has_table(Family::V4, &table).map_err(failed)? {
        cni::disallow_forwarding(&name);
        net.nft(&format!("delete table ip {table}\n")).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_that_is_in_use_is_passed_over() {
        let parse =
            |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<Cidr>>();
        assert_eq!(choose_subnet(&[]).unwrap().to_string(), "172.29.0.0/24");
        let taken = parse(&["172.29.0.77/32", "172.29.1.1/23", "10.0.0.0/8"]);
        assert_eq!(choose_subnet(&taken).unwrap().to_string(), "172.29.2.0/24");
        assert!(choose_subnet(&parse(&["172.16.0.0/12"])).is_err());
    }
}

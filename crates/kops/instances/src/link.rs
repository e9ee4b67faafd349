//! The link between the machines on a host: a bridge, and a veth pair (the cable) to each machine.

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
use netlink::{Kernel, LinkChange, Namespace, Net, NewKind, NewLink, Route, refuse_routes};

use crate::{
    error::Error,
    space::{self, INSIDE},
};

/// The link of one cluster.
#[derive(Clone, Debug)]
pub struct Link {
    /// The bridge's name, which prefixes the names of the cables.
    pub bridge: String,
    /// The range of the machines' addresses.
    pub subnet: Cidr,
    /// The address of the host if the host is a node, too.
    pub first: Option<IpAddr>,
}

/// Returns the first /24 range of 172.29.0.0/16 that overlaps none of `taken`.
pub fn choose_subnet(taken: &[Cidr]) -> Result<Cidr, Error> {
    let mut candidates =
        (0..=255).filter_map(|n| Cidr::new(Ipv4Addr::new(172, 29, n, 0).into(), 24));
    let overlaps = |a: Cidr, b: Cidr| a.contains(b.address) || b.contains(a.address);
    candidates
        .find(|candidate| !taken.iter().any(|other| overlaps(*candidate, *other)))
        .ok_or(Error::NoRange)
}

/// Returns the ranges of the host's addresses and routes, without the default route.
pub fn known_ranges() -> Result<Vec<Cidr>, Error> {
    let net = Kernel::open().map_err(Error::Link)?;
    let routes = net.routes().map_err(Error::Link)?.into_iter().map(|route| route.destination);
    let addresses = net.addresses().map_err(Error::Link)?.into_iter().map(|address| address.cidr);
    Ok(routes.chain(addresses).filter(|cidr| cidr.prefix > 0).collect())
}

/// Returns a free address for the next machine.
pub fn next_address(subnet: Cidr, taken: &BTreeSet<IpAddr>) -> Result<IpAddr, Error> {
    ipam::allocate(subnet, taken, None).ok_or(Error::FullRange { subnet })
}

/// Returns the name of a cable's end on the host, which ends in the last byte of the machine's address.
fn cable(link: &Link, address: IpAddr) -> String {
    let last = match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    let short: String = link.bridge.chars().take(11).collect();
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

/// Returns the host's address on the link.
pub fn gateway(subnet: Cidr) -> Result<IpAddr, Error> {
    ipam::gateway(subnet).ok_or(Error::SmallRange { subnet })
}

/// Creates the bridge, its address and its masquerading rules.
fn ensure_bridge(net: &dyn Net, own: &Link) -> Result<u32, Error> {
    let (name, subnet) = (own.bridge.as_str(), own.subnet);
    let gateway = gateway(subnet)?;
    let link = match net.link(name).map_err(Error::Link)? {
        Some(link) => link,
        None => {
            // A bridge with a MAC address of its own keeps it while ports come and go.
            let mac = Some(mac_of(gateway));
            let new = NewLink { name, mtu: 0, mac, kind: NewKind::Bridge };
            net.add_link(&new).map_err(Error::Link)?;
            require_link(net, name)?
        }
    };
    refuse_routes(name).map_err(Error::Link)?;
    net.add_address(link.index, Cidr { address: gateway, prefix: subnet.prefix })
        .map_err(Error::Link)?;
    if !link.up {
        net.change_link(link.index, &LinkChange { up: Some(true), ..LinkChange::default() })
            .map_err(Error::Link)?;
    }
    if !net.has_table(Family::V4, &table_name(own)).map_err(Error::Link)? {
        cni::allow_forwarding(name);
        net.nft(&nft::create(&table(own)).to_string()).map_err(Error::Link)?;
    }
    Ok(link.index)
}

fn table_name(link: &Link) -> String {
    format!("windlass-link-{}", link.bridge)
}

/// Returns the nftables table that masquerades traffic from the machines to other networks.
fn table(link: &Link) -> Table {
    let mut table = Table::new(Family::V4, &table_name(link));
    let out = format!(
        "ip saddr {} oifname != \"{}\" masquerade fully-random",
        link.subnet.network(),
        link.bridge
    );
    table.base_chain("postrouting", "type nat hook postrouting priority 100", &[&out]);
    table.seal();
    table
}

/// Connects a machine whose namespaces the process `holder` has. Parts that exist are kept. With `cut`, the cable stays
/// down.
pub fn connect(own: &Link, address: IpAddr, cut: bool, holder: i32) -> Result<(), Error> {
    let subnet = own.subnet;
    let net = Kernel::open().map_err(Error::Link)?;
    let bridge = ensure_bridge(&net, own)?;
    let space = Namespace::open(&space::file(holder, "net")).map_err(Error::Link)?;
    let inside = space.kernel().map_err(Error::Link)?;
    let name = cable(own, address);
    if inside.link(INSIDE).map_err(Error::Link)?.is_none() {
        remove_link(&net, &name)?;
        let (peer_mac, netns) = (Some(mac_of(address)), Some(space.file().as_fd()));
        let kind = NewKind::Veth { peer: INSIDE, peer_mac, netns };
        net.add_link(&NewLink { name: &name, mtu: 0, mac: None, kind }).map_err(Error::Link)?;
    }
    space.run(|| refuse_routes(INSIDE)).map_err(Error::Link)?.map_err(Error::Link)?;
    refuse_routes(&name).map_err(Error::Link)?;
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    for name in ["lo", INSIDE] {
        let link = require_link(&inside, name)?;
        if name == INSIDE {
            let cidr = Cidr { address, prefix: subnet.prefix };
            inside.add_address(link.index, cidr).map_err(Error::Link)?;
        }
        inside.change_link(link.index, &up).map_err(Error::Link)?;
    }
    // A Pod may connect to a node port of the first node and be led back to a Pod of its own node. With
    // bridge-nf-call-iptables the kernel then sends the packet within the bridge, to the port on which it arrived.
    let attach = LinkChange {
        up: Some(!cut),
        master: Some(bridge),
        hairpin: Some(true),
        ..LinkChange::default()
    };
    let outside = require_link(&net, &name)?;
    net.change_link(outside.index, &attach).map_err(Error::Link)?;
    set_routes(own, &inside)?;
    let forward = "/proc/sys/net/ipv4/ip_forward";
    let written = space.run(|| fs::write(forward, "1")).map_err(Error::Link)?;
    Ok(written.map_err(sys::Error::at("enabling IP forwarding in", forward))?)
}

fn set_routes(own: &Link, inside: &Kernel) -> Result<(), Error> {
    let subnet = own.subnet;
    let device = inside.link(INSIDE).map_err(Error::Link)?.map(|link| link.index);
    // The first node is reachable on the link whatever its address is, because it answers ARP for all of its addresses.
    if let Some(first) = own.first.filter(|first| !subnet.contains(*first)) {
        let route = Route { device, ..Route::new(Cidr::host(first)) };
        inside.put_route(&route).map_err(Error::Link)?;
    }
    let any = Cidr { address: Ipv4Addr::UNSPECIFIED.into(), prefix: 0 };
    let out = Route { gateway: Some(gateway(subnet)?), device, ..Route::new(any) };
    inside.put_route(&out).map_err(Error::Link)
}

/// Takes a machine's cable down (`cut`) or up again.
pub fn set_cut(own: &Link, address: IpAddr, cut: bool) -> Result<(), Error> {
    let net = Kernel::open().map_err(Error::Link)?;
    let name = cable(own, address);
    let link = net.link(&name).map_err(Error::Link)?;
    let link = link.ok_or(Error::MissingLink { address, link: name })?;
    net.change_link(link.index, &LinkChange { up: Some(!cut), ..LinkChange::default() })
        .map_err(Error::Link)
}

/// Returns a link that must exist.
fn require_link(net: &dyn Net, name: &str) -> Result<netlink::Link, Error> {
    let link = net.link(name).map_err(Error::Link)?;
    link.ok_or_else(|| Error::Vanished { link: name.to_owned() })
}

fn remove_link(net: &dyn Net, name: &str) -> Result<(), Error> {
    let Some(link) = net.link(name).map_err(Error::Link)? else {
        return Ok(());
    };
    match net.delete_link(link.index) {
        Err(error) if !error.is_missing() => Err(Error::Link(error)),
        _ => Ok(()),
    }
}

fn unplug_in(net: &dyn Net, own: &Link, address: IpAddr) -> Result<(), Error> {
    remove_link(net, &cable(own, address))
}

/// Removes a machine's cable.
pub fn unplug(own: &Link, address: IpAddr) -> Result<(), Error> {
    unplug_in(&Kernel::open().map_err(Error::Link)?, own, address)
}

/// Removes the cables, the bridge and its rules.
pub fn remove(own: &Link, addresses: impl IntoIterator<Item = IpAddr>) -> Result<(), Error> {
    let net = Kernel::open().map_err(Error::Link)?;
    for address in addresses {
        unplug_in(&net, own, address)?;
    }
    remove_link(&net, &own.bridge)?;
    let table = table_name(own);
    if net.has_table(Family::V4, &table).map_err(Error::Link)? {
        cni::disallow_forwarding(&own.bridge);
        net.nft(&format!("delete table ip {table}\n")).map_err(Error::Link)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choose_subnet_skips_ranges_in_use() {
        let parse =
            |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<Cidr>>();
        assert_eq!(choose_subnet(&[]).unwrap().to_string(), "172.29.0.0/24");
        let taken = parse(&["172.29.0.77/32", "172.29.1.1/23", "10.0.0.0/8"]);
        assert_eq!(choose_subnet(&taken).unwrap().to_string(), "172.29.2.0/24");
        assert!(choose_subnet(&parse(&["172.16.0.0/12"])).is_err());
    }
}

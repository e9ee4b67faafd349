use std::net::IpAddr;

use net_core::{
    Cidr,
    overlay::{Peer, Plan, Tunnel},
};
use netlink::{Link, LinkChange, Neighbour, Net, NewKind, NewLink, Route, refuse_routes};

/// IANA's port of VXLAN.
const PORT: u16 = 4789;
const VNI: u32 = 1;
/// Our routes' mark: none of the kernel's and none of the routing daemons' numbers.
pub(crate) const PROTOCOL: u8 = 87;

/// The largest packet of a Pod that the link with the node's address carries, in a tunnel or without one. 0, which is
/// the kernel's default, where there is no such link.
pub fn mtu(net: &dyn Net, node: IpAddr, tunnelled: bool) -> Result<u32, netlink::Error> {
    let addresses = net.addresses()?;
    let Some(found) = addresses.iter().find(|known| known.cidr.address == node) else {
        return Ok(0);
    };
    let links = net.links()?;
    let link = links.iter().find(|link| link.index == found.index);
    // An Ethernet header, VXLAN's, UDP's, and that of IP, which depends on the family of the nodes' addresses.
    let overhead = 14 + 8 + 8 + if node.is_ipv4() { 20 } else { 40 };
    let overhead = if tunnelled { overhead } else { 0 };
    Ok(link.map_or(0, |link| link.mtu.saturating_sub(overhead)))
}

/// Brings the kernel's routes and tunnel entries to a plan. It keeps no memory: what is there is read each time,
/// which a change of nodes is rare enough for.
#[derive(Clone, Debug)]
pub struct Overlay {
    /// The tunnel's interface; nodes that share a network namespace need different ones.
    pub device: String,
    /// What the node's link leaves room for where 0.
    pub mtu: u32,
}

/// Why some routes are missing; the next round tries again.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    #[error("bringing the routes to other nodes up to date")]
    Network(#[from] netlink::Error),
    #[error("interface {0} is no VXLAN of ours; give the overlay another name")]
    Foreign(String),
}

impl Overlay {
    /// Returns how many changes were made.
    pub fn apply(&self, net: &dyn Net, plan: &Plan) -> Result<usize, OverlayError> {
        let mut changes = 0;
        let device = match &plan.tunnel {
            Some(tunnel) => Some(self.device(net, tunnel, &mut changes)?),
            None => {
                if let Some(link) = net.link(&self.device)?.filter(|link| link.kind == "vxlan") {
                    net.delete_link(link.index)?;
                    changes += 1;
                }
                None
            }
        };
        if let Some(device) = &device {
            changes += entries(net, device.index, plan)?;
        }
        changes += routes(net, device.as_ref(), plan)?;
        Ok(changes)
    }

    /// The tunnel's interface, made anew where this node's own address has changed.
    fn device(
        &self,
        net: &dyn Net,
        tunnel: &Tunnel,
        changes: &mut usize,
    ) -> Result<Link, OverlayError> {
        let mut found = net.link(&self.device)?;
        if let Some(link) = &found {
            if link.kind != "vxlan" {
                return Err(OverlayError::Foreign(self.device.clone()));
            }
            if link.mac != tunnel.mac {
                net.delete_link(link.index)?;
                found = None;
            }
        }
        let link = match found {
            Some(link) => link,
            None => {
                let kind = NewKind::Vxlan {
                    vni: VNI,
                    port: PORT,
                    local: Some(tunnel.local),
                    device: None,
                };
                let mtu = if self.mtu > 0 { self.mtu } else { mtu(net, tunnel.local, true)? };
                net.add_link(&NewLink { name: &self.device, mtu, mac: Some(tunnel.mac), kind })?;
                *changes += 1;
                net.link(&self.device)?.ok_or_else(|| OverlayError::Foreign(self.device.clone()))?
            }
        };
        let addresses = net.addresses()?;
        for address in tunnel.addresses.iter().map(|address| Cidr::host(*address)) {
            if !addresses.iter().any(|known| known.index == link.index && known.cidr == address) {
                net.add_address(link.index, address)?;
                *changes += 1;
            }
        }
        // Whoever can send to the tunnel's port can put frames into it.
        refuse_routes(&self.device)?;
        if !link.up {
            net.change_link(link.index, &LinkChange { up: Some(true), ..LinkChange::default() })?;
            *changes += 1;
        }
        Ok(link)
    }
}

/// Who is behind the tunnel, by hardware address and by node.
fn entries(net: &dyn Net, index: u32, plan: &Plan) -> Result<usize, OverlayError> {
    let wanted: Vec<Neighbour> = plan
        .peers
        .values()
        .flat_map(|peer| match peer {
            Peer::Neighbour { .. } => Vec::new(),
            Peer::Tunnelled { inner, mac, node } => vec![
                Neighbour { index, address: *node, mac: *mac, bridge: true },
                Neighbour { index, address: *inner, mac: *mac, bridge: false },
            ],
        })
        .collect();
    let known: Vec<_> =
        net.neighbours()?.into_iter().filter(|entry| entry.index == index).collect();
    let mut changes = 0;
    // A node that changed its address keeps its inner one: what is stale goes first.
    for stale in known.iter().filter(|entry| !wanted.contains(entry)) {
        net.delete_neighbour(stale)?;
        changes += 1;
    }
    for missing in wanted.iter().filter(|entry| !known.contains(entry)) {
        net.put_neighbour(missing)?;
        changes += 1;
    }
    Ok(changes)
}

fn routes(net: &dyn Net, device: Option<&Link>, plan: &Plan) -> Result<usize, OverlayError> {
    let wanted = plan.peers.iter().filter_map(|(range, peer)| {
        let route = Route { protocol: PROTOCOL, ..Route::new(range.network()) };
        match peer {
            Peer::Neighbour { gateway } => Some(Route { gateway: Some(*gateway), ..route }),
            Peer::Tunnelled { inner, .. } => {
                let device = Some(device?.index);
                Some(Route { gateway: Some(*inner), device, onlink: true, ..route })
            }
        }
    });
    let wanted: Vec<Route> = wanted.collect();
    let known: Vec<_> =
        net.routes()?.into_iter().filter(|route| route.protocol == PROTOCOL).collect();
    let same = |one: &Route, other: &Route| {
        let device_fits = one.device.is_none() || one.device == other.device;
        one.destination == other.destination && one.gateway == other.gateway && device_fits
    };
    let mut changes = 0;
    for route in wanted.iter().filter(|route| !known.iter().any(|known| same(route, known))) {
        net.put_route(route)?;
        changes += 1;
    }
    for stale in known
        .iter()
        .filter(|known| !wanted.iter().any(|route| route.destination == known.destination))
    {
        net.delete_route(stale)?;
        changes += 1;
    }
    Ok(changes)
}

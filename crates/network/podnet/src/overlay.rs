//! The tunnel device and the routes to the Pods of other nodes.

use std::net::IpAddr;

use net_core::{
    Cidr,
    overlay::{Peer, Plan, Tunnel},
};
use netlink::{Link, LinkChange, Neighbour, Net, NewKind, NewLink, Route, refuse_routes};

/// The IANA port of VXLAN.
const PORT: u16 = 4789;
const VNI: u32 = 1;
/// The protocol number that marks our routes; neither the kernel nor known routing daemons use it.
pub(crate) const PROTOCOL: u8 = 87;

/// Returns the MTU for Pods on the link with the node's address, with or without a tunnel. Returns 0, the kernel's
/// default, if there is no such link.
pub fn mtu(net: &dyn Net, node: IpAddr, tunnelled: bool) -> Result<u32, netlink::Error> {
    let addresses = net.addresses()?;
    let Some(address) = addresses.iter().find(|entry| entry.cidr.address == node) else {
        return Ok(0);
    };
    let links = net.links()?;
    let link = links.iter().find(|link| link.index == address.index);
    // The headers of Ethernet, VXLAN, UDP and IP. The IP header depends on the family of the nodes' addresses.
    let overhead = 14 + 8 + 8 + if node.is_ipv4() { 20 } else { 40 };
    let overhead = if tunnelled { overhead } else { 0 };
    Ok(link.map_or(0, |link| link.mtu.saturating_sub(overhead)))
}

/// Applies a plan to the kernel's routes and tunnel entries. Reads their state each time: nodes change rarely.
#[derive(Clone, Debug)]
pub struct Overlay {
    /// The name of the tunnel device. Nodes in one network namespace need different names.
    pub device: String,
    /// The MTU; 0 for the largest that the node's link allows.
    pub mtu: u32,
}

/// The reason why some routes are missing; the next round retries.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    #[error("bringing the routes to other nodes up to date")]
    Network(#[from] netlink::Error),
    #[error("interface {0} exists and is not a VXLAN device; choose another name for the overlay")]
    Foreign(String),
}

impl Overlay {
    /// Applies the plan and returns the number of changes.
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

    /// Returns the tunnel device, which is recreated if this node's own address has changed.
    fn device(
        &self,
        net: &dyn Net,
        tunnel: &Tunnel,
        changes: &mut usize,
    ) -> Result<Link, OverlayError> {
        let mut existing = net.link(&self.device)?;
        if let Some(link) = &existing {
            if link.kind != "vxlan" {
                return Err(OverlayError::Foreign(self.device.clone()));
            }
            if link.mac != tunnel.mac {
                net.delete_link(link.index)?;
                existing = None;
            }
        }
        let link = match existing {
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
            if !addresses.iter().any(|entry| entry.index == link.index && entry.cidr == address) {
                net.add_address(link.index, address)?;
                *changes += 1;
            }
        }
        // Any host that reaches the tunnel's port can inject frames.
        refuse_routes(&self.device)?;
        if !link.up {
            net.change_link(link.index, &LinkChange { up: Some(true), ..LinkChange::default() })?;
            *changes += 1;
        }
        Ok(link)
    }
}

/// Writes the MAC addresses and the node addresses of the tunnel's peers.
fn entries(net: &dyn Net, index: u32, plan: &Plan) -> Result<usize, OverlayError> {
    let planned: Vec<Neighbour> = plan
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
    let installed: Vec<_> =
        net.neighbours()?.into_iter().filter(|entry| entry.index == index).collect();
    let mut changes = 0;
    // A node with a changed address keeps its inner one, so stale entries are deleted first.
    for stale in installed.iter().filter(|entry| !planned.contains(entry)) {
        net.delete_neighbour(stale)?;
        changes += 1;
    }
    for missing in planned.iter().filter(|entry| !installed.contains(entry)) {
        net.put_neighbour(missing)?;
        changes += 1;
    }
    Ok(changes)
}

fn routes(net: &dyn Net, device: Option<&Link>, plan: &Plan) -> Result<usize, OverlayError> {
    let planned = plan.peers.iter().filter_map(|(range, peer)| {
        let route = Route { protocol: PROTOCOL, ..Route::new(range.network()) };
        match peer {
            Peer::Neighbour { gateway } => Some(Route { gateway: Some(*gateway), ..route }),
            Peer::Tunnelled { inner, .. } => {
                let device = Some(device?.index);
                Some(Route { gateway: Some(*inner), device, onlink: true, ..route })
            }
        }
    });
    let planned: Vec<Route> = planned.collect();
    let installed: Vec<_> =
        net.routes()?.into_iter().filter(|route| route.protocol == PROTOCOL).collect();
    let same = |one: &Route, other: &Route| {
        let device_fits = one.device.is_none() || one.device == other.device;
        one.destination == other.destination && one.gateway == other.gateway && device_fits
    };
    let mut changes = 0;
    for route in planned.iter().filter(|route| !installed.iter().any(|other| same(route, other))) {
        net.put_route(route)?;
        changes += 1;
    }
    for stale in installed
        .iter()
        .filter(|old| !planned.iter().any(|route| route.destination == old.destination))
    {
        net.delete_route(stale)?;
        changes += 1;
    }
    Ok(changes)
}

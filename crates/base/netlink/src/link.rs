//! Links: parsing, creation and changes.

use std::os::fd::AsRawFd;

use crate::{
    error::Error,
    net::{Link, LinkChange, NewKind, NewLink},
    socket::{Operation, Socket, change, dump},
    wire::{ACK, CREATE, EXCLUSIVE, Message, attribute, octets, text, u16_at, u32_at},
};

const NEW: u16 = 16;
const DELETE: u16 = 17;
const GET: u16 = 18;
const SET: u16 = 19;
const FIXED: usize = 16;
const UP: u32 = 1;
const AF_BRIDGE: u8 = 7;

const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MTU: u16 = 4;
const LINK: u16 = 5;
const MASTER: u16 = 10;
const PORT_INFO: u16 = 12;
const OPERATIONAL_STATE: u16 = 16;
const OPERATIONAL: u8 = 6;
const INFO: u16 = 18;
const NETNS_FD: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const PORT_HAIRPIN: u16 = 4;
const PORT_MULTICAST: u16 = 27;
const BRIDGE_SNOOPING: u16 = 23;

/// Encodes `struct ifinfomsg`.
fn fixed(family: u8, index: u32, flags: u32, changed: u32) -> [u8; FIXED] {
    let mut bytes = [0; FIXED];
    bytes[0] = family;
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&changed.to_ne_bytes());
    bytes
}

pub(crate) fn parse(body: &[u8]) -> Option<Link> {
    let attributes = body.get(FIXED..)?;
    let number = |kind| attribute(attributes, kind).and_then(|value| u32_at(value, 0));
    let info = attribute(attributes, INFO).unwrap_or_default();
    let kind = attribute(info, INFO_KIND).map(text).unwrap_or_default();
    Some(Link {
        index: u32_at(body, 4)?,
        name: text(attribute(attributes, NAME)?),
        mac: attribute(attributes, ADDRESS).unwrap_or_default().to_vec(),
        mtu: number(MTU).unwrap_or_default(),
        up: u32_at(body, 8)? & UP != 0,
        operational: attribute(attributes, OPERATIONAL_STATE) == Some(&[OPERATIONAL]),
        master: number(MASTER),
        peer: if kind == "veth" { number(LINK) } else { None },
        kind,
    })
}

pub(crate) fn get(socket: &Socket, name: &str) -> Result<Option<Link>, Error> {
    let mut message = Message::new(GET, ACK, &fixed(0, 0, 0, 0));
    message.text(NAME, name);
    socket.get(Operation("looking up link", &name), &mut message, parse)
}

pub(crate) fn list(socket: &Socket) -> Result<Vec<Link>, Error> {
    // A dump of the bridge family would list the ports of bridges again.
    socket.dump(Operation("listing", &"links"), || dump(GET, &fixed(0, 0, 0, 0)), parse)
}

pub(crate) fn add(socket: &Socket, link: &NewLink<'_>) -> Result<(), Error> {
    let mut message = change(NEW, CREATE | EXCLUSIVE, &fixed(0, 0, 0, 0));
    message.text(NAME, link.name);
    common(&mut message, link.mtu, link.mac);
    message.nest(INFO, |info| match &link.kind {
        NewKind::Bridge => {
            // Multicast snooping would drop the first neighbour solicitations of a new port, and Pods rarely use
            // multicast.
            info.text(INFO_KIND, "bridge")
                .nest(INFO_DATA, |data| _ = data.attribute(BRIDGE_SNOOPING, &[0]));
        }
        NewKind::Ifb => _ = info.text(INFO_KIND, "ifb"),
        NewKind::Veth { peer, peer_mac, netns } => {
            info.text(INFO_KIND, "veth").nest(INFO_DATA, |data| {
                data.nest(1, |message| {
                    message.raw(&fixed(0, 0, 0, 0)).text(NAME, peer);
                    common(message, link.mtu, *peer_mac);
                    if let Some(netns) = netns {
                        message.attribute(NETNS_FD, &netns.as_raw_fd().to_ne_bytes());
                    }
                });
            });
        }
        NewKind::Vxlan { vni, port, local, device } => {
            info.text(INFO_KIND, "vxlan").nest(INFO_DATA, |data| {
                data.u32(1, *vni).attribute(15, &port.to_be_bytes());
                // Components add the peers; learning from packets is disabled.
                data.attribute(7, &[0]);
                if let Some(local) = local {
                    data.attribute(if local.is_ipv4() { 4 } else { 17 }, &octets(*local));
                }
                if let Some(device) = device {
                    data.u32(3, *device);
                }
            });
        }
    });
    socket.change(Operation("adding link", &link.name), &mut message)
}

fn common(message: &mut Message, mtu: u32, mac: Option<[u8; 6]>) {
    if mtu != 0 {
        message.u32(MTU, mtu);
    }
    if let Some(mac) = mac {
        message.attribute(ADDRESS, &mac);
    }
}

pub(crate) fn set(socket: &Socket, index: u32, wanted: &LinkChange<'_>) -> Result<(), Error> {
    let about = Operation("changing link number", &index);
    let flags = if wanted.up == Some(true) { UP } else { 0 };
    let changed = if wanted.up.is_some() { UP } else { 0 };
    let mut message = change(SET, 0, &fixed(0, index, flags, changed));
    if let Some(master) = wanted.master {
        message.u32(MASTER, master);
    }
    if let Some(mtu) = wanted.mtu {
        message.u32(MTU, mtu);
    }
    if let Some(name) = wanted.name {
        message.text(NAME, name);
    }
    let of_port = [(PORT_HAIRPIN, wanted.hairpin), (PORT_MULTICAST, wanted.multicast)];
    let link = LinkChange { hairpin: None, multicast: None, ..wanted.clone() };
    if link != LinkChange::default() {
        socket.change(about, &mut message)?;
    }
    if of_port.iter().any(|(_, value)| value.is_some()) {
        let mut message = change(SET, 0, &fixed(AF_BRIDGE, index, 0, 0));
        message.nest(PORT_INFO, |port| {
            for (attribute, value) in of_port {
                if let Some(value) = value {
                    port.attribute(attribute, &[value.into()]);
                }
            }
        });
        socket.change(about, &mut message)?;
    }
    Ok(())
}

pub(crate) fn delete(socket: &Socket, index: u32) -> Result<(), Error> {
    let mut message = change(DELETE, 0, &fixed(0, index, 0, 0));
    socket.change(Operation("deleting link number", &index), &mut message)
}

/// Returns the kernel's `AF_` number.
pub(crate) fn family(address: std::net::IpAddr) -> u8 {
    if address.is_ipv4() { 2 } else { 10 }
}

pub(crate) fn is_ip(family: u8) -> bool {
    [2, 10].contains(&family)
}

pub(crate) fn flags_of(body: &[u8], at: usize) -> u16 {
    u16_at(body, at).unwrap_or_default()
}

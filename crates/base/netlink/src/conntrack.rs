//! Conntrack entries.

use std::net::SocketAddr;

use net_core::conntrack::Flow;

use crate::{
    error::Error,
    socket::{Operation, Socket, change, dump},
    wire::{address, attribute},
};

/// Subsystem 1 of nfnetlink.
const GET: u16 = 0x0101;
const DELETE: u16 = 0x0102;
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ZONE: u16 = 18;
const IP: u16 = 1;
const PROTOCOL: u16 = 2;

pub(crate) struct ConntrackEntry {
    family: u8,
    flow: Flow,
    /// The original direction as encoded by the kernel, which identifies the entry for deletion.
    original: Vec<u8>,
    zone: Option<Vec<u8>>,
}

/// Deletes the entries of `protocol` for which `is_stale` is true.
pub(crate) fn delete(
    socket: &Socket,
    protocol: u8,
    is_stale: &dyn Fn(&Flow) -> bool,
) -> Result<usize, Error> {
    let mut deleted = 0;
    for family in [2, 10] {
        let about = Operation("listing tracked flows of family", &family);
        let entries = socket.dump(
            about,
            || dump(GET, &[family, 0, 0, 0]),
            |body| parse(body, protocol).filter(|entry| is_stale(&entry.flow)),
        )?;
        for entry in entries {
            let mut message = change(DELETE, 0, &[entry.family, 0, 0, 0]);
            message.nest(ORIGINAL, |tuple| _ = tuple.raw(&entry.original));
            if let Some(zone) = &entry.zone {
                message.attribute(ZONE, zone);
            }
            match socket
                .change(Operation("deleting the flow to", &entry.flow.destination), &mut message)
            {
                Ok(()) => deleted += 1,
                // The entry expired in the meantime.
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(deleted)
}

pub(crate) fn parse(body: &[u8], protocol: u8) -> Option<ConntrackEntry> {
    let attributes = body.get(4..)?;
    let original = attribute(attributes, ORIGINAL)?;
    let (destination, found) = end(original, Side::Destination)?;
    if found != protocol {
        return None;
    }
    let (answered_by, _) = end(attribute(attributes, REPLY)?, Side::Source)?;
    Some(ConntrackEntry {
        family: *body.first()?,
        flow: Flow { destination, answered_by },
        original: original.to_vec(),
        zone: attribute(attributes, ZONE).map(<[u8]>::to_vec),
    })
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

/// Returns one end of a direction and its protocol.
fn end(tuple: &[u8], side: Side) -> Option<(SocketAddr, u8)> {
    let (v4, v6, port) = match side {
        Side::Source => (1, 3, 2),
        Side::Destination => (2, 4, 3),
    };
    let ip = attribute(tuple, IP)?;
    let ip = address(attribute(ip, v4).or(attribute(ip, v6))?)?;
    let transport = attribute(tuple, PROTOCOL)?;
    let number = *attribute(transport, 1)?.first()?;
    // ICMP has no ports.
    let port = attribute(transport, port).and_then(|port| port.try_into().ok());
    Some((SocketAddr::new(ip, u16::from_be_bytes(port.unwrap_or_default())), number))
}

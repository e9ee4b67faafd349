//! Addresses, routes and neighbours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use net_core::Cidr;

use crate::{
    error::Error,
    link::{family, flags_of, is_ip},
    net::{Address, Neighbour, Route},
    socket::{Operation, Socket, change, dump},
    wire::{CREATE, Message, REPLACE, address, attribute, octets, u32_at},
};

const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOUR: u16 = 30;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_CACHEINFO: u16 = 6;
/// Skips duplicate address detection, which would delay a Pod by a second. The addresses are known to be unique.
const NO_DAD: u8 = 0x02;
/// The flag of an address whose preferred lifetime is over.
const DEPRECATED: u8 = 0x20;

fn address_message(kind: u16, flags: u16, index: u32, cidr: Cidr) -> Message {
    let mut fixed = [family(cidr.address), cidr.prefix, NO_DAD, 0, 0, 0, 0, 0];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut message = change(kind, flags, &fixed);
    let bytes = octets(cidr.address);
    message.attribute(IFA_LOCAL, &bytes).attribute(IFA_ADDRESS, &bytes);
    if cidr.address.is_ipv4() && cidr.prefix < 31 {
        message.attribute(IFA_BROADCAST, &octets(cidr.last()));
    }
    message
}

pub(crate) fn add_address(socket: &Socket, index: u32, cidr: Cidr) -> Result<(), Error> {
    let mut message = address_message(NEW_ADDRESS, CREATE | REPLACE, index, cidr);
    socket.change(Operation("adding address", &cidr), &mut message)
}

/// The preferred and the valid lifetime of an address that is never a source by default (`ifa_cacheinfo`).
const NOT_PREFERRED: [u32; 4] = [0, u32::MAX, 0, 0];

/// Adds an address that is deprecated in the sense of RFC 4862: it answers, and no program uses it as a source unless
/// the program binds to it.
pub(crate) fn add_service_address(socket: &Socket, index: u32, cidr: Cidr) -> Result<(), Error> {
    let mut message = address_message(NEW_ADDRESS, CREATE | REPLACE, index, cidr);
    let lifetimes: Vec<u8> = NOT_PREFERRED.into_iter().flat_map(u32::to_ne_bytes).collect();
    message.attribute(IFA_CACHEINFO, &lifetimes);
    socket.change(Operation("adding address", &cidr), &mut message)
}

pub(crate) fn delete_address(socket: &Socket, index: u32, cidr: Cidr) -> Result<(), Error> {
    let mut message = address_message(DELETE_ADDRESS, 0, index, cidr);
    socket.change(Operation("deleting address", &cidr), &mut message)
}

pub(crate) fn addresses(socket: &Socket) -> Result<Vec<Address>, Error> {
    socket.dump(
        Operation("listing", &"addresses"),
        || dump(GET_ADDRESS, &[0; 8]),
        |body| {
            let attributes = body.get(8..)?;
            // On a point-to-point link, ADDRESS is the other end.
            let found = attribute(attributes, IFA_LOCAL).or(attribute(attributes, IFA_ADDRESS))?;
            Some(Address {
                index: u32_at(body, 4)?,
                cidr: Cidr::new(address(found)?, body[1])?,
                deprecated: body[2] & DEPRECATED != 0,
            })
        },
    )
}

const DESTINATION: u16 = 1;
const DEVICE: u16 = 4;
const GATEWAY: u16 = 5;
const PRIORITY: u16 = 6;
const SOURCE: u16 = 7;
const UNICAST: u8 = 1;
const ON_LINK: u32 = 4;
const SCOPE_LINK: u8 = 253;

fn route_message(kind: u16, flags: u16, route: &Route) -> Message {
    let scope = if route.gateway.is_none() && kind == NEW_ROUTE { SCOPE_LINK } else { 0 };
    // A deletion matches any scope.
    let scope = if kind == DELETE_ROUTE { 255 } else { scope };
    let destination = route.destination.network();
    let mut fixed = [
        family(destination.address),
        destination.prefix,
        0,
        0,
        route.table,
        if kind == DELETE_ROUTE { 0 } else { route.protocol },
        scope,
        UNICAST,
        0,
        0,
        0,
        0,
    ];
    let bits = if route.onlink { ON_LINK } else { 0 };
    fixed[8..12].copy_from_slice(&bits.to_ne_bytes());
    let mut message = change(kind, flags, &fixed);
    if destination.prefix > 0 {
        message.attribute(DESTINATION, &octets(destination.address));
    }
    if let Some(gateway) = route.gateway {
        message.attribute(GATEWAY, &octets(gateway));
    }
    if let Some(device) = route.device {
        message.u32(DEVICE, device);
    }
    if let Some(source) = route.source {
        message.attribute(SOURCE, &octets(source));
    }
    if route.metric != 0 {
        message.u32(PRIORITY, route.metric);
    }
    message
}

pub(crate) fn put_route(socket: &Socket, route: &Route) -> Result<(), Error> {
    let mut message = route_message(NEW_ROUTE, CREATE | REPLACE, route);
    socket.change(Operation("adding route to", &route.destination), &mut message)
}

pub(crate) fn delete_route(socket: &Socket, route: &Route) -> Result<(), Error> {
    let mut message = route_message(DELETE_ROUTE, 0, route);
    socket.change(Operation("deleting route to", &route.destination), &mut message)
}

pub(crate) fn routes(socket: &Socket) -> Result<Vec<Route>, Error> {
    let all =
        socket.dump(Operation("listing", &"routes"), || dump(GET_ROUTE, &[0; 12]), parse_route)?;
    Ok(all.into_iter().filter(|route| route.table == Route::MAIN).collect())
}

pub(crate) fn parse_route(body: &[u8]) -> Option<Route> {
    let (fixed, attributes) = (body.get(..12)?, body.get(12..)?);
    if !is_ip(fixed[0]) || fixed[7] != UNICAST {
        return None;
    }
    let ip = |kind| attribute(attributes, kind).and_then(address);
    let number = |kind| attribute(attributes, kind).and_then(|value| u32_at(value, 0));
    let any: IpAddr =
        if fixed[0] == 2 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    Some(Route {
        destination: Cidr::new(ip(DESTINATION).unwrap_or(any), fixed[1])?,
        gateway: ip(GATEWAY),
        device: number(DEVICE),
        source: ip(SOURCE),
        table: fixed[4],
        protocol: fixed[5],
        metric: number(PRIORITY).unwrap_or_default(),
        onlink: u32_at(fixed, 8)? & ON_LINK != 0,
    })
}

const ND_DESTINATION: u16 = 1;
const ND_MAC: u16 = 2;
const PERMANENT: u16 = 0x80;
const NO_ARP: u16 = 0x40;
const SELF: u8 = 0x02;
const AF_BRIDGE: u8 = 7;

fn neighbour_message(kind: u16, flags: u16, neighbour: &Neighbour) -> Message {
    let mut fixed = [0; 12];
    fixed[0] = if neighbour.bridge { AF_BRIDGE } else { family(neighbour.address) };
    fixed[4..8].copy_from_slice(&neighbour.index.to_ne_bytes());
    fixed[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
    fixed[10] = if neighbour.bridge { SELF } else { 0 };
    let mut message = change(kind, flags, &fixed);
    message.attribute(ND_DESTINATION, &octets(neighbour.address)).attribute(ND_MAC, &neighbour.mac);
    message
}

pub(crate) fn put_neighbour(socket: &Socket, neighbour: &Neighbour) -> Result<(), Error> {
    let mut message = neighbour_message(NEW_NEIGHBOUR, CREATE | REPLACE, neighbour);
    socket.change(Operation("adding neighbour", &neighbour.address), &mut message)
}

pub(crate) fn delete_neighbour(socket: &Socket, neighbour: &Neighbour) -> Result<(), Error> {
    let mut message = neighbour_message(DELETE_NEIGHBOUR, 0, neighbour);
    socket.change(Operation("deleting neighbour", &neighbour.address), &mut message)
}

/// Returns the permanent entries of the neighbour table and of the VXLANs' forwarding tables.
pub(crate) fn neighbours(socket: &Socket) -> Result<Vec<Neighbour>, Error> {
    let mut found = Vec::new();
    for bridge in [false, true] {
        let mut fixed = [0; 12];
        fixed[0] = if bridge { AF_BRIDGE } else { 0 };
        let about = Operation("listing", &"neighbours");
        found.extend(socket.dump(
            about,
            || dump(GET_NEIGHBOUR, &fixed),
            |body| parse_neighbour(body, bridge),
        )?);
    }
    Ok(found)
}

pub(crate) fn parse_neighbour(body: &[u8], bridge: bool) -> Option<Neighbour> {
    let attributes = body.get(12..)?;
    let state = flags_of(body, 8);
    if state & PERMANENT == 0 || state & NO_ARP != 0 {
        return None;
    }
    Some(Neighbour {
        index: u32_at(body, 4)?,
        address: address(attribute(attributes, ND_DESTINATION)?)?,
        mac: attribute(attributes, ND_MAC)?.try_into().ok()?,
        bridge,
    })
}

//! The DHCP state machine: takes a packet, the configuration, the leases and the time, and returns an action.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
};

use dhcproto::v4::{
    DhcpOption, Flags, Message, MessageType, Opcode, OptionCode,
    relay::{RelayCode, RelayInfo},
};

use super::{
    boot,
    config::{Config, Subnet},
    leases::{Lease, Leases, State},
};
use crate::firmware::Firmware;

/// The time in seconds to hold an offer, a probed address and an address in conflict.
const OFFER: u64 = 60;
const PROBE: u64 = 5;
const CONFLICT: u64 = 600;
const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;
/// The port of PXE boot servers, where clients request details from proxyDHCP.
pub(crate) const PXE_PORT: u16 = 4011;

/// The addresses and the port by which a packet arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The server's address on the receiving interface.
    pub server: Ipv4Addr,
    /// The sender of the packet.
    pub source: SocketAddrV4,
    /// The server's port: 67, or 4011 for PXE.
    pub port: u16,
}

/// The action that the server takes for a packet.
#[derive(Debug)]
pub enum Action {
    /// Ignore the packet: it is for another server or must not be answered.
    Nothing,
    /// Send a reply. If `changed` is set, save the lease of that address first.
    Reply { message: Box<Message>, to: SocketAddrV4, changed: Option<Ipv4Addr> },
    /// Save the changed lease of this address and send nothing.
    Save(Ipv4Addr),
    /// Probe the address, report the result to [`Machine::probed`], and call [`Machine::handle`] again with the packet.
    Probe(Ipv4Addr),
}

/// A DHCP server without socket and clock: the configuration and the lease table.
pub struct Machine {
    config: Config,
    leases: Leases,
    /// The addresses whose last probe got no answer, at most 64.
    quiet: Vec<Ipv4Addr>,
    /// The networks without a free address, and the second in which the last search failed. It is not repeated in this
    /// second, because many false clients would otherwise keep the server busy with searches.
    exhausted: BTreeMap<Ipv4Addr, u64>,
}

/// Hashes a client to the start of its search for a free address, so that clients get the same addresses after leases
/// are lost.
fn hash(client: &str) -> u32 {
    client
        .bytes()
        .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns the identity of the client: the hardware address. Firmware, boot loader and system share it, while their
/// client identifiers differ.
pub(super) fn client(request: &Message) -> Option<String> {
    let octet = |byte: &u8| format!("{byte:02x}");
    let hex = |bytes: &[u8]| bytes.iter().map(octet).collect::<Vec<_>>().join(":");
    match (request.hlen(), request.opts().get(OptionCode::ClientIdentifier)) {
        (1..=16, _) => Some(hex(request.chaddr())),
        (0, Some(DhcpOption::ClientIdentifier(id))) if !id.is_empty() && id.len() <= 64 => {
            Some(format!("id:{}", hex(id)))
        }
        _ => None,
    }
}

fn address(request: &Message, code: OptionCode) -> Option<Ipv4Addr> {
    match request.opts().get(code)? {
        DhcpOption::RequestedIpAddress(address)
        | DhcpOption::ServerIdentifier(address)
        | DhcpOption::SubnetSelection(address) => Some(*address),
        _ => None,
    }
}

/// A client's packet, with the subnet of the client. `now` is in seconds since the epoch.
#[derive(Clone, Copy)]
struct Exchange<'a> {
    request: &'a Message,
    subnet: &'a Subnet,
    client: &'a str,
    arrival: Arrival,
    now: u64,
}

impl Machine {
    /// Creates a server that continues with the leases of an earlier run.
    pub fn new(config: Config, leases: Leases) -> Self {
        Self { config, leases, quiet: Vec::new(), exhausted: BTreeMap::new() }
    }

    /// Returns `true` if addresses are probed before they are offered.
    pub fn probes(&self) -> bool {
        self.config.probe && !self.config.proxy
    }

    /// Returns the lease table.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Records the result of a probe. A taken address is withheld for ten minutes.
    pub fn probed(&mut self, address: Ipv4Addr, in_use: bool, now: u64) {
        if in_use {
            tracing::warn!(%address, "another host uses the address; withholding it for ten minutes");
            self.conflict(address, now);
        } else {
            self.quiet.retain(|other| *other != address);
            self.quiet.push(address);
            let excess = self.quiet.len().saturating_sub(64);
            self.quiet.drain(..excess);
        }
    }

    fn conflict(&mut self, address: Ipv4Addr, now: u64) {
        let lease = Lease {
            client: String::new(),
            expires: now + CONFLICT,
            state: State::Conflict,
            hostname: None,
        };
        self.leases.set(address, lease);
    }

    /// Handles one packet. `now` is in seconds since the epoch, as in leases.
    pub fn handle(&mut self, request: &Message, arrival: Arrival, now: u64) -> Action {
        if request.opcode() != Opcode::BootRequest {
            return Action::Nothing;
        }
        let (Some(kind), Some(client)) = (request.opts().msg_type(), client(request)) else {
            return Action::Nothing;
        };
        if self.config.proxy || arrival.port == PXE_PORT {
            return self.proxy(request, kind, arrival);
        }
        let Some(subnet) = self.subnet(request, arrival).cloned() else { return Action::Nothing };
        let exchange = Exchange { request, subnet: &subnet, client: &client, arrival, now };
        match kind {
            MessageType::Discover => self.discover(exchange),
            MessageType::Request => self.request(exchange),
            MessageType::Decline => match address(request, OptionCode::RequestedIpAddress) {
                Some(address) if self.holds(&client, address) => {
                    self.conflict(address, now);
                    Action::Save(address)
                }
                _ => Action::Nothing,
            },
            MessageType::Release if self.holds(&client, request.ciaddr()) => {
                self.leases.remove(request.ciaddr());
                Action::Save(request.ciaddr())
            }
            MessageType::Inform => {
                let mut reply = self.reply(request, MessageType::Ack, arrival);
                self.settings(&mut reply, request, &subnet, arrival, None);
                self.send(reply, request, arrival, None)
            }
            _ => Action::Nothing,
        }
    }

    fn holds(&self, client: &str, address: Ipv4Addr) -> bool {
        self.leases.get(address).is_some_and(|lease| lease.client == client)
    }

    /// Returns the client's subnet: the one that its relay names, or the server's own.
    fn subnet(&self, request: &Message, arrival: Arrival) -> Option<&Subnet> {
        let mut place = request.giaddr();
        if let Some(DhcpOption::RelayAgentInformation(info)) =
            request.opts().get(OptionCode::RelayAgentInformation)
            && let Some(RelayInfo::LinkSelection(link)) = info.get(RelayCode::LinkSelection)
        {
            place = *link;
        } else if let Some(link) = address(request, OptionCode::SubnetSelection) {
            place = link;
        }
        if place.is_unspecified() {
            place = arrival.server;
        }
        self.config.subnets.iter().find(|subnet| subnet.contains(place))
    }

    fn discover(&mut self, exchange: Exchange<'_>) -> Action {
        let Exchange { request, subnet, client, arrival, now } = exchange;
        let Some(address) = self.choose(exchange) else { return Action::Nothing };
        let state = self.leases.get(address).filter(|lease| lease.client == client);
        let state = state.filter(|lease| lease.expires > now).map(|lease| lease.state);
        let mut hold = |state, seconds| {
            let (client, hostname) = (client.to_owned(), None);
            self.leases.set(address, Lease { client, expires: now + seconds, state, hostname });
        };
        let vouched = matches!(state, Some(State::Offered | State::Bound));
        if self.config.probe && !vouched && !self.quiet.contains(&address) {
            // Hold the address meanwhile, so that concurrent clients get different addresses.
            hold(State::Probing, PROBE);
            return Action::Probe(address);
        }
        if state != Some(State::Bound) {
            hold(State::Offered, OFFER);
        }
        let mut reply = self.reply(request, MessageType::Offer, arrival);
        reply.set_yiaddr(address);
        self.settings(&mut reply, request, subnet, arrival, Some(client));
        self.send(reply, request, arrival, None)
    }

    /// Chooses the client's reservation, its lease, the address that it requests, or the next free one.
    fn choose(&mut self, exchange: Exchange<'_>) -> Option<Ipv4Addr> {
        let Exchange { request, subnet, client, now, .. } = exchange;
        if let Some(reservation) = self.config.reservations.get(client)
            && subnet.contains(reservation.address)
        {
            return Some(reservation.address);
        }
        let requested = address(request, OptionCode::RequestedIpAddress);
        let current = self.leases.of(client).map(|(address, _)| address);
        let fits = |address: &Ipv4Addr| self.may_have(exchange, *address);
        if let Some(address) = current.into_iter().chain(requested).find(fits) {
            return Some(address);
        }
        if self.exhausted.get(&subnet.network) == Some(&now) {
            return None;
        }
        let free = self.search(exchange);
        if free.is_none() {
            let network = subnet.network;
            tracing::warn!(client, %network, "no free address; widen --dhcp-range, or reserve addresses");
            self.exhausted.insert(network, now);
        }
        free
    }

    /// Searches the range for a free address.
    fn search(&self, exchange: Exchange<'_>) -> Option<Ipv4Addr> {
        let (first, last) = exchange.subnet.range?;
        let (first, count) = (u32::from(first), u32::from(last) - u32::from(first) + 1);
        let start = hash(exchange.client) % count;
        let mut range = (0..count).map(|i| Ipv4Addr::from(first + (start + i) % count));
        range.find(|address| self.may_have(exchange, *address))
    }

    fn may_have(&self, exchange: Exchange<'_>, address: Ipv4Addr) -> bool {
        let Exchange { subnet, client, arrival, now, .. } = exchange;
        if let Some(reservation) = self.config.reservations.get(client)
            && subnet.contains(reservation.address)
        {
            return reservation.address == address;
        }
        let reserved = || self.config.reservations.values().any(|other| other.address == address);
        subnet.in_range(address)
            && subnet.is_host(address)
            && address != arrival.server
            && self.leases.is_free(address, client, now)
            && !reserved()
    }

    fn request(&mut self, exchange: Exchange<'_>) -> Action {
        let Exchange { request, subnet, client, arrival, now } = exchange;
        if let Some(server) = address(request, OptionCode::ServerIdentifier)
            && server != arrival.server
        {
            // The client accepted another server's offer, so our offer is free again.
            let offer = self.leases.of(client).filter(|(_, lease)| lease.state != State::Bound);
            if let Some(address) = offer.map(|(address, _)| address) {
                self.leases.remove(address);
            }
            return Action::Nothing;
        }
        let chosen = address(request, OptionCode::ServerIdentifier).is_some();
        let address = address(request, OptionCode::RequestedIpAddress).unwrap_or(request.ciaddr());
        if !chosen && !self.knows(subnet, client, address) {
            return Action::Nothing;
        }
        if !self.may_have(exchange, address) {
            tracing::info!(client, %address, "refusing a DHCP request: the client may not have this address");
            let mut reply = self.reply(request, MessageType::Nak, arrival);
            reply.opts_mut().insert(DhcpOption::Message("address not available".into()));
            return self.send(reply, request, arrival, None);
        }
        let hostname = self.hostname(request, client);
        let lease = Lease {
            client: client.to_owned(),
            expires: now + self.config.lease.as_secs(),
            state: State::Bound,
            hostname,
        };
        self.quiet.retain(|other| *other != address);
        self.leases.set(address, lease);
        let mut reply = self.reply(request, MessageType::Ack, arrival);
        reply.set_yiaddr(address);
        reply.set_ciaddr(request.ciaddr());
        self.settings(&mut reply, request, subnet, arrival, Some(client));
        self.send(reply, request, arrival, Some(address))
    }

    /// Returns `true` if this server may decide about the address. An address of this network outside the range,
    /// requested by an unknown client, was assigned by another server.
    fn knows(&self, subnet: &Subnet, client: &str, address: Ipv4Addr) -> bool {
        let reservations = &self.config.reservations;
        !subnet.contains(address)
            || subnet.in_range(address)
            || reservations.get(client).is_some_and(|own| subnet.contains(own.address))
            || reservations.values().any(|other| other.address == address)
            || self.leases.of(client).is_some()
    }

    fn hostname(&self, request: &Message, client: &str) -> Option<String> {
        let reserved = self.config.reservations.get(client).and_then(|r| r.hostname.clone());
        reserved.or_else(|| match request.opts().get(OptionCode::Hostname) {
            Some(DhcpOption::Hostname(name))
                if !name.is_empty()
                    && name
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.') =>
            {
                Some(name.clone())
            }
            _ => None,
        })
    }

    /// Answers PXE firmware with boot files only.
    fn proxy(&self, request: &Message, kind: MessageType, arrival: Arrival) -> Action {
        let Some(firmware) = Firmware::of(request) else { return Action::Nothing };
        let kind = match kind {
            MessageType::Discover => MessageType::Offer,
            MessageType::Request | MessageType::Inform if arrival.port == PXE_PORT => {
                MessageType::Ack
            }
            _ => return Action::Nothing,
        };
        let mut reply = self.reply(request, kind, arrival);
        boot::add(&mut reply, &self.config.boot, firmware, arrival.server, true);
        if let Some(uuid) = request.opts().get(OptionCode::ClientMachineIdentifier) {
            reply.opts_mut().insert(uuid.clone());
        }
        self.send(reply, request, arrival, None)
    }

    fn reply(&self, request: &Message, kind: MessageType, arrival: Arrival) -> Message {
        let mut reply = Message::new_with_id(
            request.xid(),
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::UNSPECIFIED,
            request.giaddr(),
            request.chaddr(),
        );
        reply.set_opcode(Opcode::BootReply).set_htype(request.htype()).set_flags(request.flags());
        let opts = reply.opts_mut();
        opts.insert(DhcpOption::MessageType(kind));
        opts.insert(DhcpOption::ServerIdentifier(arrival.server));
        if let Some(info) = request.opts().get(OptionCode::RelayAgentInformation) {
            opts.insert(info.clone());
        }
        reply
    }

    /// Adds the network settings, the lease times if `client` is set, and the boot files.
    fn settings(
        &self,
        reply: &mut Message,
        request: &Message,
        subnet: &Subnet,
        arrival: Arrival,
        client: Option<&str>,
    ) {
        let opts = reply.opts_mut();
        if let Some(client) = client {
            let seconds = u32::try_from(self.config.lease.as_secs()).unwrap_or(u32::MAX);
            opts.insert(DhcpOption::AddressLeaseTime(seconds));
            if seconds != u32::MAX {
                opts.insert(DhcpOption::Renewal(seconds / 2));
                opts.insert(DhcpOption::Rebinding(seconds - seconds / 8));
            }
            let reservation = self.config.reservations.get(client);
            if let Some(name) = reservation.and_then(|reservation| reservation.hostname.clone()) {
                opts.insert(DhcpOption::Hostname(name));
            }
        }
        opts.insert(DhcpOption::SubnetMask(subnet.mask()));
        opts.insert(DhcpOption::BroadcastAddr(subnet.broadcast()));
        if !subnet.routers.is_empty() {
            opts.insert(DhcpOption::Router(subnet.routers.clone()));
        }
        if !subnet.dns.is_empty() {
            opts.insert(DhcpOption::DomainNameServer(subnet.dns.clone()));
        }
        if let Some(domain) = &self.config.domain {
            opts.insert(DhcpOption::DomainName(domain.clone()));
        }
        for extra in &self.config.options {
            extra.apply(opts, arrival.server);
        }
        if let Some(firmware) = Firmware::of(request) {
            boot::add(reply, &self.config.boot, firmware, arrival.server, false);
        }
    }

    fn send(
        &self,
        mut reply: Message,
        request: &Message,
        arrival: Arrival,
        changed: Option<Ipv4Addr>,
    ) -> Action {
        let nak = reply.opts().msg_type() == Some(MessageType::Nak);
        let to = if !request.giaddr().is_unspecified() {
            if nak {
                // The relay must broadcast a NAK, because the client may use an address that is wrong here.
                reply.set_flags(Flags::default().set_broadcast());
            }
            SocketAddrV4::new(request.giaddr(), SERVER_PORT)
        } else if arrival.port == PXE_PORT {
            arrival.source
        } else if !request.ciaddr().is_unspecified() && !nak {
            SocketAddrV4::new(request.ciaddr(), CLIENT_PORT)
        } else {
            // A client without an address does not answer ARP. A broadcast reaches it whether or not it set the flag.
            SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT)
        };
        Action::Reply { message: Box::new(reply), to, changed }
    }
}

//! The network operations of the kernel, and the objects that they act on.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
};

use net_core::{Cidr, Family, api::Protocol, conntrack::Flow, nft::InstalledTable};

use crate::error::Error;

/// A link as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The index of the link in its namespace.
    pub index: u32,
    /// The name.
    pub name: String,
    /// The MAC address: six bytes for Ethernet, empty for links without one.
    pub mac: Vec<u8>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// `true` if the link is enabled.
    pub up: bool,
    /// `true` if the link is enabled and can pass packets: the other end is enabled, too.
    pub operational: bool,
    /// The index of the bridge that the link is a port of.
    pub master: Option<u32>,
    /// `bridge`, `veth` or `vxlan`; empty for hardware and loopback.
    pub kind: String,
    /// The peer's index in its own namespace, for an end of a veth pair.
    pub peer: Option<u32>,
}

/// A link to create.
#[derive(Clone, Debug)]
pub struct NewLink<'a> {
    /// The name.
    pub name: &'a str,
    /// The MTU in bytes; 0 for the kernel's default.
    pub mtu: u32,
    /// The MAC address; `None` for a random one.
    pub mac: Option<[u8; 6]>,
    /// The kind of link.
    pub kind: NewKind<'a>,
}

/// The kind of a link to create.
#[derive(Clone, Debug)]
pub enum NewKind<'a> {
    /// A bridge.
    Bridge,
    /// A veth pair. The peer is created in `netns` if given, with the same MTU.
    Veth { peer: &'a str, peer_mac: Option<[u8; 6]>, netns: Option<BorrowedFd<'a>> },
    /// A VXLAN. `device` is the index of the underlying link.
    Vxlan { vni: u32, port: u16, local: Option<IpAddr>, device: Option<u32> },
    /// A device that delays the packets which another link receives.
    Ifb,
}

/// A limit of what a link sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The rate in bytes per second.
    pub bytes_per_second: u64,
    /// The bytes that may be sent at once after a pause.
    pub burst: u32,
    /// The bytes that may wait. Packets beyond that are dropped.
    pub queue: u32,
}

/// The changes of a link; `None` keeps a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkChange<'a> {
    /// `true` enables the link, `false` disables it.
    pub up: Option<bool>,
    /// The index of the bridge that it becomes a port of; 0 removes it from its bridge.
    pub master: Option<u32>,
    /// The MTU in bytes.
    pub mtu: Option<u32>,
    /// The name.
    pub name: Option<&'a str>,
    /// `true` if the bridge port may send packets back out of the port on which they arrived. A Pod that connects to
    /// itself through its Service needs this. Ports of bridges only.
    pub hairpin: Option<bool>,
    /// `true` if the bridge port sends multicast frames of other ports. It always sends those of the bridge itself.
    /// Ports of bridges only.
    pub multicast: Option<bool>,
}

/// An address of a link, with its prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The index of the link.
    pub index: u32,
    /// The address and the length of its prefix.
    pub cidr: Cidr,
    /// `true` if programs do not use it as a source, as one of [`Net::add_service_address`].
    pub deprecated: bool,
}

/// A route. The kernel identifies it by destination, table and metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination network.
    pub destination: Cidr,
    /// The address of the next hop; `None` for a directly connected network.
    pub gateway: Option<IpAddr>,
    /// The index of the outgoing link.
    pub device: Option<u32>,
    /// The source address for packets of the node, unless a program selects one.
    pub source: Option<IpAddr>,
    /// The routing table; 254 is the main table.
    pub table: u8,
    /// The origin of the route: 2 is the kernel, 3 is boot. A component marks its own routes with a number of its own.
    pub protocol: u8,
    /// The priority among routes with the same destination; the lowest value wins.
    pub metric: u32,
    /// `true` if the gateway is reachable on the device without a matching address.
    pub onlink: bool,
}

impl Route {
    /// The table of routes for packets that match no routing rule.
    pub(crate) const MAIN: u8 = 254;

    /// Returns a route of the main table with the protocol `boot` and no next hop.
    pub fn new(destination: Cidr) -> Self {
        Self {
            destination,
            gateway: None,
            device: None,
            source: None,
            table: Self::MAIN,
            protocol: 3,
            metric: 0,
            onlink: false,
        }
    }
}

/// A permanent entry of the neighbour table or, with `bridge`, of a VXLAN's forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The index of the link.
    pub index: u32,
    /// The IP address of the neighbour, or of the VXLAN's remote end.
    pub address: IpAddr,
    /// The MAC address.
    pub mac: [u8; 6],
    /// `true` for an entry of a forwarding table.
    pub bridge: bool,
}

/// The network operations that components need, each a single step for the kernel.
pub trait Net: Send + Sync {
    /// Returns the link with this name.
    fn link(&self, name: &str) -> Result<Option<Link>, Error>;
    /// Returns all links.
    fn links(&self) -> Result<Vec<Link>, Error>;
    /// Creates a link. Fails with [`Error::is_exists`] if the name is in use.
    fn add_link(&self, link: &NewLink<'_>) -> Result<(), Error>;
    /// Changes a link.
    fn change_link(&self, index: u32, change: &LinkChange<'_>) -> Result<(), Error>;
    /// Deletes a link.
    fn delete_link(&self, index: u32) -> Result<(), Error>;
    /// Limits the rate of what a link sends, replacing an earlier limit.
    fn limit_sent(&self, index: u32, limit: &RateLimit) -> Result<(), Error>;
    /// Lets everything that a link receives pass through the link `to` first. Succeeds if it does.
    fn redirect_received(&self, index: u32, to: u32) -> Result<(), Error>;
    /// Returns the addresses of all links.
    fn addresses(&self) -> Result<Vec<Address>, Error>;
    /// Adds an address. Succeeds if it exists.
    fn add_address(&self, index: u32, cidr: Cidr) -> Result<(), Error>;
    /// Adds an address of a service. Programs of the host do not use it as a source. Succeeds if it exists.
    fn add_service_address(&self, index: u32, cidr: Cidr) -> Result<(), Error>;
    /// Deletes an address.
    fn delete_address(&self, index: u32, cidr: Cidr) -> Result<(), Error>;
    /// Returns the main table's routes of both families.
    fn routes(&self) -> Result<Vec<Route>, Error>;
    /// Adds a route, or replaces the one with the same destination and metric.
    fn put_route(&self, route: &Route) -> Result<(), Error>;
    /// Deletes a route.
    fn delete_route(&self, route: &Route) -> Result<(), Error>;
    /// Returns the permanent neighbours.
    fn neighbours(&self) -> Result<Vec<Neighbour>, Error>;
    /// Adds or replaces a neighbour.
    fn put_neighbour(&self, neighbour: &Neighbour) -> Result<(), Error>;
    /// Deletes a neighbour.
    fn delete_neighbour(&self, neighbour: &Neighbour) -> Result<(), Error>;
    /// Deletes the conntrack entries of an IP protocol for which `is_stale` is true, and returns their number.
    fn delete_flows(&self, protocol: u8, is_stale: &dyn Fn(&Flow) -> bool) -> Result<usize, Error>;
    /// Returns the listening TCP and UDP sockets in the caller's namespace.
    fn listeners(&self) -> Result<Vec<(Protocol, SocketAddr)>, Error>;
    /// Runs one nftables transaction.
    fn nft(&self, transaction: &str) -> Result<(), Error>;
    /// Reports whether an nftables table exists.
    fn has_table(&self, family: Family, table: &str) -> Result<bool, Error>;
    /// Returns the names of a table's objects, or `None` if the table does not exist.
    fn table(&self, family: Family, table: &str) -> Result<Option<InstalledTable>, Error>;
    /// Removes the iptables chains whose name `is_stale` accepts, with the rules that refer to them, and returns their
    /// number.
    fn remove_iptables_chains(&self, is_stale: &dyn Fn(&str) -> bool) -> Result<usize, Error>;
}

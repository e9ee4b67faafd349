//! The kernel's network configuration: links, addresses, routes, neighbours, tracked flows and nftables.
//!
//! Synchronous and small, because a CNI plugin is a process of a few milliseconds and the daemons change the
//! network rarely. Components use the [`Net`] trait; [`Kernel`] is the real one, bound to one network
//! namespace, and [`Fake`] records for tests.
//!
//! Invariants:
//! - A [`Kernel`] keeps acting on the namespace that it was opened in, whatever thread uses it. Only nftables
//!   is reached through a process, in the caller's namespace, and listening sockets are read from there.
//! - Operations that add are idempotent where the kernel can tell "the same again" from a conflict.
//! - nftables is changed by whole transactions only.

mod conntrack;
mod fake;
#[cfg(test)]
mod fuzzed;
mod iptables;
mod kernel;
mod link;
mod listeners;
mod namespace;
mod nft;
mod route;
mod socket;
mod sysctl;
mod table;
mod wire;
mod xtables;

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
};

pub use fake::Fake;
pub use kernel::Kernel;
pub use namespace::Namespace;
use net_core::{Cidr, Family, api::Protocol, conntrack::Flow, nft::Installed};
pub use nft::NftError;
pub use sysctl::{has_ipv6, refuse_routes, set_sysctl};
pub use table::{TableWriter, Written};
pub use xtables::{ChainWriter, Iptables, Xtables, XtablesError};

/// Why the kernel did not change, or did not tell.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation} on {subject}: {}", explain(*errno))]
    Refused { operation: &'static str, subject: String, errno: i32 },
    #[error("netlink socket: {action}")]
    Socket { action: &'static str, source: std::io::Error },
    #[error("{operation} on {subject}: the kernel's answer is malformed")]
    Malformed { operation: &'static str, subject: String },
    #[error("setting {path} to {value}")]
    Sysctl { path: String, value: String, source: std::io::Error },
    #[error("reading listening sockets from {path}")]
    Listeners { path: String, source: std::io::Error },
    #[error("network namespace {path}: {action}")]
    Namespace { path: String, action: &'static str, source: std::io::Error },
    #[error(transparent)]
    Nft(#[from] NftError),
    #[error(transparent)]
    Xtables(#[from] XtablesError),
}

impl Error {
    fn errno(&self) -> Option<i32> {
        match self {
            Error::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// The name, address or route is taken.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(rustix::io::Errno::EXIST.raw_os_error())
    }

    /// What was to be changed or removed is not there.
    pub fn is_missing(&self) -> bool {
        use rustix::io::Errno;
        let missing = [Errno::NODEV, Errno::NOENT, Errno::ADDRNOTAVAIL, Errno::SRCH];
        missing.iter().any(|errno| self.errno() == Some(errno.raw_os_error()))
    }
}

fn explain(errno: i32) -> String {
    let error = std::io::Error::from_raw_os_error(errno);
    let hint = match rustix::io::Errno::from_raw_os_error(errno) {
        rustix::io::Errno::PERM => "; run as root (CAP_NET_ADMIN)",
        rustix::io::Errno::OPNOTSUPP => "; the kernel lacks this kind of device or its module",
        _ => "",
    };
    format!("{error}{hint}")
}

/// A link as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// Six bytes for Ethernet; empty for links without such addresses.
    pub mac: Vec<u8>,
    pub mtu: u32,
    /// It is switched on.
    pub up: bool,
    /// It is switched on, and packets get through: the other end is, too.
    pub operational: bool,
    /// The bridge that it is a port of.
    pub master: Option<u32>,
    /// "bridge", "veth", "vxlan"; empty for hardware and loopback.
    pub kind: String,
    /// The peer's index in its own namespace, for one end of a veth pair.
    pub peer: Option<u32>,
}

/// A link to be made.
#[derive(Clone, Debug)]
pub struct NewLink<'a> {
    pub name: &'a str,
    /// The kernel's default where 0.
    pub mtu: u32,
    pub mac: Option<[u8; 6]>,
    pub kind: NewKind<'a>,
}

/// What link to make.
#[derive(Clone, Debug)]
pub enum NewKind<'a> {
    /// A switch in the kernel, for the node's Pods.
    Bridge,
    /// A pair; the peer is made directly in `netns` if given, with the same MTU.
    Veth {
        peer: &'a str,
        peer_mac: Option<[u8; 6]>,
        netns: Option<BorrowedFd<'a>>,
    },
    Vxlan {
        vni: u32,
        port: u16,
        local: Option<IpAddr>,
        device: Option<u32>,
    },
}

/// What to change about a link; `None` leaves as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkChange<'a> {
    pub up: Option<bool>,
    /// The index of the bridge that it is to be a port of; 0 takes it out of its bridge.
    pub master: Option<u32>,
    pub mtu: Option<u32>,
    pub name: Option<&'a str>,
    /// For a bridge port: may a packet leave by the port that it came in by? A Pod that reaches itself through
    /// its Service needs it.
    pub hairpin: Option<bool>,
    /// For a bridge port: do multicast frames of other ports leave by it? The bridge's own always do.
    pub multicast: Option<bool>,
}

/// An address of a link, with its prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The link's.
    pub index: u32,
    pub cidr: Cidr,
}

/// A route. Two with the same destination, table and metric are the same to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub destination: Cidr,
    pub gateway: Option<IpAddr>,
    /// The index of the link that packets leave by.
    pub device: Option<u32>,
    /// The address that the node's own packets are sent from, where a program does not choose.
    pub source: Option<IpAddr>,
    /// 254 is the main table.
    pub table: u8,
    /// Who made it: 2 the kernel, 3 boot; a component marks its own to find them again.
    pub protocol: u8,
    /// Of several routes to a destination the lowest counts.
    pub metric: u32,
    /// The gateway is on the device although no address says so.
    pub onlink: bool,
}

impl Route {
    /// The table that packets are routed by where no rule says otherwise.
    pub(crate) const MAIN: u8 = 254;

    /// A route of the main table, marked as an administrator's; the fields say the way.
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

/// A permanent entry of the neighbour table, or (with `bridge`) of a VXLAN's forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The link's.
    pub index: u32,
    pub address: IpAddr,
    pub mac: [u8; 6],
    pub bridge: bool,
}

/// Whether nftables can be changed from here at all.
pub fn has_nft() -> bool {
    nft::program().is_absolute()
}

/// The operations that components need, each one step for the kernel.
pub trait Net: Send + Sync {
    fn link(&self, name: &str) -> Result<Option<Link>, Error>;
    fn links(&self) -> Result<Vec<Link>, Error>;
    /// Fails with [`Error::is_exists`] where the name is taken.
    fn add_link(&self, link: &NewLink<'_>) -> Result<(), Error>;
    fn change_link(&self, index: u32, change: &LinkChange<'_>) -> Result<(), Error>;
    fn delete_link(&self, index: u32) -> Result<(), Error>;
    fn addresses(&self) -> Result<Vec<Address>, Error>;
    /// Adding what is there succeeds.
    fn add_address(&self, index: u32, cidr: Cidr) -> Result<(), Error>;
    fn delete_address(&self, index: u32, cidr: Cidr) -> Result<(), Error>;
    /// The main table's routes of both families.
    fn routes(&self) -> Result<Vec<Route>, Error>;
    /// Replaces a route to the same destination with the same metric.
    fn put_route(&self, route: &Route) -> Result<(), Error>;
    fn delete_route(&self, route: &Route) -> Result<(), Error>;
    fn neighbours(&self) -> Result<Vec<Neighbour>, Error>;
    fn put_neighbour(&self, neighbour: &Neighbour) -> Result<(), Error>;
    fn delete_neighbour(&self, neighbour: &Neighbour) -> Result<(), Error>;
    /// Forgets the tracked flows of an IP protocol for which `is_stale` holds; returns how many.
    fn delete_flows(&self, protocol: u8, is_stale: &dyn Fn(&Flow) -> bool) -> Result<usize, Error>;
    /// The TCP and UDP sockets on which programs listen, in the caller's namespace.
    fn listeners(&self) -> Result<Vec<(Protocol, SocketAddr)>, Error>;
    /// Runs one nftables transaction.
    fn nft(&self, transaction: &str) -> Result<(), Error>;
    fn has_table(&self, family: Family, table: &str) -> Result<bool, Error>;
    /// What a table holds, by name; `None` where it does not exist.
    fn table(&self, family: Family, table: &str) -> Result<Option<Installed>, Error>;
    /// Removes those of iptables' chains (made through nftables) whose name `is_stale`, and the rules that lead to them;
    /// returns how many.
    fn remove_iptables_chains(&self, is_stale: &dyn Fn(&str) -> bool) -> Result<usize, Error>;
}

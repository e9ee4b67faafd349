//! The names of Leases.

use std::net::IpAddr;

/// The label of all Leases of load balancer addresses.
pub(super) const LABEL: (&str, &str) = ("app.kubernetes.io/name", "windlass-load-balancer");
/// The prefixes of the names of Leases.
const NODE: &str = "node-";
const ADDRESS: &str = "address-";

/// The node or address that a Lease's name contains.
#[derive(Debug, PartialEq)]
pub(super) enum Subject {
    Node(String),
    Address(IpAddr),
}

impl Subject {
    /// Parses a Lease's name; `None` for a Lease of another program.
    pub(super) fn parse(name: &str) -> Option<Self> {
        if let Some(node) = name.strip_prefix(NODE) {
            return Some(Self::Node(node.to_owned()));
        }
        let text = name.strip_prefix(ADDRESS)?;
        let address: Option<IpAddr> = text.parse().ok();
        Some(Self::Address(address.or_else(|| text.replace('-', ":").parse().ok())?))
    }

    /// Returns the Lease's name. Names have no colons, so an IPv6 address is written in full with dashes.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Node(node) => format!("{NODE}{node}"),
            Self::Address(IpAddr::V4(v4)) => format!("{ADDRESS}{v4}"),
            Self::Address(IpAddr::V6(v6)) => {
                let groups = v6.segments().map(|group| format!("{group:x}"));
                format!("{ADDRESS}{}", groups.join("-"))
            }
        }
    }
}

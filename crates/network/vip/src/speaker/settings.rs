//! The settings of a node's announcements.

use std::{net::IpAddr, time::Duration};

use net_core::Cidr;

/// The settings of a node's announcements.
#[derive(Clone, Debug)]
pub struct SpeakerSettings {
    /// The name of this node.
    pub node: String,
    /// The ranges of the addresses. Other addresses in a Service's status are not announced.
    pub ranges: Vec<Cidr>,
    /// Addresses besides those of Nodes that this node neither announces nor removes, such as the API's.
    pub reserved: Vec<IpAddr>,
    /// The namespace of the Leases.
    pub namespace: String,
    /// The address whose interface announces addresses that are in none of this node's networks. `None` announces no
    /// such address.
    pub beside: Option<IpAddr>,
}

/// The interval of the checks, which bounds the delay of every reaction to time.
pub(super) const TICK: Duration = Duration::from_millis(100);

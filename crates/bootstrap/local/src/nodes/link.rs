//! The link between a cluster's nodes: the link of `instances` with the cluster's name and settings.

use std::net::IpAddr;

use instances::link::{self, Link};
pub(crate) use instances::link::{choose_subnet, known_ranges, next_address};

use crate::{cluster::Cluster, error::Error};

fn link(cluster: &Cluster) -> Result<Link, Error> {
    Ok(Link {
        bridge: cluster.bridge().replacen("wl-", "wn-", 1),
        subnet: cluster.link_subnet()?,
        first: Some(cluster.settings.address),
    })
}

/// Connects a node whose namespaces the process `holder` has. Parts that exist are kept.
pub(crate) fn connect(cluster: &Cluster, node: &Cluster, holder: i32) -> Result<(), Error> {
    Ok(link::connect(&link(cluster)?, node.settings.address, node.is_cut(), holder)?)
}

/// Takes a node's cable down (`cut`) or up again.
pub(crate) fn set_cut(cluster: &Cluster, node: &Cluster, cut: bool) -> Result<(), Error> {
    Ok(link::set_cut(&link(cluster)?, node.settings.address, cut)?)
}

/// Removes the cables, the bridge and its rules.
pub(crate) fn remove(cluster: &Cluster, nodes: &[Cluster]) -> Result<(), Error> {
    let addresses: Vec<IpAddr> = nodes.iter().map(|node| node.settings.address).collect();
    Ok(link::remove(&link(cluster)?, addresses)?)
}

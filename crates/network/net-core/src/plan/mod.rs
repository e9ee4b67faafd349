//! Services and endpoints → the nftables table of one address family, or its iptables chains ([`iptables`]).
//!
//! The table has upstream's name and structure, so that either proxy can take over from the other. Maps lead from
//! (address, protocol, port) and (protocol, port) to the chain of a Service port. That chain chooses an endpoint's
//! chain at random or by client affinity. The endpoint's chain rewrites the destination. Only the first packet of a
//! connection passes these chains.

mod base;
mod config;
pub mod iptables;
mod port;
mod service;

#[cfg(test)]
mod iptables_tests;
#[cfg(test)]
mod tests;

use crate::{Family, api::Service, endpoints::Slices, nft::Table};

pub use config::{Config, LocalTraffic, NodePorts, PublishedPort, TABLE};

/// Returns a family's sealed table. Of Services with the same port, the first by namespace and name wins.
pub fn plan<'a>(
    family: Family,
    config: &'a Config,
    services: impl IntoIterator<Item = &'a Service>,
    slices: &Slices<'a>,
) -> Table {
    let mut table = base::table(family, config);
    for port in port::all(family, config, services, slices) {
        service::add(&mut table, &port);
    }
    table.seal_for(&config.cluster);
    table
}

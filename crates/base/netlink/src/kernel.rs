//! The implementation of [`Net`] for the kernel.

use std::net::SocketAddr;

use net_core::{Cidr, Family, api::Protocol, conntrack::Flow, nft::InstalledTable};
use rustix::net::netlink;

use crate::{
    conntrack,
    error::Error,
    iptables, link, listeners,
    net::{Address, Link, LinkChange, Neighbour, Net, NewLink, RateLimit, Route},
    nft, route,
    socket::Socket,
    traffic, xtables,
};

/// The kernel's network configuration in one namespace.
pub struct Kernel {
    route: Socket,
    netfilter: Socket,
}

impl Kernel {
    /// Opens the configuration of the calling thread's namespace.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { route: Socket::open(None)?, netfilter: Socket::open(Some(netlink::NETFILTER))? })
    }
}

impl Net for Kernel {
    fn link(&self, name: &str) -> Result<Option<Link>, Error> {
        link::get(&self.route, name)
    }

    fn links(&self) -> Result<Vec<Link>, Error> {
        link::list(&self.route)
    }

    fn add_link(&self, link: &NewLink<'_>) -> Result<(), Error> {
        link::add(&self.route, link)
    }

    fn change_link(&self, index: u32, change: &LinkChange<'_>) -> Result<(), Error> {
        link::set(&self.route, index, change)
    }

    fn delete_link(&self, index: u32) -> Result<(), Error> {
        link::delete(&self.route, index)
    }

    fn limit_sent(&self, index: u32, limit: &RateLimit) -> Result<(), Error> {
        traffic::limit(&self.route, index, limit)
    }

    fn redirect_received(&self, index: u32, to: u32) -> Result<(), Error> {
        match traffic::redirect(&self.route, index, to) {
            Err(error) if error.is_exists() => Ok(()),
            other => other,
        }
    }

    fn addresses(&self) -> Result<Vec<Address>, Error> {
        route::addresses(&self.route)
    }

    fn add_address(&self, index: u32, cidr: Cidr) -> Result<(), Error> {
        route::add_address(&self.route, index, cidr)
    }

    fn add_service_address(&self, index: u32, cidr: Cidr) -> Result<(), Error> {
        route::add_service_address(&self.route, index, cidr)
    }

    fn delete_address(&self, index: u32, cidr: Cidr) -> Result<(), Error> {
        route::delete_address(&self.route, index, cidr)
    }

    fn routes(&self) -> Result<Vec<Route>, Error> {
        route::routes(&self.route)
    }

    fn put_route(&self, route: &Route) -> Result<(), Error> {
        route::put_route(&self.route, route)
    }

    fn delete_route(&self, route: &Route) -> Result<(), Error> {
        route::delete_route(&self.route, route)
    }

    fn neighbours(&self) -> Result<Vec<Neighbour>, Error> {
        route::neighbours(&self.route)
    }

    fn put_neighbour(&self, neighbour: &Neighbour) -> Result<(), Error> {
        route::put_neighbour(&self.route, neighbour)
    }

    fn delete_neighbour(&self, neighbour: &Neighbour) -> Result<(), Error> {
        route::delete_neighbour(&self.route, neighbour)
    }

    fn delete_flows(&self, protocol: u8, is_stale: &dyn Fn(&Flow) -> bool) -> Result<usize, Error> {
        conntrack::delete(&self.netfilter, protocol, is_stale)
    }

    fn listeners(&self) -> Result<Vec<(Protocol, SocketAddr)>, Error> {
        listeners::list()
    }

    fn nft(&self, transaction: &str) -> Result<(), Error> {
        nft::run(transaction).map_err(Error::Nft)
    }

    fn has_table(&self, family: Family, table: &str) -> Result<bool, Error> {
        nft::has_table(&self.netfilter, family, table)
    }

    fn table(&self, family: Family, table: &str) -> Result<Option<InstalledTable>, Error> {
        if !self.has_table(family, table)? {
            return Ok(None);
        }
        Ok(Some(nft::list(family, table)?))
    }

    fn remove_iptables_chains(&self, is_stale: &dyn Fn(&str) -> bool) -> Result<usize, Error> {
        let (mut count, mut transaction) = (0, String::new());
        for family in Family::ALL {
            for table in iptables::TABLES {
                if self.has_table(family, table)? {
                    let (chains, commands) = iptables::removal(family, table, is_stale)?;
                    count += chains;
                    transaction.push_str(&commands);
                }
            }
        }
        if count > 0 {
            self.nft(&transaction)?;
        }
        Ok(count + xtables::remove_legacy(is_stale)?)
    }
}

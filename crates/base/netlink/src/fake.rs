//! A fake network for tests.

use std::{collections::BTreeMap, net::SocketAddr};

use net_core::{Cidr, Family, api::Protocol, conntrack::Flow, nft::InstalledTable};
use parking_lot::Mutex;

use crate::{
    error::{Error, NftError},
    net::{Address, Link, LinkChange, Neighbour, Net, NewKind, NewLink, RateLimit, Route},
};

/// An in-memory network that records every change, for tests of components.
#[derive(Default)]
pub struct Fake(Mutex<State>);

#[derive(Default)]
struct State {
    log: Vec<String>,
    next_index: u32,
    links: Vec<Link>,
    addresses: Vec<Address>,
    routes: Vec<Route>,
    neighbours: Vec<Neighbour>,
    flows: Vec<(u8, Flow)>,
    listeners: Vec<(Protocol, SocketAddr)>,
    tables: BTreeMap<(Family, String), InstalledTable>,
    nft_failures: u32,
    nft_panics: u32,
    iptables: Vec<String>,
}

impl Fake {
    /// Creates an empty namespace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the changes since the last call: a line each or, for nftables, a transaction each.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    /// Adds a conntrack entry.
    pub fn add_flow(&self, protocol: u8, flow: Flow) {
        self.state().flows.push((protocol, flow));
    }

    /// Sets the listening sockets.
    pub fn set_listeners(&self, listeners: &[(Protocol, SocketAddr)]) {
        self.state().listeners = listeners.to_vec();
    }

    /// Sets the result of [`Net::table`], because the fake does not interpret transactions.
    pub fn put_table(&self, family: Family, name: &str, installed: Option<InstalledTable>) {
        let key = (family, name.to_owned());
        match installed {
            Some(installed) => drop(self.state().tables.insert(key, installed)),
            None => drop(self.state().tables.remove(&key)),
        }
    }

    /// Sets the existing iptables chains.
    pub fn set_iptables(&self, chains: &[&str]) {
        self.state().iptables = chains.iter().map(|chain| (*chain).to_owned()).collect();
    }

    /// Returns the existing iptables chains.
    pub fn iptables(&self) -> Vec<String> {
        self.state().iptables.clone()
    }

    /// Makes the next `times` transactions fail.
    pub fn fail_nft(&self, times: u32) {
        self.state().nft_failures = times;
    }

    /// Makes the next `times` transactions panic.
    pub fn panic_nft(&self, times: u32) {
        self.state().nft_panics = times;
    }

    /// Returns the number of transactions that will still panic.
    pub fn nft_panics(&self) -> u32 {
        self.state().nft_panics
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.0.lock()
    }
}

fn refused(
    operation: &'static str,
    subject: &dyn std::fmt::Display,
    errno: rustix::io::Errno,
) -> Error {
    Error::Refused { operation, subject: subject.to_string(), errno: errno.raw_os_error() }
}

impl State {
    fn put_address(&mut self, new: Address) {
        let Address { index, cidr, .. } = new;
        self.log.push(format!("add address {cidr} to {index}"));
        self.addresses.retain(|address| (address.index, address.cidr) != (index, cidr));
        self.addresses.push(new);
    }

    fn push_link(&mut self, name: &str, kind: &str, mtu: u32) -> u32 {
        self.next_index += 1;
        let mac = vec![2, 0, 0, 0, 0, self.next_index as u8];
        let kind = kind.to_owned();
        let index = self.next_index;
        self.links.push(Link {
            index,
            name: name.to_owned(),
            mac,
            mtu,
            up: false,
            operational: false,
            master: None,
            kind,
            peer: None,
        });
        index
    }
}

impl Net for Fake {
    fn link(&self, name: &str) -> Result<Option<Link>, Error> {
        Ok(self.state().links.iter().find(|link| link.name == name).cloned())
    }

    fn links(&self) -> Result<Vec<Link>, Error> {
        Ok(self.state().links.clone())
    }

    fn add_link(&self, link: &NewLink<'_>) -> Result<(), Error> {
        let mut state = self.state();
        if state.links.iter().any(|known| known.name == link.name) {
            return Err(refused("adding link", &link.name, rustix::io::Errno::EXIST));
        }
        state.log.push(format!("add link {}", link.name));
        match &link.kind {
            NewKind::Bridge => drop(state.push_link(link.name, "bridge", link.mtu)),
            NewKind::Ifb => drop(state.push_link(link.name, "ifb", link.mtu)),
            NewKind::Vxlan { .. } => drop(state.push_link(link.name, "vxlan", link.mtu)),
            NewKind::Veth { peer, netns, .. } => {
                state.push_link(link.name, "veth", link.mtu);
                if netns.is_none() {
                    state.push_link(peer, "veth", link.mtu);
                }
            }
        }
        Ok(())
    }

    fn change_link(&self, index: u32, change: &LinkChange<'_>) -> Result<(), Error> {
        let mut state = self.state();
        state.log.push(format!("change link {index} {change:?}"));
        let link = state.links.iter_mut().find(|link| link.index == index);
        let link =
            link.ok_or_else(|| refused("changing link number", &index, rustix::io::Errno::NODEV))?;
        link.up = change.up.unwrap_or(link.up);
        link.operational = link.up;
        link.master = change.master.or(link.master);
        link.mtu = change.mtu.unwrap_or(link.mtu);
        link.name = change.name.unwrap_or(&link.name).to_owned();
        Ok(())
    }

    fn delete_link(&self, index: u32) -> Result<(), Error> {
        let mut state = self.state();
        state.log.push(format!("delete link {index}"));
        let before = state.links.len();
        state.links.retain(|link| link.index != index);
        let found = state.links.len() < before;
        if found {
            Ok(())
        } else {
            Err(refused("deleting link number", &index, rustix::io::Errno::NODEV))
        }
    }

    fn limit_sent(&self, index: u32, limit: &RateLimit) -> Result<(), Error> {
        self.state().log.push(format!("limit what {index} sends {limit:?}"));
        Ok(())
    }

    fn redirect_received(&self, index: u32, to: u32) -> Result<(), Error> {
        self.state().log.push(format!("redirect what {index} receives to {to}"));
        Ok(())
    }

    fn addresses(&self) -> Result<Vec<Address>, Error> {
        Ok(self.state().addresses.clone())
    }

    fn add_address(&self, index: u32, cidr: Cidr) -> Result<(), Error> {
        self.state().put_address(Address { index, cidr, deprecated: false });
        Ok(())
    }

    fn add_service_address(&self, index: u32, cidr: Cidr) -> Result<(), Error> {
        self.state().put_address(Address { index, cidr, deprecated: true });
        Ok(())
    }

    fn delete_address(&self, index: u32, cidr: Cidr) -> Result<(), Error> {
        let mut state = self.state();
        state.log.push(format!("delete address {cidr} from {index}"));
        state.addresses.retain(|address| (address.index, address.cidr) != (index, cidr));
        Ok(())
    }

    fn routes(&self) -> Result<Vec<Route>, Error> {
        Ok(self.state().routes.clone())
    }

    fn put_route(&self, route: &Route) -> Result<(), Error> {
        let mut state = self.state();
        state.log.push(format!("put route {}", route.destination));
        state
            .routes
            .retain(|known| (known.destination, known.metric) != (route.destination, route.metric));
        state.routes.push(route.clone());
        Ok(())
    }

    fn delete_route(&self, route: &Route) -> Result<(), Error> {
        let mut state = self.state();
        state.log.push(format!("delete route {}", route.destination));
        state.routes.retain(|known| known.destination != route.destination);
        Ok(())
    }

    fn neighbours(&self) -> Result<Vec<Neighbour>, Error> {
        Ok(self.state().neighbours.clone())
    }

    fn put_neighbour(&self, neighbour: &Neighbour) -> Result<(), Error> {
        let mut state = self.state();
        state.log.push(format!("put neighbour {}", neighbour.address));
        state.neighbours.push(neighbour.clone());
        Ok(())
    }

    fn delete_neighbour(&self, neighbour: &Neighbour) -> Result<(), Error> {
        let mut state = self.state();
        state.log.push(format!("delete neighbour {}", neighbour.address));
        state.neighbours.retain(|known| known != neighbour);
        Ok(())
    }

    fn delete_flows(&self, protocol: u8, is_stale: &dyn Fn(&Flow) -> bool) -> Result<usize, Error> {
        let mut state = self.state();
        let before = state.flows.len();
        state.flows.retain(|(known, flow)| *known != protocol || !is_stale(flow));
        let deleted = before - state.flows.len();
        if deleted > 0 {
            state.log.push(format!("delete {deleted} flows"));
        }
        Ok(deleted)
    }

    fn listeners(&self) -> Result<Vec<(Protocol, SocketAddr)>, Error> {
        Ok(self.state().listeners.clone())
    }

    fn nft(&self, transaction: &str) -> Result<(), Error> {
        let mut state = self.state();
        if state.nft_panics > 0 {
            state.nft_panics -= 1;
            panic!("made to panic");
        }
        if state.nft_failures > 0 {
            state.nft_failures -= 1;
            let message = "made to fail".to_owned();
            return Err(NftError::Refused { message, line: String::new() }.into());
        }
        state.log.push(transaction.to_owned());
        Ok(())
    }

    fn has_table(&self, family: Family, table: &str) -> Result<bool, Error> {
        Ok(self.state().tables.contains_key(&(family, table.to_owned())))
    }

    fn table(&self, family: Family, table: &str) -> Result<Option<InstalledTable>, Error> {
        Ok(self.state().tables.get(&(family, table.to_owned())).cloned())
    }

    fn remove_iptables_chains(&self, is_stale: &dyn Fn(&str) -> bool) -> Result<usize, Error> {
        let mut state = self.state();
        let before = state.iptables.len();
        state.iptables.retain(|name| !is_stale(name));
        Ok(before - state.iptables.len())
    }
}

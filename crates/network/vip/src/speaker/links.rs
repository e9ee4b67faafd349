//! The addresses on this node's interfaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use net_core::Cidr;
use netlink::{Address, Net};
use tokio::time::Instant;

use super::settings::SpeakerSettings;
use crate::{error::Error, interface::AddressInterface};

/// The pause before the next attempt to add an address.
const RETRY: Duration = Duration::from_secs(1);

/// An address that this node announces.
struct Announced {
    place: AddressInterface,
    sent: u32,
    next: Instant,
}

/// The addresses that this node has, and those that it could not add.
pub(super) struct Links {
    settings: SpeakerSettings,
    net: Arc<dyn Net>,
    announced: BTreeMap<IpAddr, Announced>,
    failed: BTreeMap<IpAddr, Instant>,
    /// `true` once addresses of an earlier run that belong to other nodes are removed.
    cleaned: bool,
}

pub(super) fn is_within(ranges: &[Cidr], address: IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(address))
}

/// Returns the networks of the node's interfaces.
pub(super) fn networks(net: &dyn Net) -> Result<Vec<Cidr>, netlink::Error> {
    let cidrs = net.addresses()?.into_iter().map(|address| address.cidr);
    Ok(cidrs.filter(|cidr| cidr.host_bits() > 0).map(Cidr::network).collect())
}

/// Returns the addresses in the ranges that interfaces have, and that programs do not use as a source. Addresses that
/// an administrator gave to the machine are not among them.
fn left_over(net: &dyn Net, ranges: &[Cidr]) -> Result<Vec<Address>, Error> {
    let mut addresses = net.addresses()?;
    addresses
        .retain(|a| a.deprecated && a.cidr.host_bits() == 0 && is_within(ranges, a.cidr.address));
    Ok(addresses)
}

impl Links {
    pub(super) fn new(settings: SpeakerSettings, net: Arc<dyn Net>) -> Self {
        let (announced, failed) = (BTreeMap::new(), BTreeMap::new());
        Self { settings, net, announced, failed, cleaned: false }
    }

    /// Reports whether [`Links::follow`] has nothing to do now.
    pub(super) fn is_settled(&self, wanted: &BTreeSet<IpAddr>) -> bool {
        let now = Instant::now();
        let is_due = |address: &IpAddr| match self.announced.get(address) {
            Some(announced) => announced.next <= now,
            None => self.failed.get(address).is_none_or(|next| *next <= now),
        };
        self.cleaned
            && !wanted.iter().any(is_due)
            && self.announced.keys().all(|address| wanted.contains(address))
    }

    /// Adds, announces and removes addresses. `reserved` are those of Nodes and of the API.
    pub(super) fn follow(&mut self, wanted: &BTreeSet<IpAddr>, reserved: &BTreeSet<IpAddr>) {
        self.clean(wanted, reserved);
        self.announced.retain(|address, announced| {
            if wanted.contains(address) {
                return true;
            }
            match announced.place.remove() {
                Ok(()) => tracing::info!(%address, "released a load balancer address"),
                Err(error) => {
                    tracing::error!(%error, %address, "cannot remove a load balancer address");
                    return true;
                }
            }
            false
        });
        self.failed.retain(|address, _| wanted.contains(address));
        let now = Instant::now();
        for address in wanted {
            if !self.announced.contains_key(address) {
                if self.failed.get(address).is_some_and(|next| *next > now) {
                    continue;
                }
                if let Err(error) = self.add(*address) {
                    tracing::error!(%error, %address, "cannot add a load balancer address");
                    self.failed.insert(*address, now + RETRY);
                    continue;
                }
            }
            let Some(announced) = self.announced.get_mut(address).filter(|a| a.next <= now) else {
                continue;
            };
            if let Err(error) = announced.place.announce() {
                tracing::warn!(%error, "neighbours will notice the change later");
            }
            announced.next = now + AddressInterface::pause(announced.sent);
            announced.sent += 1;
        }
    }

    fn add(&mut self, address: IpAddr) -> Result<(), Error> {
        let place =
            AddressInterface::find_on_link(self.net.clone(), address, self.settings.beside)?;
        place.add()?;
        tracing::info!(%address, interface = place.interface, "holding a load balancer address");
        self.announced.insert(address, Announced { place, sent: 0, next: Instant::now() });
        self.failed.remove(&address);
        Ok(())
    }

    /// Removes addresses of an earlier run, but for reserved ones and those that this node still announces.
    fn clean(&mut self, wanted: &BTreeSet<IpAddr>, reserved: &BTreeSet<IpAddr>) {
        if self.cleaned {
            return;
        }
        match remove(&*self.net, &self.settings.ranges, &(wanted | reserved)) {
            Ok(()) => self.cleaned = true,
            Err(error) => {
                tracing::error!(%error, "cannot remove load balancer addresses of an earlier run")
            }
        }
    }
}

/// Removes addresses that a killed process left on the interfaces, but for the addresses to `keep`.
pub fn remove(net: &dyn Net, ranges: &[Cidr], keep: &BTreeSet<IpAddr>) -> Result<(), Error> {
    for address in left_over(net, ranges)? {
        if !keep.contains(&address.cidr.address) {
            net.delete_address(address.index, address.cidr)?;
        }
    }
    Ok(())
}

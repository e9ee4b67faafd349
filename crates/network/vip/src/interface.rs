//! The interface of an address that moves between machines.

use std::{net::IpAddr, sync::Arc, time::Duration};

use net_core::Cidr;
use netlink::Net;

use crate::{announcement, error::Error};

/// The number and the interval of the first announcements, and the interval of later ones.
const ANNOUNCE_SOON: (u32, Duration) = (5, Duration::from_secs(1));
const ANNOUNCE_LATER: Duration = Duration::from_secs(30);

/// The interface of an address that moves between machines.
pub struct AddressInterface {
    net: Arc<dyn Net>,
    /// The address.
    pub(crate) address: IpAddr,
    index: u32,
    /// The interface's name.
    pub(crate) interface: String,
}

impl AddressInterface {
    /// Finds the interface by its name, or the one that has the address `beside`.
    pub fn find(
        net: Arc<dyn Net>,
        address: IpAddr,
        interface: Option<&str>,
        beside: Option<IpAddr>,
    ) -> Result<Self, Error> {
        let link = match (interface, beside) {
            (Some(name), _) => {
                net.link(name)?.ok_or_else(|| Error::NoInterface(name.to_owned()))?
            }
            (None, Some(beside)) => {
                let has = |a: &&netlink::Address| a.cidr.address == beside;
                let index = net.addresses()?.iter().find(has).map(|a| a.index);
                let all = net.links()?;
                let link = all.into_iter().find(|l| Some(l.index) == index);
                link.ok_or(Error::Nowhere(beside))?
            }
            (None, None) => return Err(Error::NoPlace),
        };
        Ok(Self { net, address, index: link.index, interface: link.name })
    }

    /// Finds the interface whose network contains the address, or else the one that has the address `beside`.
    pub fn find_on_link(
        net: Arc<dyn Net>,
        address: IpAddr,
        beside: Option<IpAddr>,
    ) -> Result<Self, Error> {
        let addresses = net.addresses()?;
        let is_network = |cidr: Cidr| cidr.host_bits() > 0 && cidr.contains(address);
        let nearest = addresses.iter().filter(|a| is_network(a.cidr)).max_by_key(|a| a.cidr.prefix);
        let Some(index) = nearest.map(|found| found.index) else {
            return Self::find(net, address, None, beside);
        };
        let link = net.links()?.into_iter().find(|link| link.index == index);
        let interface = link.ok_or(Error::NoPlace)?.name;
        Ok(Self { net, address, index, interface })
    }

    fn cidr(&self) -> Cidr {
        Cidr::host(self.address)
    }

    /// Reports whether this machine has the address now, also from an earlier run.
    pub fn is_present(&self) -> Result<bool, Error> {
        let all = self.net.addresses()?;
        Ok(all.iter().any(|a| a.index == self.index && a.cidr == self.cidr()))
    }

    /// Adds the address; an existing one is kept.
    pub fn add(&self) -> Result<(), Error> {
        match self.net.add_service_address(self.index, self.cidr()) {
            Err(error) if !error.is_exists() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Removes the address; a missing one is not an error.
    pub fn remove(&self) -> Result<(), Error> {
        match self.net.delete_address(self.index, self.cidr()) {
            Err(error) if !error.is_missing() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns the pause after the announcement with this number. The first ones follow soon, because one may get lost.
    pub(crate) fn pause(sent: u32) -> Duration {
        if sent < ANNOUNCE_SOON.0 { ANNOUNCE_SOON.1 } else { ANNOUNCE_LATER }
    }

    /// Announces the address to the neighbours.
    pub fn announce(&self) -> Result<(), Error> {
        announcement::send(&self.interface, self.address).map_err(|source| Error::Announce {
            address: self.address,
            interface: self.interface.clone(),
            source,
        })
    }
}

//! The configuration of the DHCP server, and its parsers for the formats of dnsmasq.

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use super::{
    boot::BootFiles,
    error::{ConfigError, MAX_ADDRESSES},
    options::ExtraOption,
};
use crate::labels::parse_mac;

/// A network whose machines the server configures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// The network address.
    pub network: Ipv4Addr,
    /// The prefix length in bits.
    pub prefix: u8,
    /// The first and last address to assign; `None` assigns reservations only.
    pub range: Option<(Ipv4Addr, Ipv4Addr)>,
    /// The routers to announce.
    pub routers: Vec<Ipv4Addr>,
    /// The DNS servers to announce.
    pub dns: Vec<Ipv4Addr>,
}

impl Subnet {
    /// Returns the netmask of the prefix, 0.0.0.0 for /0.
    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0))
    }

    /// Returns `true` if an address belongs to this network, network and broadcast address included.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        address & self.mask() == self.network & self.mask()
    }

    /// Returns the broadcast address of the network.
    pub fn broadcast(&self) -> Ipv4Addr {
        self.network | !self.mask()
    }

    pub(super) fn in_range(&self, address: Ipv4Addr) -> bool {
        self.range.is_some_and(|(first, last)| (first..=last).contains(&address))
    }

    pub(super) fn is_host(&self, address: Ipv4Addr) -> bool {
        self.contains(address)
            && address != self.network & self.mask()
            && address != self.broadcast()
    }
}

/// A fixed address and an optional name for one hardware address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The reserved address.
    pub address: Ipv4Addr,
    /// The host name to send to the machine.
    pub hostname: Option<String>,
}

/// The configuration of the DHCP server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The networks to serve.
    pub subnets: Vec<Subnet>,
    /// The reservations by hardware address, lower case with colons.
    pub reservations: BTreeMap<String, Reservation>,
    /// The duration of a lease.
    pub lease: Duration,
    /// The domain name that option 15 announces.
    pub domain: Option<String>,
    /// `true` for proxyDHCP: send boot files only, because another server assigns addresses.
    pub proxy: bool,
    /// `true` to probe whether an address is in use before offering it.
    pub probe: bool,
    /// The boot files by firmware.
    pub boot: BootFiles,
    /// Options that are added to replies or replace those of the server.
    pub options: Vec<ExtraOption>,
}

/// Parses a duration in dnsmasq's format: seconds, `45m`, `12h`, `2d`, `infinite`.
pub(crate) fn parse_lease(text: &str) -> Option<Duration> {
    if text == "infinite" {
        return Some(Duration::from_secs(u32::MAX.into()));
    }
    let (digits, unit) = match text.as_bytes().last()? {
        b's' => (&text[..text.len() - 1], 1),
        b'm' => (&text[..text.len() - 1], 60),
        b'h' => (&text[..text.len() - 1], 3600),
        b'd' => (&text[..text.len() - 1], 86_400),
        _ => (text, 1),
    };
    let seconds = digits.parse::<u32>().ok()?.checked_mul(unit)?;
    // As in dnsmasq, a lease lasts at least two minutes, which limits the rate of renewals.
    Some(Duration::from_secs(seconds.max(120).into()))
}

/// Parses a range in the format of dnsmasq's `--dhcp-range`, and its lease time.
pub(crate) fn parse_range(text: &str) -> Result<(Subnet, Option<Duration>), ConfigError> {
    let invalid = || ConfigError::Range { text: text.to_owned() };
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let (first, rest) = parts.split_first().ok_or_else(invalid)?;
    let first: Ipv4Addr = first.parse().map_err(|_| invalid())?;
    let (last, rest) = rest.split_first().ok_or_else(invalid)?;
    let last: Ipv4Addr = last.parse().map_err(|_| invalid())?;
    let (mut prefix, mut lease) = (24, None);
    for part in rest {
        match (part.parse::<Ipv4Addr>(), parse_lease(part)) {
            (Ok(mask), _) => {
                let bits = u32::from(mask);
                if bits.leading_ones() + bits.trailing_zeros() != 32 {
                    return Err(invalid());
                }
                prefix = u8::try_from(bits.leading_ones()).unwrap_or(32);
            }
            (_, Some(duration)) => lease = Some(duration),
            _ => return Err(invalid()),
        }
    }
    let range = Some((first, last));
    let subnet = Subnet { network: first, prefix, range, routers: vec![], dns: vec![] };
    let network = first & subnet.mask();
    if last < first || !subnet.contains(last) {
        return Err(ConfigError::Span { first, last, prefix });
    }
    if u32::from(last) - u32::from(first) >= MAX_ADDRESSES {
        return Err(ConfigError::TooLarge { first, last });
    }
    Ok((Subnet { network, ..subnet }, lease))
}

/// Parses a host in the format of dnsmasq's `--dhcp-host`.
pub(crate) fn parse_host(text: &str) -> Result<(String, Reservation), ConfigError> {
    let invalid = || ConfigError::Host { text: text.to_owned() };
    let mut parts = text.split(',').map(str::trim);
    let mac = parts.next().and_then(parse_mac).ok_or_else(invalid)?;
    let address = parts.next().and_then(|part| part.parse().ok()).ok_or_else(invalid)?;
    let hostname = parts.next().filter(|name| !name.is_empty()).map(str::to_owned);
    if parts.next().is_some() {
        return Err(invalid());
    }
    Ok((mac, Reservation { address, hostname }))
}

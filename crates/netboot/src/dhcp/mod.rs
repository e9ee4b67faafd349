//! DHCP (RFC 2131) with what network boot needs of it; or proxyDHCP beside another server.
//!
//! [`Machine`] decides and is pure; [`server`] holds the sockets.

mod boot;
mod leases;
mod machine;
mod options;
mod probe;
pub mod server;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

pub use boot::{BootFiles, Firmware};
pub use leases::{Lease, Leases, State};
pub use machine::{Action, Arrival, Machine};
pub use options::{Extra, parse_option};

/// Addresses given to a network at most: it bounds the table.
pub const MAX_ADDRESSES: u32 = 1 << 16;

/// A range of addresses for the machines of one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    pub network: Ipv4Addr,
    pub prefix: u8,
    /// First and last address to give; both `None` for reservations only.
    pub range: Option<(Ipv4Addr, Ipv4Addr)>,
    pub routers: Vec<Ipv4Addr>,
    pub dns: Vec<Ipv4Addr>,
}

impl Subnet {
    /// The netmask of the prefix, 0.0.0.0 for /0.
    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0))
    }

    /// Whether an address is of this network, its own and the broadcast address included.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        address & self.mask() == self.network & self.mask()
    }

    /// Where what is meant for the whole network is sent to.
    pub fn broadcast(&self) -> Ipv4Addr {
        self.network | !self.mask()
    }

    fn in_range(&self, address: Ipv4Addr) -> bool {
        self.range.is_some_and(|(first, last)| (first..=last).contains(&address))
    }

    fn is_host(&self, address: Ipv4Addr) -> bool {
        self.contains(address)
            && address != self.network & self.mask()
            && address != self.broadcast()
    }
}

/// An address, and perhaps a name, for one hardware address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub address: Ipv4Addr,
    pub hostname: Option<String>,
}

/// What the server gives, and to whom.
#[derive(Clone, Debug)]
pub struct Config {
    pub subnets: Vec<Subnet>,
    /// By hardware address, lower case with colons.
    pub reservations: BTreeMap<String, Reservation>,
    /// How long an address is given for.
    pub lease: Duration,
    /// The domain of machines' names, as option 15 tells it.
    pub domain: Option<String>,
    /// Only boot files: another server gives addresses.
    pub proxy: bool,
    /// Ask whether an address is taken before it is offered.
    pub probe: bool,
    pub boot: BootFiles,
    /// Beside all that the server itself has to say, or in its place.
    pub options: Vec<Extra>,
}

/// What is wrong with a flag of DHCP's.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{text:?} is no DHCP range; write FIRST,LAST[,NETMASK[,LEASE]] or NETWORK,proxy")]
    Range { text: String },
    #[error("{text:?} is no DHCP host; write MAC,ADDRESS[,NAME]")]
    Host { text: String },
    #[error("the DHCP option {text:?}: {reason}")]
    Option { text: String, reason: String },
    #[error("the range {first} to {last} is not within one network of /{prefix}")]
    Span { first: Ipv4Addr, last: Ipv4Addr, prefix: u8 },
    #[error("the range {first} to {last} holds more than {MAX_ADDRESSES} addresses")]
    TooLarge { first: Ipv4Addr, last: Ipv4Addr },
}

/// A duration as dnsmasq writes it: seconds, `45m`, `12h`, `2d`, `infinite`.
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
    // dnsmasq gives no shorter lease than two minutes, so that renewals do not become a flood.
    Some(Duration::from_secs(seconds.max(120).into()))
}

/// A range as dnsmasq's `--dhcp-range` has it, and its lease time.
pub(crate) fn parse_range(text: &str) -> Result<(Subnet, Option<Duration>), ConfigError> {
    let wrong = || ConfigError::Range { text: text.to_owned() };
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let (first, rest) = parts.split_first().ok_or_else(wrong)?;
    let first: Ipv4Addr = first.parse().map_err(|_| wrong())?;
    let (last, rest) = rest.split_first().ok_or_else(wrong)?;
    let last: Ipv4Addr = last.parse().map_err(|_| wrong())?;
    let (mut prefix, mut lease) = (24, None);
    for part in rest {
        match (part.parse::<Ipv4Addr>(), parse_lease(part)) {
            (Ok(mask), _) => {
                let bits = u32::from(mask);
                if bits.leading_ones() + bits.trailing_zeros() != 32 {
                    return Err(wrong());
                }
                prefix = u8::try_from(bits.leading_ones()).unwrap_or(32);
            }
            (_, Some(duration)) => lease = Some(duration),
            _ => return Err(wrong()),
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

/// A host as dnsmasq's `--dhcp-host` has it.
pub(crate) fn parse_host(text: &str) -> Result<(String, Reservation), ConfigError> {
    let wrong = || ConfigError::Host { text: text.to_owned() };
    let mut parts = text.split(',').map(str::trim);
    let mac = parts.next().and_then(crate::matchbox::parse_mac).ok_or_else(wrong)?;
    let address = parts.next().and_then(|part| part.parse().ok()).ok_or_else(wrong)?;
    let hostname = parts.next().filter(|name| !name.is_empty()).map(str::to_owned);
    if parts.next().is_some() {
        return Err(wrong());
    }
    Ok((mac, Reservation { address, hostname }))
}

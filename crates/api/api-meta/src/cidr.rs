//! CIDRs, as in `podCIDR`, `ipBlock` and kubeadm's subnets.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// The address families. Every table, route and allocation belongs to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Returns the family of an address. An IPv4-mapped IPv6 address belongs to IPv6.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Returns the family's name in nftables, for tables and matches.
    pub fn nft(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    /// Returns the number of bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

/// An address with a prefix length. The address keeps its host bits, so that it can also name an
/// interface's address; [`Cidr::network`] clears them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    /// The address, including its host bits.
    pub address: IpAddr,
    /// The prefix length, in bits.
    pub prefix: u8,
}

/// The error for a string that is not a CIDR.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not a CIDR ({reason}); write it as 10.0.0.0/8 or fd00::/64")]
pub struct CidrError {
    text: String,
    reason: &'static str,
}

impl Cidr {
    /// Creates a CIDR from any address in it. Returns `None` if the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        (prefix <= Family::of(address).bits()).then_some(Self { address, prefix })
    }

    /// Returns the network that contains only `address`.
    pub fn host(address: IpAddr) -> Self {
        Self { address, prefix: Family::of(address).bits() }
    }

    /// Returns the address family.
    pub fn family(self) -> Family {
        Family::of(self.address)
    }

    /// Returns the network: the CIDR without host bits.
    pub fn network(self) -> Self {
        let low = number(self.address) & !self.host_mask();
        Self { address: address(self.family(), low), prefix: self.prefix }
    }

    /// Returns `true` if the network contains the address. An address of the other family is never contained.
    pub fn contains(self, other: IpAddr) -> bool {
        self.family() == Family::of(other)
            && number(self.address) & !self.host_mask() == number(other) & !self.host_mask()
    }

    /// Returns the last address of the network, which is the broadcast address in IPv4.
    pub fn last(self) -> IpAddr {
        address(self.family(), number(self.address) | self.host_mask())
    }

    /// Returns the network's address number `n`, or `None` if the network is smaller.
    pub fn nth(self, n: u128) -> Option<IpAddr> {
        (n <= self.host_mask())
            .then(|| address(self.family(), (number(self.address) & !self.host_mask()) + n))
    }

    /// Returns the number of host bits.
    pub fn host_bits(self) -> u8 {
        self.family().bits() - self.prefix
    }

    /// Returns `true` if the network contains all of `other`.
    pub fn covers(self, other: Cidr) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }

    fn host_mask(self) -> u128 {
        1u128.checked_shl(self.host_bits().into()).map_or(u128::MAX, |bit| bit - 1)
    }
}

/// Converts an address to a number, for arithmetic on ranges; [`address`] is the inverse.
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// Converts a number from [`number`] back to an address.
pub fn address(family: Family, number: u128) -> IpAddr {
    match family {
        // Numbers come from addresses of the same family, so the upper bits are clear.
        Family::V4 => Ipv4Addr::from(number as u32).into(),
        Family::V6 => Ipv6Addr::from(number).into(),
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let error = |reason| CidrError { text: text.to_owned(), reason };
        let (address, prefix) = text.split_once('/').ok_or(error("it has no prefix length"))?;
        let address = address.parse().map_err(|_| error("its address cannot be parsed"))?;
        // Rust parses numbers with a sign, which a prefix length must not have.
        let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = prefix.parse().ok().filter(|_| digits);
        let prefix = prefix.ok_or(error("its prefix length is not a number"))?;
        Cidr::new(address, prefix).ok_or(error("its prefix is longer than the address"))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl<'de> serde::Deserialize<'de> for Cidr {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl serde::Serialize for Cidr {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_bounds_of_cidr() {
        for (text, network, last, inside, outside) in [
            ("10.1.2.3/24", "10.1.2.0/24", "10.1.2.255", "10.1.2.9", "10.1.3.0"),
            ("10.1.2.3/32", "10.1.2.3/32", "10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("0.0.0.0/0", "0.0.0.0/0", "255.255.255.255", "8.8.8.8", "::1"),
            ("fd00::5/64", "fd00::/64", "fd00::ffff:ffff:ffff:ffff", "fd00::9", "fd01::"),
            ("::/0", "::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1", "1.2.3.4"),
        ] {
            let cidr: Cidr = text.parse().unwrap();
            assert_eq!(cidr.network().to_string(), network);
            assert_eq!(cidr.last().to_string(), last);
            assert!(cidr.contains(inside.parse().unwrap()), "{text} holds {inside}");
            assert!(!cidr.contains(outside.parse().unwrap()), "{text} lacks {outside}");
        }
    }

    #[test]
    fn covers_smaller_cidrs() {
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        let range = cidr("10.96.0.0/12");
        assert!(range.covers(cidr("10.97.1.1/32")) && range.covers(range));
        for other in ["10.112.0.0/32", "10.0.0.0/8", "a60::/128"] {
            assert!(!range.covers(cidr(other)), "{other}");
        }
    }

    #[test]
    fn counts_addresses_from_network_address() {
        for (text, n, wanted) in [
            ("10.96.5.7/16", 1, Some("10.96.0.1")),
            ("fd00:1::/108", 10, Some("fd00:1::a")),
            ("10.0.0.0/31", 2, None),
            ("255.255.255.255/32", 0, Some("255.255.255.255")),
            ("::/0", u128::MAX, Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")),
        ] {
            let nth = text.parse::<Cidr>().unwrap().nth(n);
            assert_eq!(nth, wanted.map(|w| w.parse().unwrap()), "{text} {n}");
        }
    }

    #[test]
    fn explains_invalid_cidr() {
        for (text, reason) in [
            ("10.0.0.0", "no prefix"),
            ("10.0.0.0/33", "longer"),
            ("fd00::/129", "longer"),
            ("x/8", "address"),
            ("10.0.0/8", "address"),
            ("/8", "address"),
            ("10.0.0.0/", "not a number"),
            ("10.0.0.0/-1", "not a number"),
            ("10.0.0.0/+8", "not a number"),
            ("10.0.0.0/256", "not a number"),
        ] {
            let error = text.parse::<Cidr>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}

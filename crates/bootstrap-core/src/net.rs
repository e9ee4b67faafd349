//! Addresses: what kubeadm derives from subnets and endpoints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address range. The address may have host bits, as `10.96.5.0/12` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub address: IpAddr,
    pub prefix: u8,
}

impl Cidr {
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let canonical =
            !prefix.is_empty() && prefix.len() <= 3 && prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix: u8 = prefix.parse().ok().filter(|_| canonical)?;
        (prefix <= Self::width(address)).then_some(Self { address, prefix })
    }

    /// A comma-separated list of one range or, for dual stack, two.
    pub fn parse_list(text: &str) -> Option<Vec<Self>> {
        text.split(',').map(Self::parse).collect()
    }

    fn width(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    /// The number of host bits.
    pub fn host_bits(self) -> u8 {
        Self::width(self.address) - self.prefix
    }

    /// The `n`th address of the range, the network's own being number 0.
    pub fn nth(self, n: u128) -> Option<IpAddr> {
        let bits = self.host_bits();
        let mask = if bits >= 128 { 0 } else { u128::MAX << bits };
        if bits < 128 && n >> bits != 0 {
            return None;
        }
        match self.address {
            IpAddr::V4(ip) => {
                let base = u128::from(u32::from(ip)) & mask;
                u32::try_from(base + n).ok().map(|ip| Ipv4Addr::from(ip).into())
            }
            IpAddr::V6(ip) => {
                (u128::from(ip) & mask).checked_add(n).map(|ip| Ipv6Addr::from(ip).into())
            }
        }
    }

    pub fn contains(self, ip: IpAddr) -> bool {
        let bits = self.host_bits();
        let masked = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u128::from(u32::from(ip)),
            IpAddr::V6(ip) => u128::from(ip),
        };
        self.address.is_ipv4() == ip.is_ipv4()
            && (bits >= 128 || masked(self.address) >> bits == masked(ip) >> bits)
    }
}

/// The `n`th address of the first range of a subnet list.
pub fn nth_address(subnets: &str, n: u128) -> Option<IpAddr> {
    Cidr::parse(subnets.split(',').next()?)?.nth(n)
}

/// `host:port`, IPv6 addresses in brackets.
pub fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Takes `host`, `host:port`, `[v6]:port` or a bare IPv6 address apart.
pub fn split_host_port(text: &str) -> Option<(String, Option<u16>)> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some((text.to_owned(), None));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => Some(port.parse::<u16>().ok().filter(|p| *p > 0)?),
        None => None,
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_counted_from_the_network() {
        let cases = [
            ("10.96.0.0/12", 1, Some("10.96.0.1")),
            ("10.96.0.0/16", 10, Some("10.96.0.10")),
            ("10.96.5.7/16", 1, Some("10.96.0.1")),
            ("fd00:1::/108", 10, Some("fd00:1::a")),
            ("10.0.0.0/31", 2, None),
            ("10.0.0.0/31,fd00::/64", 1, Some("10.0.0.1")),
            ("255.255.255.255/32", 0, Some("255.255.255.255")),
            ("::/0", 1, Some("::1")),
            ("nonsense", 1, None),
        ];
        for (subnet, n, wanted) in cases {
            assert_eq!(nth_address(subnet, n), wanted.map(|w| w.parse().unwrap()), "{subnet} {n}");
        }
    }

    #[test]
    fn endpoints_come_apart() {
        let cases = [
            ("10.0.0.1", Some(("10.0.0.1", None))),
            ("api.example:6443", Some(("api.example", Some(6443)))),
            ("[fd00::1]:6443", Some(("fd00::1", Some(6443)))),
            ("[fd00::1]", Some(("fd00::1", None))),
            ("fd00::1", Some(("fd00::1", None))),
            ("api.example:0", None),
            ("api.example:66000", None),
            (":6443", None),
            ("[nope]:1", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(split_host_port(text), wanted.map(|(h, p)| (h.to_owned(), p)), "{text}");
        }
    }

    #[test]
    fn ranges_are_strict() {
        for refused in [
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "fd00::/129",
            "10.0.0/8",
            "/8",
        ] {
            assert_eq!(Cidr::parse(refused), None, "{refused}");
        }
        assert!(Cidr::parse("10.0.0.0/8").unwrap().contains("10.255.0.1".parse().unwrap()));
        assert!(!Cidr::parse("10.0.0.0/8").unwrap().contains("11.0.0.1".parse().unwrap()));
        assert!(!Cidr::parse("::/0").unwrap().contains("11.0.0.1".parse().unwrap()));
    }
}

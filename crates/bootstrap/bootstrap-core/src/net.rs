//! Addresses that kubeadm derives from subnets and endpoints.

use std::net::{IpAddr, Ipv6Addr};

pub use api_meta::Cidr;

/// Parses a comma-separated list of ranges: one, or two for dual stack.
pub(crate) fn parse_list(text: &str) -> Option<Vec<Cidr>> {
    text.split(',').map(|range| range.parse().ok()).collect()
}

/// Returns the `n`th address of the first range in a list.
pub fn nth_address(subnets: &str, n: u128) -> Option<IpAddr> {
    subnets.split(',').next()?.parse::<Cidr>().ok()?.nth(n)
}

/// Returns `true` if an address may be advertised. Like Go's `IP.IsGlobalUnicast`, private addresses are global.
pub fn is_global_unicast(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_link_local || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// Formats `host:port`, with IPv6 addresses in brackets.
pub fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Splits `host`, `host:port`, `[v6]:port` or a bare IPv6 address.
pub(crate) fn split_host_port(text: &str) -> Option<(String, Option<u16>)> {
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
    fn counts_addresses_from_network() {
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
    fn splits_host_and_port() {
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
}

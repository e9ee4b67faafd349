//! Addresses: what kubeadm derives from subnets and endpoints.

use std::net::{IpAddr, Ipv6Addr};

pub use api_meta::Cidr;

/// A comma-separated list of one range or, for dual stack, two.
pub(crate) fn parse_list(text: &str) -> Option<Vec<Cidr>> {
    text.split(',').map(|range| range.parse().ok()).collect()
}

/// The `n`th address of the first range of a subnet list.
pub fn nth_address(subnets: &str, n: u128) -> Option<IpAddr> {
    subnets.split(',').next()?.parse::<Cidr>().ok()?.nth(n)
}

/// Reports whether an address may be advertised, as Go's `IP.IsGlobalUnicast` does: private ones are global here.
pub fn is_global_unicast(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_link_local || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// `host:port`, IPv6 addresses in brackets.
pub fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Takes `host`, `host:port`, `[v6]:port` or a bare IPv6 address apart.
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
}

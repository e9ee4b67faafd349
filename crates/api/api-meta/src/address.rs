//! Addresses that are only valid on one machine or one link.
//!
//! Validation, the API server's proxies and the service proxy share this classification. An address that one of them
//! rejects can therefore not reach the kernel through another.

use std::net::IpAddr;

/// A kind of address that traffic must not be redirected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Special {
    Unspecified,
    Loopback,
    LinkLocal,
    LinkLocalMulticast,
    /// Any other multicast address, and the IPv4 broadcast address.
    Multicast,
}

/// Returns the kind of a special address, or `None` for an address that routers forward to one host (`IsGlobalUnicast`
/// in Go). An IPv4-mapped IPv6 address (`::ffff:127.0.0.1`) is classified as the IPv4 address, because the kernel
/// connects to that.
pub fn special(address: IpAddr) -> Option<Special> {
    let address = address.to_canonical();
    let (link_local, link_multicast, broadcast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0], v4.is_broadcast()),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02, false),
    };
    Some(match address {
        _ if address.is_unspecified() => Special::Unspecified,
        _ if address.is_loopback() => Special::Loopback,
        _ if link_local => Special::LinkLocal,
        _ if link_multicast => Special::LinkLocalMulticast,
        _ if address.is_multicast() || broadcast => Special::Multicast,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_addresses_in_both_notations() {
        for (text, expected) in [
            ("0.0.0.0", Some(Special::Unspecified)),
            ("::", Some(Special::Unspecified)),
            ("::ffff:0.0.0.0", Some(Special::Unspecified)),
            ("127.255.0.1", Some(Special::Loopback)),
            ("::1", Some(Special::Loopback)),
            ("::ffff:127.0.0.1", Some(Special::Loopback)),
            ("::ffff:7f00:1", Some(Special::Loopback)),
            ("169.254.169.254", Some(Special::LinkLocal)),
            ("::ffff:169.254.169.254", Some(Special::LinkLocal)),
            ("fe80::1", Some(Special::LinkLocal)),
            ("febf::1", Some(Special::LinkLocal)),
            ("224.0.0.1", Some(Special::LinkLocalMulticast)),
            ("ff02::1", Some(Special::LinkLocalMulticast)),
            ("239.1.1.1", Some(Special::Multicast)),
            ("ff05::1", Some(Special::Multicast)),
            ("255.255.255.255", Some(Special::Multicast)),
            ("10.96.0.1", None),
            ("::ffff:10.96.0.1", None),
            ("fd00::1", None),
        ] {
            assert_eq!(special(text.parse().unwrap()), expected, "{text}");
        }
    }
}

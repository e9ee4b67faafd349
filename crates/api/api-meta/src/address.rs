//! Addresses that are only valid on one machine or one link.
//!
//! Validation, the API server's proxies and the service proxy share this classification. An address that one of them
//! rejects can therefore not reach the kernel through another.

use std::net::IpAddr;

/// A kind of address that traffic must not be redirected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecialAddress {
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
pub fn special(address: IpAddr) -> Option<SpecialAddress> {
    let address = address.to_canonical();
    let (link_local, link_multicast, broadcast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0], v4.is_broadcast()),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02, false),
    };
    Some(match address {
        _ if address.is_unspecified() => SpecialAddress::Unspecified,
        _ if address.is_loopback() => SpecialAddress::Loopback,
        _ if link_local => SpecialAddress::LinkLocal,
        _ if link_multicast => SpecialAddress::LinkLocalMulticast,
        _ if address.is_multicast() || broadcast => SpecialAddress::Multicast,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_addresses_in_both_notations() {
        for (text, expected) in [
            ("0.0.0.0", Some(SpecialAddress::Unspecified)),
            ("::", Some(SpecialAddress::Unspecified)),
            ("::ffff:0.0.0.0", Some(SpecialAddress::Unspecified)),
            ("127.255.0.1", Some(SpecialAddress::Loopback)),
            ("::1", Some(SpecialAddress::Loopback)),
            ("::ffff:127.0.0.1", Some(SpecialAddress::Loopback)),
            ("::ffff:7f00:1", Some(SpecialAddress::Loopback)),
            ("169.254.169.254", Some(SpecialAddress::LinkLocal)),
            ("::ffff:169.254.169.254", Some(SpecialAddress::LinkLocal)),
            ("fe80::1", Some(SpecialAddress::LinkLocal)),
            ("febf::1", Some(SpecialAddress::LinkLocal)),
            ("224.0.0.1", Some(SpecialAddress::LinkLocalMulticast)),
            ("ff02::1", Some(SpecialAddress::LinkLocalMulticast)),
            ("239.1.1.1", Some(SpecialAddress::Multicast)),
            ("ff05::1", Some(SpecialAddress::Multicast)),
            ("255.255.255.255", Some(SpecialAddress::Multicast)),
            ("10.96.0.1", None),
            ("::ffff:10.96.0.1", None),
            ("fd00::1", None),
        ] {
            assert_eq!(special(text.parse().unwrap()), expected, "{text}");
        }
    }
}

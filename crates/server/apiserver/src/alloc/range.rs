//! The addresses of a range that Services may use.

use std::net::IpAddr;

use api_meta::{Cidr, Family};

/// Returns the number of addresses without the network address and IPv4's broadcast address. As upstream, at most 2^16
/// for IPv6.
pub(crate) fn usable(range: Cidr) -> u128 {
    let size = 1u128.checked_shl(range.host_bits().into()).unwrap_or(u128::MAX);
    match range.family() {
        Family::V4 => size.saturating_sub(2),
        Family::V6 => size.saturating_sub(1).min(1 << 16),
    }
}

/// Returns the usable addresses in the order in which they are tried: from a random one on. As upstream, the lower part
/// of the range, reserved for Services that request an address, comes last.
pub(crate) fn addresses(range: Cidr) -> impl Iterator<Item = IpAddr> + Send {
    let usable = usable(range);
    let reserved = (usable / 16).clamp(if usable > 16 { 16 } else { 0 }, 256);
    let start = reserved + rt::random_in(0..(usable - reserved).max(1));
    let order = (start..usable).chain(reserved..start).chain(0..reserved);
    order.filter_map(move |n| range.nth(n + 1))
}

/// Returns `true` if a Service may request the address.
pub(crate) fn gives(range: Cidr, address: IpAddr) -> bool {
    let broadcast = range.family() == Family::V4 && address == range.last();
    range.contains(address) && address != range.network().address && !broadcast
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_first_and_last_address_of_range() {
        for (range, address, given) in [
            ("10.0.0.0/24", "10.0.0.0", false),
            ("10.0.0.0/24", "10.0.0.1", true),
            ("10.0.0.0/24", "10.0.0.254", true),
            ("10.0.0.0/24", "10.0.0.255", false),
            ("10.0.0.0/24", "10.0.1.1", false),
            ("fd00::/64", "fd00::", false),
            ("fd00::/64", "fd00::ffff:ffff", true),
        ] {
            let (parsed, asked) = (range.parse().unwrap(), address.parse().unwrap());
            assert_eq!(gives(parsed, asked), given, "{range} {address}");
        }
        assert_eq!(usable("10.0.0.0/30".parse().unwrap()), 2);
        assert_eq!(usable("fd00::/108".parse().unwrap()), 65_536);
    }
}

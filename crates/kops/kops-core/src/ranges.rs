//! Splits address ranges and allocates free ones.

use std::net::IpAddr;

use api_meta::{Cidr, cidr};
use kops_api::overlap;

use crate::error::Error;

/// Parses the range of a field.
pub(crate) fn parse(field: &str, text: &str) -> Result<Cidr, Error> {
    text.parse().map_err(|cause| Error::Cidr { field: field.to_owned(), cause })
}

/// Returns the `2^bits` equal parts of a range; empty if a part would be smaller than one address.
pub(crate) fn split(range: Cidr, bits: u8) -> Vec<Cidr> {
    let prefix = range.prefix.saturating_add(bits);
    let range = range.network();
    let step = |number: u128| -> Option<Cidr> {
        let host = range.family().bits().checked_sub(prefix)?;
        Cidr::new(range.nth(number.checked_shl(host.into())?)?, prefix)
    };
    (0..1u128 << bits).filter_map(step).collect()
}

/// Allocates the first free range of a size. The very first one is never used, because it is easily mistaken for the
/// whole range.
pub(crate) fn allocate(within: Cidr, prefix: u8, used: &mut Vec<Cidr>) -> Option<Cidr> {
    let size = 1u128.checked_shl((within.family().bits().checked_sub(prefix)?).into())?;
    let first = cidr::number(within.network().address);
    let last = cidr::number(within.last());
    let mut at = first.checked_add(size)?;
    while at <= last {
        let candidate = Cidr::new(cidr::address(within.family(), at), prefix)?;
        if !used.iter().any(|range| overlap(*range, candidate)) {
            used.push(candidate);
            return Some(candidate);
        }
        at = at.checked_add(size)?;
    }
    None
}

/// Returns the upper half of a range.
pub(crate) fn upper_half(range: Cidr) -> Option<Cidr> {
    split(range, 1).pop()
}

/// Returns Service address number `n`.
pub(crate) fn service_ip(services: &str, n: u128) -> Result<IpAddr, Error> {
    let range = parse("spec.serviceClusterIPRange", services)?;
    range.nth(n).ok_or_else(|| Error::value("spec.serviceClusterIPRange", services, "is too small"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        parse("test", text).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn splits_ranges() {
        let parts = |range, bits| {
            split(cidr(range), bits).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(parts("10.0.0.0/8", 0), ["10.0.0.0/8"]);
        assert_eq!(parts("10.0.0.0/8", 1), ["10.0.0.0/9", "10.128.0.0/9"]);
        assert_eq!(parts("172.20.0.0/16", 3)[7], "172.20.224.0/19");
        assert_eq!(parts("10.0.0.0/31", 3), Vec::<String>::new());
        assert_eq!(upper_half(cidr("100.64.0.0/10")), Some(cidr("100.96.0.0/11")));
    }

    #[test]
    fn allocates_free_ranges() {
        let mut used = vec![cidr("10.0.16.0/20")];
        assert_eq!(allocate(cidr("10.0.0.0/8"), 20, &mut used), Some(cidr("10.0.32.0/20")));
        assert_eq!(allocate(cidr("10.0.0.0/8"), 14, &mut used), Some(cidr("10.4.0.0/14")));
        assert_eq!(allocate(cidr("10.0.0.0/24"), 24, &mut used), None);
        assert_eq!(allocate(cidr("10.0.0.0/24"), 99, &mut used), None);
    }
}

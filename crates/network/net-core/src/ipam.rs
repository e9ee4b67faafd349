//! Allocates the addresses of a subnet to Pods.
//!
//! Addresses are allocated in turn and not lowest first, so that a released one stays unused as long as possible: peers
//! may still have connections to it or cache its name.

use std::{collections::BTreeSet, net::IpAddr};

use api_meta::cidr::{address, number};

use crate::{Cidr, Family};

/// Returns the address of the bridge: the first of the subnet.
pub fn gateway(subnet: Cidr) -> Option<IpAddr> {
    subnet.nth(1)
}

/// Returns the next free address after `last`; `None` if the subnet is full.
pub fn allocate(
    subnet: Cidr,
    allocated: &BTreeSet<IpAddr>,
    last: Option<IpAddr>,
) -> Option<IpAddr> {
    let first = number(subnet.nth(2)?);
    // The last IPv4 address is the broadcast address.
    let end = number(subnet.last()) - u128::from(subnet.family() == Family::V4);
    if end < first {
        return None;
    }
    let after_last =
        last.filter(|last| subnet.contains(*last)).map(|last| number(last).saturating_add(1));
    let start = after_last.filter(|next| (first..=end).contains(next)).unwrap_or(first);
    let candidates = (start..=end).chain(first..start).map(|n| address(subnet.family(), n));
    candidates.into_iter().find(|candidate| !allocated.contains(candidate))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subnet(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn allocates_in_turn_and_skips_used() {
        let net = subnet("10.1.0.0/29");
        let taken: BTreeSet<IpAddr> = ["10.1.0.3".parse().unwrap()].into();
        let mut last = None;
        let mut seen = Vec::new();
        for _ in 0..6 {
            last = allocate(net, &taken, last);
            seen.push(last.unwrap().to_string());
        }
        assert_eq!(seen, ["10.1.0.2", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.2", "10.1.0.4"]);
    }

    #[test]
    fn small_subnets_yield_no_address() {
        for tiny in ["10.1.0.0/32", "10.1.0.0/31"] {
            assert_eq!(allocate(subnet(tiny), &BTreeSet::new(), None), None, "{tiny}");
        }
        assert_eq!(
            allocate(subnet("fd00::/64"), &BTreeSet::new(), None),
            Some("fd00::2".parse().unwrap())
        );
    }

    proptest! {
        #[test]
        fn allocates_every_address_once(prefix in 24u8..30) {
            let net = Cidr::new("192.168.7.0".parse().unwrap(), prefix).unwrap();
            let mut taken = BTreeSet::new();
            let mut last = None;
            while let Some(ip) = allocate(net, &taken, last) {
                prop_assert!(net.contains(ip) && taken.insert(ip));
                prop_assert!(ip != net.last() && Some(ip) != gateway(net) && ip != net.network().address);
                last = Some(ip);
            }
            prop_assert_eq!(taken.len(), (1usize << (32 - prefix)) - 3);
        }
    }
}

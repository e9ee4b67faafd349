//! Address ranges cut into equal blocks, one for each node.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// An address range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Cidr {
    v6: bool,
    base: u128,
    prefix: u8,
}

impl Cidr {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let prefix: u8 = prefix.parse().ok()?;
        let (v6, address) = match address.parse().ok()? {
            IpAddr::V4(v4) => (false, u128::from(u32::from(v4))),
            IpAddr::V6(v6) => (true, u128::from(v6)),
        };
        let bits = Self::bits(v6);
        (prefix <= bits).then(|| Self {
            v6,
            base: address & !Self::host_mask(bits, prefix),
            prefix,
        })
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.v6
    }

    pub(crate) fn contains(&self, other: &Self) -> bool {
        self.v6 == other.v6
            && self.prefix <= other.prefix
            && other.base & !Self::host_mask(Self::bits(self.v6), self.prefix) == self.base
    }

    fn bits(v6: bool) -> u8 {
        if v6 { 128 } else { 32 }
    }

    fn host_mask(bits: u8, prefix: u8) -> u128 {
        match bits - prefix {
            128 => u128::MAX,
            host => (1 << host) - 1,
        }
    }

    fn last(&self) -> u128 {
        self.base | Self::host_mask(Self::bits(self.v6), self.prefix)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = if self.v6 {
            IpAddr::from(Ipv6Addr::from(self.base))
        } else {
            IpAddr::from(Ipv4Addr::from(u32::try_from(self.base).unwrap_or(0)))
        };
        write!(f, "{address}/{}", self.prefix)
    }
}

/// One range and which of its blocks are taken.
#[derive(Debug)]
pub(crate) struct Blocks {
    range: Cidr,
    prefix: u8,
    taken: BTreeSet<u128>,
    /// Where to look next, so that a block just freed is not given out at once.
    next: u128,
}

impl Blocks {
    pub(crate) fn new(range: Cidr, prefix: u8) -> Option<Self> {
        let fits = prefix >= range.prefix && prefix <= Cidr::bits(range.v6);
        fits.then(|| Self { range, prefix, taken: BTreeSet::new(), next: 0 })
    }

    fn count(&self) -> u128 {
        1u128.checked_shl(u32::from(self.prefix - self.range.prefix)).unwrap_or(u128::MAX)
    }

    fn shift(&self) -> u32 {
        u32::from(Cidr::bits(self.range.v6) - self.prefix)
    }

    /// The blocks that the range covers, whole or in part.
    fn covered(&self, cidr: &Cidr) -> Option<(u128, u128)> {
        if cidr.v6 != self.range.v6
            || cidr.last() < self.range.base
            || cidr.base > self.range.last()
        {
            return None;
        }
        let block =
            |address: u128| (address - self.range.base).checked_shr(self.shift()).unwrap_or(0);
        Some((block(cidr.base.max(self.range.base)), block(cidr.last().min(self.range.last()))))
    }

    pub(crate) fn occupy(&mut self, cidr: &Cidr) {
        if let Some((first, last)) = self.covered(cidr) {
            self.taken.extend(first..=last);
        }
    }

    pub(crate) fn release(&mut self, cidr: &Cidr) {
        if let Some((first, last)) = self.covered(cidr) {
            for block in first..=last {
                self.taken.remove(&block);
            }
        }
    }

    pub(crate) fn allocate(&mut self) -> Option<Cidr> {
        let count = self.count();
        if self.taken.len() as u128 >= count {
            return None;
        }
        let mut block = self.next % count;
        while self.taken.contains(&block) {
            block = (block + 1) % count;
        }
        self.taken.insert(block);
        self.next = block + 1;
        let base = self.range.base + block.checked_shl(self.shift()).unwrap_or(0);
        Some(Cidr { v6: self.range.v6, base, prefix: self.prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap()
    }

    #[test]
    fn ranges_contain_smaller_ones() {
        let range = cidr("10.96.0.0/12");
        assert!(range.contains(&cidr("10.97.1.1/32")) && range.contains(&range));
        for other in ["10.112.0.0/32", "10.0.0.0/8", "a60::/128"] {
            assert!(!range.contains(&cidr(other)), "{other}");
        }
    }

    #[test]
    fn blocks_are_cut_in_order_and_come_round_again() {
        let mut blocks = Blocks::new(cidr("10.244.0.0/22"), 24).unwrap();
        blocks.occupy(&cidr("10.244.1.0/24"));
        let given: Vec<_> =
            std::iter::from_fn(|| blocks.allocate()).map(|c| c.to_string()).collect();
        assert_eq!(given, ["10.244.0.0/24", "10.244.2.0/24", "10.244.3.0/24"]);
        blocks.release(&cidr("10.244.2.0/24"));
        assert_eq!(blocks.allocate().unwrap().to_string(), "10.244.2.0/24");
        assert_eq!(blocks.allocate(), None);
    }

    #[test]
    fn service_ranges_inside_are_left_out() {
        let mut blocks = Blocks::new(cidr("10.0.0.0/8"), 24).unwrap();
        blocks.occupy(&cidr("10.0.0.0/12"));
        assert_eq!(blocks.allocate().unwrap().to_string(), "10.16.0.0/24");
    }

    #[test]
    fn ipv6_and_nonsense() {
        let mut blocks = Blocks::new(cidr("fd00:10:244::/48"), 64).unwrap();
        blocks.allocate();
        assert_eq!(blocks.allocate().unwrap().to_string(), "fd00:10:244:1::/64");
        assert!(Blocks::new(cidr("10.0.0.0/24"), 16).is_none());
        assert!(Cidr::parse("10.0.0.0/33").is_none() && Cidr::parse("10.0.0.0").is_none());
        let mut whole = Blocks::new(cidr("10.0.0.0/24"), 24).unwrap();
        assert_eq!(whole.allocate().unwrap().to_string(), "10.0.0.0/24");
        assert_eq!(whole.allocate(), None);
    }
}

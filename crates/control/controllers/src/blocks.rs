//! Address ranges cut into equal blocks, one for each node.

use std::collections::BTreeSet;

use api_meta::{Cidr, cidr};

/// An address range that is cut into blocks, and the set of allocated blocks.
#[derive(Debug)]
pub(crate) struct Blocks {
    range: Cidr,
    prefix: u8,
    allocated: BTreeSet<u128>,
    /// The block to try next, so that a released block is not reused at once.
    next: u128,
}

impl Blocks {
    pub(crate) fn new(range: Cidr, prefix: u8) -> Option<Self> {
        let fits = prefix >= range.prefix && prefix <= range.family().bits();
        fits.then(|| Self { range: range.network(), prefix, allocated: BTreeSet::new(), next: 0 })
    }

    fn count(&self) -> u128 {
        1u128.checked_shl(u32::from(self.prefix - self.range.prefix)).unwrap_or(u128::MAX)
    }

    fn shift(&self) -> u32 {
        u32::from(self.range.family().bits() - self.prefix)
    }

    /// Returns the first and last block that `range` overlaps.
    fn covered(&self, range: Cidr) -> Option<(u128, u128)> {
        if !range.covers(self.range) && !self.range.covers(range) {
            return None;
        }
        let base = cidr::number(self.range.address);
        let block = |address| (cidr::number(address) - base).checked_shr(self.shift()).unwrap_or(0);
        let first = range.network().address.max(self.range.address);
        Some((block(first), block(range.last().min(self.range.last()))))
    }

    pub(crate) fn occupy(&mut self, range: Cidr) {
        if let Some((first, last)) = self.covered(range) {
            self.allocated.extend(first..=last);
        }
    }

    pub(crate) fn release(&mut self, range: Cidr) {
        if let Some((first, last)) = self.covered(range) {
            for block in first..=last {
                self.allocated.remove(&block);
            }
        }
    }

    pub(crate) fn allocate(&mut self) -> Option<Cidr> {
        let count = self.count();
        if self.allocated.len() as u128 >= count {
            return None;
        }
        let mut block = self.next % count;
        while self.allocated.contains(&block) {
            block = (block + 1) % count;
        }
        self.allocated.insert(block);
        self.next = block + 1;
        let base = self.range.nth(block.checked_shl(self.shift()).unwrap_or(0))?;
        Cidr::new(base, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn allocates_blocks_in_order_and_reuses_released() {
        let mut blocks = Blocks::new(range("10.244.0.0/22"), 24).unwrap();
        blocks.occupy(range("10.244.1.0/24"));
        let given: Vec<_> =
            std::iter::from_fn(|| blocks.allocate()).map(|c| c.to_string()).collect();
        assert_eq!(given, ["10.244.0.0/24", "10.244.2.0/24", "10.244.3.0/24"]);
        blocks.release(range("10.244.2.0/24"));
        assert_eq!(blocks.allocate().unwrap().to_string(), "10.244.2.0/24");
        assert_eq!(blocks.allocate(), None);
    }

    #[test]
    fn skips_blocks_of_service_ranges() {
        let mut blocks = Blocks::new(range("10.0.0.0/8"), 24).unwrap();
        blocks.occupy(range("10.0.0.0/12"));
        assert_eq!(blocks.allocate().unwrap().to_string(), "10.16.0.0/24");
    }

    #[test]
    fn allocates_ipv6_and_rejects_invalid_prefixes() {
        let mut blocks = Blocks::new(range("fd00:10:244::/48"), 64).unwrap();
        blocks.allocate();
        assert_eq!(blocks.allocate().unwrap().to_string(), "fd00:10:244:1::/64");
        assert!(Blocks::new(range("10.0.0.0/24"), 16).is_none());
        let mut whole = Blocks::new(range("10.0.0.0/24"), 24).unwrap();
        assert_eq!(whole.allocate().unwrap().to_string(), "10.0.0.0/24");
        assert_eq!(whole.allocate(), None);
    }
}

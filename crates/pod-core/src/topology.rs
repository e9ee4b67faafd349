//! Where on the machine a container is to be: sets of NUMA nodes, and what they are chosen by.

/// A set of NUMA nodes, of which there are no more than 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mask(u64);

impl Mask {
    /// The set of these nodes; numbers that no node can have are passed over.
    pub fn of(nodes: impl IntoIterator<Item = i64>) -> Self {
        Self(nodes.into_iter().map(bit).fold(0, |mask, bit| mask | bit))
    }

    /// Whether a node is in the set.
    pub fn has(self, node: i64) -> bool {
        self.0 & bit(node) != 0
    }

    /// How many nodes are in it.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Its nodes, the lowest first.
    pub fn nodes(self) -> impl Iterator<Item = i64> {
        (0..64).filter(move |node| self.has(*node))
    }

    /// What is in both.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether nothing is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

fn bit(node: i64) -> u64 {
    u32::try_from(node).ok().and_then(|node| 1_u64.checked_shl(node)).unwrap_or(0)
}

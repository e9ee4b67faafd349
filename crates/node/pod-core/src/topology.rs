//! Topology alignment (the topology manager): sets of NUMA nodes, the hints of the device, CPU and memory managers, and
//! the merge of all hints. Read [`merge`] first. This module does no I/O.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::spec::{Role, members};

/// The default limit of NUMA nodes. All their combinations are tried.
pub const USUAL_NODES: usize = 8;
/// The limit of NUMA nodes for any configuration.
pub const MAX_NODES: usize = 16;

/// A set of NUMA nodes with numbers below 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mask(u64);

impl Mask {
    /// Returns the set of these nodes. Numbers out of range are ignored.
    pub fn of(nodes: impl IntoIterator<Item = i64>) -> Self {
        Self(nodes.into_iter().map(bit).fold(0, |mask, bit| mask | bit))
    }

    /// Reports whether a node is in the set.
    pub fn has(self, node: i64) -> bool {
        self.0 & bit(node) != 0
    }

    /// Returns the number of nodes.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns the nodes in ascending order.
    pub fn nodes(self) -> impl Iterator<Item = i64> {
        (0..64).filter(move |node| self.has(*node))
    }

    /// Returns the intersection of both sets.
    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

fn bit(node: i64) -> u64 {
    u32::try_from(node).ok().and_then(|node| 1_u64.checked_shl(node)).unwrap_or(0)
}

/// A set of nodes that can satisfy a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hint {
    /// The nodes; `None` if any node will do.
    pub nodes: Option<Mask>,
    /// `true` if fewer nodes cannot satisfy the request.
    pub preferred: bool,
}

/// The hints for one resource: `None` without a preference. An empty list means that no set of nodes can satisfy the
/// request.
pub type Hints = Option<Vec<Hint>>;

/// The policy of the topology manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Hints are ignored.
    #[default]
    None,
    /// The best hint is used, and no Pod is refused.
    BestEffort,
    /// A Pod without a preferred hint is refused.
    Restricted,
    /// A Pod that does not fit on one node is refused.
    SingleNode,
}

/// The machine's NUMA nodes.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// The numbers of the nodes.
    pub all: Vec<i64>,
    /// The distances by pair of nodes; empty if distances are not considered.
    pub distances: BTreeMap<(i64, i64), u64>,
}

impl Nodes {
    fn mask(&self) -> Mask {
        Mask::of(self.all.iter().copied())
    }

    /// Returns the sum of all distances within a set.
    fn distance(&self, mask: Mask) -> u64 {
        let pairs = mask.nodes().flat_map(|a| mask.nodes().map(move |b| (a, b)));
        pairs.filter_map(|pair| self.distances.get(&pair)).sum()
    }
}

/// Returns the amount that a Pod needs at the same time, from the amounts of its containers.
pub(crate) fn at_once(pod: &Pod, amount_of: impl Fn(&Container) -> usize) -> usize {
    let (mut init, mut sidecars, mut apps) = (0_usize, 0_usize, 0_usize);
    for member in members(pod) {
        let amount = amount_of(&member.container);
        match member.role {
            Role::Init => init = init.max(sidecars.saturating_add(amount)),
            Role::Sidecar => sidecars = sidecars.saturating_add(amount),
            Role::App => apps = apps.saturating_add(amount),
            Role::Ephemeral => {}
        }
    }
    init.max(sidecars.saturating_add(apps))
}

/// Returns all non-empty subsets of the first [`MAX_NODES`] nodes.
pub(crate) fn subsets(nodes: &[i64]) -> impl Iterator<Item = Mask> {
    let nodes = nodes.get(..nodes.len().min(MAX_NODES)).unwrap_or_default();
    (1..1_u32 << nodes.len()).map(move |bits| {
        let chosen = nodes.iter().enumerate().filter(move |(at, _)| bits & (1 << at) != 0);
        Mask::of(chosen.map(|(_, node)| *node))
    })
}

/// Returns the hints for `count` units. `total` returns the total of a set of nodes, and `free` its free units, or
/// `None` if the set is not allowed.
pub fn hints(
    nodes: &[i64],
    count: usize,
    total: impl Fn(Mask) -> usize,
    free: impl Fn(Mask) -> Option<usize>,
) -> Vec<Hint> {
    let masks: Vec<Mask> = subsets(nodes).collect();
    let enough = masks.iter().filter(|mask| total(**mask) >= count).map(|mask| mask.count());
    let fewest = enough.min().unwrap_or(u32::MAX).min(u32::try_from(nodes.len()).unwrap_or(0));
    let possible = masks.into_iter().filter(|mask| free(*mask).is_some_and(|free| free >= count));
    let hint = |mask: Mask| Hint { nodes: Some(mask), preferred: mask.count() == fewest };
    possible.map(hint).collect()
}

/// Merges hints. Returns the best common hint, and `true` if the policy admits the Pod.
pub fn merge(policy: Policy, nodes: &Nodes, all_hints: &[Hints]) -> (Hint, bool) {
    if policy == Policy::None {
        return (Hint { nodes: None, preferred: true }, true);
    }
    let single = policy == Policy::SingleNode;
    let usable = |hint: &Hint| {
        !single || hint.preferred && hint.nodes.is_none_or(|nodes| nodes.count() == 1)
    };
    let any = |preferred| vec![Hint { nodes: None, preferred }];
    let lists = all_hints.iter().map(|hints| match hints {
        None => any(true),
        Some(hints) if hints.is_empty() => any(false),
        Some(hints) => hints.clone(),
    });
    let lists: Vec<Vec<Hint>> =
        lists.map(|hints| hints.into_iter().filter(usable).collect()).collect();
    // The resource that needs the most nodes determines the target size.
    let fewest = |hints: &Vec<Hint>| hints.iter().filter_map(|h| h.nodes).map(Mask::count).min();
    let goal = lists.iter().filter_map(fewest).max().unwrap_or(0);
    let best = combinations(nodes.mask(), &lists).into_iter().min_by_key(|hint| {
        let mask = hint.nodes.unwrap_or_default();
        (rank(hint.preferred, mask.count(), goal), nodes.distance(mask), mask)
    });
    let mut best = best.unwrap_or(Hint { nodes: Some(nodes.mask()), preferred: false });
    if single && best.nodes == Some(nodes.mask()) {
        best.nodes = None;
    }
    (best, best.preferred || policy == Policy::BestEffort)
}

/// Returns all combinations of one hint per list. A combination is preferred only if all of its hints are and have the
/// same nodes.
fn combinations(all: Mask, lists: &[Vec<Hint>]) -> BTreeSet<Hint> {
    let mut sets = BTreeSet::from([Hint { nodes: None, preferred: true }]);
    for hints in lists {
        let mut next = BTreeSet::new();
        for (set, hint) in sets.iter().flat_map(|set| hints.iter().map(move |hint| (set, hint))) {
            let preferred = set.preferred && hint.preferred;
            next.insert(match (set.nodes, hint.nodes) {
                (nodes, None) | (None, nodes) => Hint { nodes, preferred },
                (Some(a), Some(b)) => {
                    Hint { nodes: Some(a.and(b)), preferred: preferred && a == b }
                }
            });
        }
        sets = next;
    }
    let within = |hint: Hint| Hint { nodes: Some(hint.nodes.unwrap_or(all).and(all)), ..hint };
    let sets = sets.into_iter().map(within);
    sets.filter(|hint| hint.nodes.is_some_and(|nodes| nodes.count() > 0)).collect()
}

/// Returns the rank of a hint; lower is better. Preferred hints come first, with fewer nodes before more. Then come
/// sets up to the target size, larger ones first, and finally larger sets, smaller ones first.
fn rank(preferred: bool, count: u32, goal: u32) -> (u8, u32) {
    match count {
        _ if preferred => (0, count),
        _ if count <= goal => (1, goal - count),
        _ => (2, count),
    }
}

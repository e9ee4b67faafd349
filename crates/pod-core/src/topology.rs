//! Where on the machine a container is to be: sets of NUMA nodes, what those who give devices and CPUs away say of them
//! (hints), and which set comes of all that is said.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::{Role, members};

/// So many NUMA nodes at most by default: all their combinations are tried.
pub const USUAL_NODES: usize = 8;
/// So many at most whatever is configured.
pub const MOST_NODES: usize = 16;

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
    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

fn bit(node: i64) -> u64 {
    u32::try_from(node).ok().and_then(|node| 1_u64.checked_shl(node)).unwrap_or(0)
}

/// A set of nodes on which something can be had; none if any will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hint {
    pub nodes: Option<Mask>,
    /// Whether it could not be had on fewer nodes.
    pub preferred: bool,
}

/// What is said of one resource: nothing, or where it can be had, which is nowhere if the list is empty.
pub type Hints = Option<Vec<Hint>>;

/// How much is made of what is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Nothing.
    #[default]
    None,
    /// The best set is taken, and none is no ground for a refusal.
    BestEffort,
    /// Whoever cannot have the best is refused.
    Restricted,
    /// Whoever cannot have all on one node is refused.
    SingleNode,
}

/// The machine's nodes, and how far they are from each other where that is to count.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    pub all: Vec<i64>,
    /// By two nodes; empty if all are equally far.
    pub distances: BTreeMap<(i64, i64), u64>,
}

impl Nodes {
    fn mask(&self) -> Mask {
        Mask::of(self.all.iter().copied())
    }

    /// The sum of all distances within a set.
    fn distance(&self, mask: Mask) -> u64 {
        let pairs = mask.nodes().flat_map(|a| mask.nodes().map(move |b| (a, b)));
        pairs.filter_map(|pair| self.distances.get(&pair)).sum()
    }
}

/// How much of something a Pod needs at once, by what each of its containers does.
pub(crate) fn at_once(pod: &Pod, asked: impl Fn(&Container) -> usize) -> usize {
    let (mut init, mut sidecars, mut apps) = (0_usize, 0_usize, 0_usize);
    for member in members(pod) {
        let asked = asked(&member.container);
        match member.role {
            Role::Init => init = init.max(sidecars.saturating_add(asked)),
            Role::Sidecar => sidecars = sidecars.saturating_add(asked),
            Role::App => apps = apps.saturating_add(asked),
            Role::Ephemeral => {}
        }
    }
    init.max(sidecars.saturating_add(apps))
}

/// All sets of these nodes but the empty one; what is more than [`MOST_NODES`] is left out.
pub(crate) fn subsets(nodes: &[i64]) -> impl Iterator<Item = Mask> {
    let nodes = nodes.get(..nodes.len().min(MOST_NODES)).unwrap_or_default();
    (1..1_u32 << nodes.len()).map(move |bits| {
        let chosen = nodes.iter().enumerate().filter(move |(at, _)| bits & (1 << at) != 0);
        Mask::of(chosen.map(|(_, node)| *node))
    })
}

/// Where `wanted` of something can be had: `whole` is how much there is on a set of nodes, `free` how much of that may be
/// taken, `None` if the set is out of the question.
pub fn hints(
    nodes: &[i64],
    wanted: usize,
    whole: impl Fn(Mask) -> usize,
    free: impl Fn(Mask) -> Option<usize>,
) -> Vec<Hint> {
    let masks: Vec<Mask> = subsets(nodes).collect();
    let enough = masks.iter().filter(|mask| whole(**mask) >= wanted).map(|mask| mask.count());
    let fewest = enough.min().unwrap_or(u32::MAX).min(u32::try_from(nodes.len()).unwrap_or(0));
    let possible = masks.into_iter().filter(|mask| free(*mask).is_some_and(|free| free >= wanted));
    let hint = |mask: Mask| Hint { nodes: Some(mask), preferred: mask.count() == fewest };
    possible.map(hint).collect()
}

/// The set on which a container is to be, by all that is said, and whether it is taken at all.
pub fn merge(policy: Policy, nodes: &Nodes, said: &[Hints]) -> (Hint, bool) {
    if policy == Policy::None {
        return (Hint { nodes: None, preferred: true }, true);
    }
    let single = policy == Policy::SingleNode;
    let usable = |hint: &Hint| {
        !single || hint.preferred && hint.nodes.is_none_or(|nodes| nodes.count() == 1)
    };
    let any = |preferred| vec![Hint { nodes: None, preferred }];
    let lists = said.iter().map(|hints| match hints {
        None => any(true),
        Some(hints) if hints.is_empty() => any(false),
        Some(hints) => hints.clone(),
    });
    let lists: Vec<Vec<Hint>> =
        lists.map(|hints| hints.into_iter().filter(usable).collect()).collect();
    // What wants the most nodes decides how many are too few.
    let fewest = |hints: &Vec<Hint>| hints.iter().filter_map(|h| h.nodes).map(Mask::count).min();
    let goal = lists.iter().filter_map(fewest).max().unwrap_or(0);
    let best = together(nodes.mask(), &lists).into_iter().min_by_key(|hint| {
        let mask = hint.nodes.unwrap_or_default();
        (rank(hint.preferred, mask.count(), goal), nodes.distance(mask), mask)
    });
    let mut best = best.unwrap_or(Hint { nodes: Some(nodes.mask()), preferred: false });
    if single && best.nodes == Some(nodes.mask()) {
        best.nodes = None;
    }
    (best, best.preferred || policy == Policy::BestEffort)
}

/// All sets that can come of taking one hint of each list. One that is preferred is so for all, which then agree on it.
fn together(all: Mask, lists: &[Vec<Hint>]) -> BTreeSet<Hint> {
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

/// The lower the better: what is preferred, the fewer nodes the better; then as many nodes as are needed, then fewer but as
/// many as can be, then more but as few as can be.
fn rank(preferred: bool, count: u32, goal: u32) -> (u8, u32) {
    match count {
        _ if preferred => (0, count),
        _ if count <= goal => (1, goal - count),
        _ => (2, count),
    }
}

//! Selects free CPUs for an allocation, as upstream.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    machine::{CpuError, CpuLocation, Machine, Options},
    set::CpuSet,
};
use crate::topology::subsets;

/// A kind of machine part, as a function that returns the part's number for a CPU.
type Part = fn(&CpuLocation) -> i64;

const NODE: Part = |place| place.node;
const SOCKET: Part = |place| place.socket;
const CORE: Part = |place| i64::from(place.core);
const CACHE: Part = |place| i64::from(place.cache);

/// Selects free CPUs, according to the options.
pub(super) fn take(
    machine: &Machine,
    free: &CpuSet,
    requested: usize,
    options: Options,
) -> Result<CpuSet, CpuError> {
    if free.len() < requested {
        return Err(CpuError::TooFew { requested, available: free.len() });
    }
    let spread =
        if options.distribute { distribute(machine, free, requested, options) } else { None };
    Ok(spread.unwrap_or_else(|| pack(machine, free, requested, options)))
}

/// Selects the same number of CPUs from each of the fewest NUMA nodes that have enough. A remainder comes from the node
/// with the most free CPUs. Of several possible sets of nodes, the one with the most even usage wins.
fn distribute(
    machine: &Machine,
    free: &CpuSet,
    requested: usize,
    options: Options,
) -> Option<CpuSet> {
    let cores: BTreeSet<u32> = machine.values().map(|place| place.core).collect();
    let group = if options.full_cores { machine.len() / cores.len().max(1) } else { 1 };
    let mut on: BTreeMap<i64, CpuSet> = BTreeMap::new();
    for cpu in free.iter() {
        let node = machine.get(&cpu)?.node;
        let cpus = on.entry(node).or_default();
        *cpus = cpus.and(&[cpu].into_iter().collect());
    }
    let nodes: Vec<i64> = on.keys().copied().collect();
    let shares = |chosen: &Vec<i64>| -> Option<(usize, BTreeMap<i64, usize>)> {
        let left = |node: i64, share: usize| on.get(&node)?.len().checked_sub(share);
        let each = requested / chosen.len() / group * group;
        let mut shares: BTreeMap<i64, usize> = chosen.iter().map(|node| (*node, each)).collect();
        let mut missing = requested - each * chosen.len();
        while missing > 0 {
            let one = missing.min(group);
            let roomy = shares.iter().filter(|(node, share)| left(**node, **share + one).is_some());
            let most = roomy.max_by_key(|(node, share)| (left(**node, **share), -**node));
            let node = *most?.0;
            *shares.entry(node).or_default() += one;
            missing -= one;
        }
        let mut unused = on.keys().map(|node| left(*node, shares.get(node).copied().unwrap_or(0)));
        let squares = unused.try_fold(0, |sum, left| Some(sum + left?.pow(2)))?;
        Some((squares, shares))
    };
    let mut sets: Vec<Vec<i64>> = subsets(&nodes).map(|set| set.nodes().collect()).collect();
    sets.sort_by_key(Vec::len);
    let possible = sets.iter().filter_map(|chosen| Some((chosen.len(), shares(chosen)?)));
    let (_, (_, shares)) = possible.min_by_key(|(count, (squares, _))| (*count, *squares))?;
    let each = shares
        .iter()
        .filter_map(|(node, share)| Some(pack(machine, on.get(node)?, *share, options)));
    Some(each.fold(CpuSet::default(), |all, cpus| all.and(&cpus)))
}

/// Selects free CPUs that are close together: first whole NUMA nodes and sockets, then whole cores, then single
/// threads. A smaller number comes from the parts that are used most. The caller guarantees that there are enough.
fn pack(machine: &Machine, free: &CpuSet, requested: usize, options: Options) -> CpuSet {
    let kinds = |part: Part| machine.values().map(part).collect::<BTreeSet<_>>().len();
    // The larger parts come first.
    let (large, small) = if kinds(SOCKET) >= kinds(NODE) { (NODE, SOCKET) } else { (SOCKET, NODE) };
    let mut selection =
        Selection { machine, free: free.clone(), selected: CpuSet::default(), requested };
    selection.take_whole(&[large]);
    selection.take_whole(&[large, small]);
    if options.by_cache {
        selection.take_whole(&[large, small, CACHE]);
        selection.within(&[large, small, CACHE]);
    }
    selection.take_whole(&[large, small, CORE]);
    let order = selection.order(&[large, small, CORE]);
    let missing = requested - selection.selected.len();
    let rest = order.into_iter().flat_map(|(_, cpus)| cpus).take(missing).collect();
    selection.selected.and(&rest)
}

struct Selection<'a> {
    machine: &'a Machine,
    free: CpuSet,
    selected: CpuSet,
    requested: usize,
}

impl Selection<'_> {
    /// Takes parts without used CPUs, as long as all CPUs of a part are needed.
    fn take_whole(&mut self, parts: &[Part]) {
        let Some(last) = parts.last() else { return };
        for (part, cpus) in self.order(parts) {
            let size = self.machine.values().filter(|place| last(place) == part).count();
            if cpus.len() == size && self.requested - self.selected.len() >= size {
                let cpus: CpuSet = cpus.into_iter().collect();
                self.selected = self.selected.and(&cpus);
                self.free = self.free.without(&cpus);
            }
        }
    }

    /// Restricts the search to one part that has all missing CPUs, if there is one.
    fn within(&mut self, parts: &[Part]) {
        let missing = self.requested - self.selected.len();
        let enough = self.order(parts).into_iter().find(|(_, cpus)| cpus.len() >= missing);
        if let Some((_, cpus)) = enough {
            self.free = cpus.into_iter().collect();
        }
    }

    /// Returns the smallest parts with their free CPUs. Parts with fewer free CPUs come first, at every level.
    fn order(&self, parts: &[Part]) -> Vec<(i64, Vec<u32>)> {
        let at = |cpu: u32| self.machine.get(&cpu).copied();
        let places: Vec<(u32, CpuLocation)> =
            self.free.iter().filter_map(|cpu| Some((cpu, at(cpu)?))).collect();
        let count = |part: &Part, place: &CpuLocation| {
            places.iter().filter(|(_, other)| part(other) == part(place)).count()
        };
        let key = |place: &CpuLocation| -> Vec<(usize, i64)> {
            parts.iter().map(|part| (count(part, place), part(place))).collect()
        };
        let mut sorted: BTreeMap<Vec<(usize, i64)>, Vec<u32>> = BTreeMap::new();
        for (cpu, place) in &places {
            sorted.entry(key(place)).or_default().push(*cpu);
        }
        let named = |(key, cpus): (Vec<(usize, i64)>, Vec<u32>)| Some((key.last()?.1, cpus));
        sorted.into_iter().filter_map(named).collect()
    }
}

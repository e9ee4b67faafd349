use std::collections::{BTreeMap, BTreeSet};

use super::{CpuError, CpuSet, Machine, Place};

/// A part of the machine: which kind, and its number.
type Part = fn(&Place) -> i64;

const NODE: Part = |place| place.node;
const SOCKET: Part = |place| place.socket;
const CORE: Part = |place| i64::from(place.core);

/// Takes so many of the free CPUs, close together: whole NUMA nodes and sockets first, then whole cores, then single
/// threads; and where less is needed, of what is used most already.
pub(super) fn packed(machine: &Machine, free: &CpuSet, wanted: usize) -> Result<CpuSet, CpuError> {
    if free.len() < wanted {
        return Err(CpuError::TooFew { wanted, available: free.len() });
    }
    let kinds = |part: Part| machine.values().map(part).collect::<BTreeSet<_>>().len();
    // The larger parts come first.
    let (large, small) = if kinds(SOCKET) >= kinds(NODE) { (NODE, SOCKET) } else { (SOCKET, NODE) };
    let mut taking = Taking { machine, free: free.clone(), taken: CpuSet::default(), wanted };
    taking.whole(&[large]);
    taking.whole(&[large, small]);
    taking.whole(&[large, small, CORE]);
    let order = taking.order(&[large, small, CORE]);
    let missing = wanted - taking.taken.len();
    let rest = order.into_iter().flat_map(|(_, cpus)| cpus).take(missing).collect();
    Ok(taking.taken.and(&rest))
}

struct Taking<'a> {
    machine: &'a Machine,
    free: CpuSet,
    taken: CpuSet,
    wanted: usize,
}

impl Taking<'_> {
    /// Takes parts of which no CPU is used, as long as all of one is needed.
    fn whole(&mut self, parts: &[Part]) {
        let Some(last) = parts.last() else { return };
        for (part, cpus) in self.order(parts) {
            let size = self.machine.values().filter(|place| last(place) == part).count();
            if cpus.len() == size && self.wanted - self.taken.len() >= size {
                let cpus: CpuSet = cpus.into_iter().collect();
                self.taken = self.taken.and(&cpus);
                self.free = self.free.without(&cpus);
            }
        }
    }

    /// The smallest of these parts with their free CPUs, those with the fewest first, within those with the fewest.
    fn order(&self, parts: &[Part]) -> Vec<(i64, Vec<u32>)> {
        let at = |cpu: u32| self.machine.get(&cpu).copied();
        let places: Vec<(u32, Place)> =
            self.free.iter().filter_map(|cpu| Some((cpu, at(cpu)?))).collect();
        let count = |part: &Part, place: &Place| {
            places.iter().filter(|(_, other)| part(other) == part(place)).count()
        };
        let key = |place: &Place| -> Vec<(usize, i64)> {
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

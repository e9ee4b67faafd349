//! The memory of NUMA nodes that can be allocated.

use std::collections::{BTreeMap, BTreeSet};

use api_meta::Quantity;
use kubelet_config::{ReservedMemory, Settings};
use pod_core::{
    evict::Signal,
    huge_pages,
    numa_memory::{HUGE_PAGES, NumaMemory, Table},
};

use super::{error::PlacementError, topology::Topology};

/// Creates the memory manager's state, or returns `None` under the policy `None`. Allocatable is all memory except huge
/// pages and the reserved amount, which must equal the amount that Node Allocatable keeps from Pods.
pub(super) fn memory(
    settings: &Settings,
    topology: &Topology,
) -> Result<Option<NumaMemory>, PlacementError> {
    let Some(reserved) = &settings.placement.reserved_memory else { return Ok(None) };
    if let Some(node) = reserved.keys().find(|node| !topology.nodes.contains_key(node)) {
        return Err(PlacementError::NoSuchNode(*node));
    }
    validate_reservations(settings, topology, reserved)?;
    let of_memory = reserved.values().filter_map(|limits| limits.get("memory"));
    if of_memory.map(Quantity::value).sum::<i64>() <= 0 {
        return Err(PlacementError::NoMemoryReserved);
    }
    let mut machine = BTreeMap::new();
    for (number, node) in &topology.nodes {
        let reservation = |resource: &str| {
            let amount = reserved.get(number).and_then(|limits| limits.get(resource));
            amount.and_then(|amount| u64::try_from(amount.value()).ok()).unwrap_or(0)
        };
        let (mut tables, mut huge) = (BTreeMap::new(), 0_u64);
        for (size, count) in &node.huge_pages {
            let (name, total) = (huge_pages::resource(*size), size.saturating_mul(*count));
            let amount = reservation(&name);
            tables.insert(name, Table::new(total, amount, total.saturating_sub(amount)));
            huge = huge.saturating_add(total);
        }
        let amount = reservation("memory");
        let allocatable = node.memory.saturating_sub(amount).saturating_sub(huge);
        tables.insert("memory".to_owned(), Table::new(node.memory, amount, allocatable));
        machine.insert(*number, tables);
    }
    Ok(Some(NumaMemory::new(machine)))
}

/// Validates that the reservations of all nodes add up to the amount that Node Allocatable keeps from Pods.
fn validate_reservations(
    settings: &Settings,
    topology: &Topology,
    reserved: &ReservedMemory,
) -> Result<(), PlacementError> {
    let is_memory = |name: &&String| *name == "memory" || name.starts_with(HUGE_PAGES);
    let named = reserved.values().flat_map(BTreeMap::keys).chain(settings.reserved.keys());
    let memory = "memory".to_owned();
    // Memory is always checked, because eviction thresholds reserve some.
    let names: BTreeSet<&String> = named.filter(is_memory).chain([&memory]).collect();
    let sum = |amounts: &mut dyn Iterator<Item = Quantity>| amounts.reduce(|sum, one| sum + one);
    for name in names {
        let on_nodes = sum(&mut reserved.values().filter_map(|limits| limits.get(name)).cloned());
        let texts = settings.reserved.get(name).into_iter().flatten();
        let mut parts: Vec<Quantity> =
            texts.filter_map(|text| Quantity::parse(text).ok()).collect();
        if name == "memory" {
            let free = settings.eviction.hard_minimum(Signal::Memory, topology.memory);
            let free = i64::try_from(free).unwrap_or(i64::MAX);
            parts.push(Quantity::new(free, api_meta::QuantityFormat::BinarySi));
        }
        let (on_nodes, in_total) =
            (on_nodes.unwrap_or_default(), sum(&mut parts.into_iter()).unwrap_or_default());
        if on_nodes != in_total {
            let (on_nodes, in_total) = (on_nodes.to_string(), in_total.to_string());
            return Err(PlacementError::ReservedOtherwise {
                resource: name.clone(),
                on_nodes,
                in_total,
            });
        }
    }
    Ok(())
}

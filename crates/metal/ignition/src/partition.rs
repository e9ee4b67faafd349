//! Plans the partition table of a disk.
//!
//! A start or size of zero is resolved as if all partitions of the config were removed and created in order, so that a
//! second run finds the partitions of the first.

use crate::{
    gpt::{Entry, GptError, Guid, Table},
    spec::{Disk, Partition},
};

/// The reasons why a disk cannot get the configured partitions.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    #[error(transparent)]
    Gpt(#[from] GptError),
    #[error("partition {0} should not exist and does; set wipePartitionEntry to delete it")]
    Exists(u32),
    #[error("partition {number} does not match: {why}; set wipePartitionEntry to replace it")]
    Differs { number: u32, why: String },
    #[error("partition {0}: the disk has no room for it")]
    NoRoom(u32),
    #[error("partition {number}: sectors {first} to {last} are not free")]
    Taken { number: u32, first: u64, last: u64 },
    #[error("partition {0}: number out of range, a table holds 128")]
    Number(u32),
    #[error("partition {number}: {text:?} is not a GUID")]
    Guid { number: u32, text: String },
}

/// Plans the table for a disk with a given table. `new_guid` creates GUIDs.
pub fn plan(
    current: Option<&Table>,
    empty: Table,
    disk: &Disk,
    mut new_guid: impl FnMut() -> Guid,
) -> Result<Table, PlanError> {
    let wipe = disk.wipe_table == Some(true);
    let before = current.filter(|_| !wipe).cloned().unwrap_or(empty);
    let deleted = |number: u32| {
        let mut namesakes = disk.partitions.iter().filter(|p| p.number == number);
        namesakes.any(|p| p.should_exist == Some(false))
    };
    let partitions = assign_numbers(&before, &disk.partitions, deleted)?;
    let mut layout = before.clone();
    for partition in &partitions {
        layout.set(partition.number, None);
    }
    let mut after = before.clone();
    let mut placed = Vec::new();
    for partition in &partitions {
        let current_entry = before.get(partition.number);
        let may_wipe = partition.wipe_partition_entry == Some(true);
        if partition.should_exist == Some(false) {
            match current_entry {
                Some(_) if !may_wipe => return Err(PlanError::Exists(partition.number)),
                _ => after.set(partition.number, None),
            }
            continue;
        }
        // A number of a deleted partition is used as if it were new.
        let is_deleted = deleted(partition.number);
        let existing = current_entry.filter(|_| !is_deleted);
        let mut entry = resolve_entry(&layout, partition, existing.filter(|_| !may_wipe))?;
        // A partition that is recreated at the same place after wiping or deletion keeps its identity.
        let previous = current.and_then(|table| table.get(partition.number));
        let previous = previous.filter(|old| {
            if is_deleted {
                Entry { guid: entry.guid, ..(*old).clone() } == entry
            } else {
                wipe && old.first == entry.first && old.kind == entry.kind
            }
        });
        let decided = decide(partition, &entry, existing)?;
        match decided {
            Decision::Keep(existing) => entry = existing,
            Decision::Make if entry.guid == Guid::default() => {
                entry.guid = previous.map_or_else(&mut new_guid, |old| old.guid);
            }
            Decision::Make => {}
        }
        layout.set(partition.number, Some(entry.clone()));
        after.set(partition.number, None);
        placed.push((partition.number, entry));
    }
    for (number, entry) in placed {
        let free = after.free().iter().any(|f| f.contains(&entry.first) && f.contains(&entry.last));
        if !free || entry.first > entry.last {
            return Err(PlanError::Taken { number, first: entry.first, last: entry.last });
        }
        after.set(number, Some(entry));
    }
    Ok(after)
}

enum Decision {
    Keep(Entry),
    Make,
}

/// Assigns numbers to the partitions, those without a number last. They may reuse the number of a deleted one.
fn assign_numbers(
    before: &Table,
    partitions: &[Partition],
    deleted: impl Fn(u32) -> bool,
) -> Result<Vec<Partition>, PlanError> {
    let mut out: Vec<Partition> = partitions.iter().filter(|p| p.number != 0).cloned().collect();
    for partition in partitions.iter().filter(|p| p.number == 0) {
        let label = partition.label.as_deref().unwrap_or_default();
        let exists = |p: &Partition| p.should_exist != Some(false);
        let free = |number: &u32| out.iter().all(|p| p.number != *number || !exists(p));
        // An existing partition with the label was created by an earlier run.
        let same =
            before.entries.iter().find(|(n, e)| !label.is_empty() && e.label == label && free(n));
        let number = match same {
            Some((number, _)) => *number,
            None => (1..=129)
                .find(|n| free(n) && (deleted(*n) || before.get(*n).is_none()))
                .unwrap_or(129),
        };
        out.push(Partition { number, ..partition.clone() });
    }
    // A partition to delete that does not exist needs no number.
    out.retain(|p| p.should_exist != Some(false) || p.number <= 128);
    match out.iter().find(|p| !(1..=128).contains(&p.number)) {
        Some(partition) => Err(PlanError::Number(partition.number)),
        None => Ok(out),
    }
}

/// Returns the configured entry. `existing` is the current entry, which supplies fields that the config omits.
fn resolve_entry(
    layout: &Table,
    partition: &Partition,
    existing: Option<&Entry>,
) -> Result<Entry, PlanError> {
    let number = partition.number;
    let guid = |text: &Option<String>| match text.as_deref().filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => {
            Guid::parse(text).map(Some).ok_or_else(|| PlanError::Guid { number, text: text.into() })
        }
    };
    let sectors = |mebibytes: Option<u64>| match mebibytes {
        None | Some(0) => Ok(None),
        Some(size) => layout.geometry.sectors_in(size).map(Some).ok_or(PlanError::NoRoom(number)),
    };
    let largest =
        layout.free().into_iter().max_by_key(|f| (f.end() - f.start(), u64::MAX - f.start()));
    let start = match (sectors(partition.start_mib)?, existing) {
        (Some(start), _) => Some(start),
        (None, Some(entry)) if partition.start_mib.is_none() => Some(entry.first),
        _ => None,
    };
    let room = || largest.clone().ok_or(PlanError::NoRoom(number));
    let first = match start {
        Some(start) => start,
        None => layout.geometry.aligned(*room()?.start()),
    };
    let last = match (sectors(partition.size_mib)?, existing) {
        (Some(size), _) => first.checked_add(size - 1).ok_or(PlanError::NoRoom(number))?,
        (None, Some(entry)) if partition.size_mib.is_none() && start == Some(entry.first) => {
            entry.last
        }
        _ => {
            let room = room()?;
            if !room.contains(&first) {
                return Err(PlanError::NoRoom(number));
            }
            *room.end()
        }
    };
    Ok(Entry {
        kind: guid(&partition.type_guid)?.unwrap_or(Guid::LINUX),
        guid: guid(&partition.guid)?.unwrap_or_default(),
        first,
        last,
        attributes: 0,
        label: partition.label.clone().unwrap_or_default(),
    })
}

fn decide(
    partition: &Partition,
    planned: &Entry,
    existing: Option<&Entry>,
) -> Result<Decision, PlanError> {
    let Some(existing) = existing else { return Ok(Decision::Make) };
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let mut differences = Vec::new();
    let mut compare = |what: &str, differs: bool, expected: String, actual: String| {
        if differs {
            differences.push(format!("{what} is {actual}, wanted {expected}"));
        }
    };
    let text = |number: u64| number.to_string();
    compare("start", planned.first != existing.first, text(planned.first), text(existing.first));
    let guid = is_set(&partition.guid) && planned.guid != existing.guid;
    compare("GUID", guid, planned.guid.to_string(), existing.guid.to_string());
    let kind = is_set(&partition.type_guid) && planned.kind != existing.kind;
    compare("type GUID", kind, planned.kind.to_string(), existing.kind.to_string());
    let label = partition.label.is_some() && planned.label != existing.label;
    compare("label", label, format!("{:?}", planned.label), format!("{:?}", existing.label));
    if differences.is_empty() && (planned.last == existing.last || partition.resize == Some(true)) {
        return Ok(Decision::Keep(Entry { last: planned.last, ..existing.clone() }));
    }
    if partition.wipe_partition_entry == Some(true) {
        return Ok(Decision::Make);
    }
    if planned.last != existing.last {
        let sizes = [existing, planned].map(|entry| (entry.last + 1).saturating_sub(entry.first));
        differences.push(format!("size is {} sectors, wanted {}", sizes[0], sizes[1]));
    }
    Err(PlanError::Differs { number: partition.number, why: differences.join(", ") })
}

#[cfg(test)]
mod tests;

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

/// Plans the table for a disk with a given table. `fresh` creates GUIDs.
pub fn plan(
    current: Option<&Table>,
    empty: Table,
    disk: &Disk,
    mut fresh: impl FnMut() -> Guid,
) -> Result<Table, PlanError> {
    let wipe = disk.wipe_table == Some(true);
    let before = current.filter(|_| !wipe).cloned().unwrap_or(empty);
    let deleted = |number: u32| {
        let mut named = disk.partitions.iter().filter(|p| p.number == number);
        named.any(|p| p.should_exist == Some(false))
    };
    let wanted = numbered(&before, &disk.partitions, deleted)?;
    let mut layout = before.clone();
    for partition in &wanted {
        layout.set(partition.number, None);
    }
    let mut after = before.clone();
    let mut placed = Vec::new();
    for partition in &wanted {
        let there = before.get(partition.number);
        let may_wipe = partition.wipe_partition_entry == Some(true);
        if partition.should_exist == Some(false) {
            match there {
                Some(_) if !may_wipe => return Err(PlanError::Exists(partition.number)),
                _ => after.set(partition.number, None),
            }
            continue;
        }
        // A number of a deleted partition is used as if it were new.
        let again = deleted(partition.number);
        let known = there.filter(|_| !again);
        let mut entry = resolved(&layout, partition, known.filter(|_| !may_wipe))?;
        // A partition that is recreated at the same place after wiping or deletion keeps its identity.
        let lost = current.and_then(|table| table.get(partition.number));
        let lost = lost.filter(|old| {
            if again {
                Entry { guid: entry.guid, ..(*old).clone() } == entry
            } else {
                wipe && old.first == entry.first && old.kind == entry.kind
            }
        });
        let decided = decide(partition, &entry, known)?;
        match decided {
            Decision::Keep(kept) => entry = kept,
            Decision::Make if entry.guid == Guid::default() => {
                entry.guid = lost.map_or_else(&mut fresh, |old| old.guid);
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
fn numbered(
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

/// Returns the configured entry. `kept` is the existing entry, which supplies fields that the config omits.
fn resolved(
    layout: &Table,
    partition: &Partition,
    kept: Option<&Entry>,
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
    let start = match (sectors(partition.start_mib)?, kept) {
        (Some(start), _) => Some(start),
        (None, Some(entry)) if partition.start_mib.is_none() => Some(entry.first),
        _ => None,
    };
    let room = || largest.clone().ok_or(PlanError::NoRoom(number));
    let first = match start {
        Some(start) => start,
        None => layout.geometry.aligned(*room()?.start()),
    };
    let last = match (sectors(partition.size_mib)?, kept) {
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
    wanted: &Entry,
    known: Option<&Entry>,
) -> Result<Decision, PlanError> {
    let Some(known) = known else { return Ok(Decision::Make) };
    let named = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let mut differences = Vec::new();
    let mut compare = |what: &str, differs: bool, wanted: String, found: String| {
        if differs {
            differences.push(format!("{what} is {found}, wanted {wanted}"));
        }
    };
    let text = |number: u64| number.to_string();
    compare("start", wanted.first != known.first, text(wanted.first), text(known.first));
    let guid = named(&partition.guid) && wanted.guid != known.guid;
    compare("GUID", guid, wanted.guid.to_string(), known.guid.to_string());
    let kind = named(&partition.type_guid) && wanted.kind != known.kind;
    compare("type GUID", kind, wanted.kind.to_string(), known.kind.to_string());
    let label = partition.label.is_some() && wanted.label != known.label;
    compare("label", label, format!("{:?}", wanted.label), format!("{:?}", known.label));
    if differences.is_empty() && (wanted.last == known.last || partition.resize == Some(true)) {
        return Ok(Decision::Keep(Entry { last: wanted.last, ..known.clone() }));
    }
    if partition.wipe_partition_entry == Some(true) {
        return Ok(Decision::Make);
    }
    if wanted.last != known.last {
        let sizes = [known, wanted].map(|entry| (entry.last + 1).saturating_sub(entry.first));
        differences.push(format!("size is {} sectors, wanted {}", sizes[0], sizes[1]));
    }
    Err(PlanError::Differs { number: partition.number, why: differences.join(", ") })
}

#[cfg(test)]
mod tests;

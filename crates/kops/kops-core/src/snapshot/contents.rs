//! The contents of a snapshot, read as etcd reads them when it starts.

use std::{
    collections::BTreeSet,
    io::{Read, Seek, Write},
};

use super::{
    bolt::{Bolt, Pair, fnv},
    error::Error,
};

/// The prefix of the keys of Kubernetes' objects.
pub const OBJECTS: &str = "/registry/";
/// The distance between the revisions of a backup and of the restored store, as etcd's documentation recommends. It
/// exceeds the revisions that were written after the backup, so that no client takes a new revision for an old one.
const REVISION_STEP: u64 = 1_000_000_000;
/// The largest number of objects that is counted; no cluster has as many.
const MOST_OBJECTS: usize = 5_000_000;
const BOTH_COMPACTIONS: [&str; 2] = ["finishedCompactRev", "scheduledCompactRev"];

/// Reads and verifies everything of a database. Returns the revision at which the restored store starts.
pub(super) fn restored_revision<F: Read + Write + Seek>(
    bolt: &mut Bolt<'_, F>,
) -> Result<u64, Error> {
    let mut newest = 0;
    // Objects are identified by their keys' hashes, so that long keys need no memory.
    let mut objects = BTreeSet::new();
    bolt.visit(&mut |bucket, key, value| {
        if bucket != b"key" {
            return Ok(());
        }
        let change = Change::read(key, value)?;
        newest = newest.max(change.revision);
        if !change.key.starts_with(OBJECTS.as_bytes()) {
            return Ok(());
        }
        if change.deleted {
            objects.remove(&fnv(change.key));
        } else if objects.len() < MOST_OBJECTS {
            objects.insert(fnv(change.key));
        }
        Ok(())
    })?;
    if objects.is_empty() {
        return Err(Error::NoObjects);
    }
    for (key, value) in bolt.pairs("meta")? {
        if BOTH_COMPACTIONS.iter().any(|name| name.as_bytes() == key) {
            newest = newest.max(main_revision(&value)?);
        }
    }
    let restored = newest.checked_add(REVISION_STEP).filter(|next| i64::try_from(*next).is_ok());
    restored.ok_or(Error::Damaged("its revision is larger than any"))
}

/// Changes the bucket `meta`: the log starts at `index` in `term`, and revisions before `revision` are compacted. A
/// client that has seen a revision after the backup then lists again, instead of missing the changes of the new store.
pub(super) fn set_meta(pairs: &mut Vec<Pair>, index: u64, term: u64, revision: u64) {
    let mut main = revision.to_be_bytes().to_vec();
    main.push(b'_');
    main.extend_from_slice(&[0; 8]);
    let number = |number: u64| number.to_be_bytes().to_vec();
    let mut new = vec![("consistent_index", number(index))];
    new.extend(BOTH_COMPACTIONS.map(|name| (name, main.clone())));
    // etcd 3.4 and older write no term.
    if pairs.iter().any(|(key, _)| key == b"term") {
        new.push(("term", number(term)));
    }
    pairs.retain(|(key, _)| new.iter().all(|(name, _)| name.as_bytes() != key));
    pairs.extend(new.into_iter().map(|(name, value)| (name.as_bytes().to_vec(), value)));
}

/// A change of a key, as stored in the bucket `key`.
struct Change<'a> {
    revision: u64,
    deleted: bool,
    key: &'a [u8],
}

impl<'a> Change<'a> {
    /// Reads a change: its revision, with a mark if it is a deletion, and a protobuf message of type KeyValue.
    fn read(revision: &[u8], value: &'a [u8]) -> Result<Self, Error> {
        const WRONG: Error = Error::Damaged("a value is not of etcd's form");
        let deleted = match revision.get(17..) {
            Some([]) => false,
            Some([b't']) => true,
            _ => return Err(WRONG_REVISION),
        };
        let revision = main_revision(revision.get(..17).unwrap_or_default())?;
        let (mut rest, mut key) = (value, &[][..]);
        while !rest.is_empty() {
            let tag = varint(&mut rest).ok_or(WRONG)?;
            let part = varint(&mut rest).ok_or(WRONG)?;
            match (tag >> 3, tag & 7) {
                (1..=6, 0) => {}
                (number @ 1..=6, 2) => {
                    let length = usize::try_from(part).ok();
                    let (bytes, after) =
                        length.and_then(|length| rest.split_at_checked(length)).ok_or(WRONG)?;
                    rest = after;
                    if number == 1 {
                        key = bytes;
                    }
                }
                _ => return Err(WRONG),
            }
        }
        Ok(Self { revision, deleted, key })
    }
}

const WRONG_REVISION: Error = Error::Damaged("a revision is not of etcd's form");

/// Returns the main part of a revision, which etcd writes as `MAIN_SUB`.
fn main_revision(bytes: &[u8]) -> Result<u64, Error> {
    match bytes.split_first_chunk::<8>() {
        Some((main, [b'_', sub @ ..])) if sub.len() == 8 => Ok(u64::from_be_bytes(*main)),
        _ => Err(WRONG_REVISION),
    }
}

/// Reads a protobuf number from the start of `bytes`.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

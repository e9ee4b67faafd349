//! The append-only log: segments of frames, the last of them open for writing.
//!
//! Invariants: a frame is written only after the one before it is durable. `good` is the durable length of the open
//! segment. After a failed write the torn tail is cut back to `good`. After a failed sync the kernel may mark lost
//! pages as clean, so that file is never appended to again. A new segment then records its valid length.

use std::{io, sync::Arc};

use super::{frame, record::SegmentHeader};
use crate::{
    disk::{Disk, DiskFile},
    error::Error,
    key_value::Revision,
};

const PREFIX: &str = "log-";
pub(super) const TEMPORARY: &str = ".tmp";

pub(super) fn segment_name(sequence: u64) -> String {
    format!("{PREFIX}{sequence:016}")
}

pub(super) fn segment_sequence(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// A write that failed, or whose outcome is unknown.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    NoSpace(String),
    #[error("{0}")]
    Unavailable(String),
}

impl Failure {
    fn new(disk: &dyn Disk, name: &str, operation: &str, error: &io::Error) -> Self {
        let path = disk.path(name);
        if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            Self::NoSpace(format!("{operation} {path}: {error}; free space on its disk"))
        } else {
            Self::Unavailable(format!("{operation} {path}: {error}"))
        }
    }

    pub(crate) fn to_error(&self) -> Error {
        match self.clone() {
            Self::NoSpace(detail) => Error::NoSpace { detail },
            Self::Unavailable(detail) => Error::Unavailable { operation: "write", detail },
        }
    }
}

/// The segment open for writing.
pub(crate) struct Segment {
    pub(super) sequence: u64,
    pub(super) id: u64,
    pub(super) file: Box<dyn DiskFile>,
    pub(super) good: u64,
}

enum Damage {
    /// A write failed: the file may be longer than `good`.
    Torn,
    /// A sync failed: bytes beyond `good` cannot be trusted, not even after another sync.
    Unsynced,
}

/// The log of a store.
pub(super) struct Log {
    disk: Arc<dyn Disk>,
    current: Segment,
    /// The sequence and length of the segments before the current one.
    sealed: Vec<(u64, u64)>,
    damage: Option<Damage>,
}

impl Log {
    pub(super) fn new(disk: Arc<dyn Disk>, current: Segment, sealed: Vec<(u64, u64)>) -> Self {
        Self { disk, current, sealed, damage: None }
    }

    /// Returns the length of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.current.good + self.sealed.iter().map(|(_, length)| length).sum::<u64>()
    }

    /// Writes a frame (begun by [`frame::begin`]) and makes it durable. `first_revision` is that of its first write.
    pub(super) fn append(
        &mut self,
        buffer: &mut [u8],
        first_revision: Revision,
    ) -> Result<(), Failure> {
        self.repair(first_revision)?;
        let Segment { sequence, id, file, good } = &mut self.current;
        frame::seal(buffer, *id, *good);
        let name = segment_name(*sequence);
        if let Err(error) = file.write_at(*good, buffer) {
            self.damage = Some(Damage::Torn);
            let failure = Failure::new(&*self.disk, &name, "write", &error);
            // Cut now rather than at the next write: the torn tail takes space that other writes may need.
            let _ = self.repair(first_revision);
            return Err(failure);
        }
        if let Err(error) = file.sync_data() {
            self.damage = Some(Damage::Unsynced);
            let detail = format!("sync {}: {error}", self.disk.path(&name));
            return Err(Failure::Unavailable(detail));
        }
        *good += buffer.len() as u64;
        Ok(())
    }

    fn repair(&mut self, first_revision: Revision) -> Result<(), Failure> {
        let cut = match self.damage {
            None => return Ok(()),
            Some(Damage::Torn) => self.current.file.truncate(self.current.good).is_ok(),
            Some(Damage::Unsynced) => {
                // Only spares recovery the torn tail; the new segment's header records the valid length.
                let _ = self.current.file.truncate(self.current.good);
                false
            }
        };
        if cut {
            self.damage = None;
            return Ok(());
        }
        self.rotate(first_revision)
    }

    /// Seals the current segment and starts the next, whose first write will have `first_revision`.
    pub(super) fn rotate(&mut self, first_revision: Revision) -> Result<(), Failure> {
        let sequence = self.current.sequence + 1;
        let next = create_segment(&*self.disk, sequence, first_revision, self.current.good)?;
        self.sealed.push((self.current.sequence, self.current.good));
        self.current = next;
        self.damage = None;
        Ok(())
    }

    /// Returns the names of the segments before the current one.
    pub(super) fn sealed_names(&self) -> Vec<String> {
        self.sealed.iter().map(|(sequence, _)| segment_name(*sequence)).collect()
    }

    /// Drops sealed segments that have been removed from the disk.
    pub(super) fn forget(&mut self, names: &[String]) {
        self.sealed.retain(|(sequence, _)| !names.contains(&segment_name(*sequence)));
    }
}

/// Creates a segment under a temporary name and renames it once its header is durable. So recovery never finds a
/// segment without a header.
pub(crate) fn create_segment(
    disk: &dyn Disk,
    sequence: u64,
    first_revision: Revision,
    previous_length: u64,
) -> Result<Segment, Failure> {
    let name = segment_name(sequence);
    let temporary = format!("{name}{TEMPORARY}");
    let id = rt::random();
    let mut buffer = Vec::new();
    frame::begin(&mut buffer);
    SegmentHeader { id, first_revision, previous_length }.encode(&mut buffer);
    frame::seal(&mut buffer, 0, 0);
    let create = || {
        let mut file = disk.create(&temporary)?;
        file.write_at(0, &buffer)?;
        file.sync_data()?;
        disk.rename(&temporary, &name)?;
        disk.sync()?;
        Ok(file)
    };
    match create() {
        Ok(file) => Ok(Segment { sequence, id, file, good: buffer.len() as u64 }),
        Err(error) => Err(Failure::new(disk, &name, "begin log segment", &error)),
    }
}

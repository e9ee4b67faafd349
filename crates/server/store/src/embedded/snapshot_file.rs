//! Snapshot files: a whole index, which replaces the log before it and shortens the start.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    frame::{self, FrameReader, NextFrame},
    index::{Dump, Index, Version},
    log::TEMPORARY,
    record::{self, SnapshotHeader},
};
use crate::{
    disk::{Disk, DiskFile},
    error::{Error, Result},
    key_value::Revision,
};

const PREFIX: &str = "snapshot-";
const CHUNK: usize = 1 << 20;

pub(crate) fn name(revision: Revision) -> String {
    format!("{PREFIX}{revision:020}")
}

pub(super) fn revision(name: &str) -> Option<Revision> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// Writes a snapshot under a temporary name, makes it durable and renames it. Returns its length. `cancel` ends the
/// work early with an error.
pub(crate) fn write(
    disk: &dyn Disk,
    name: &str,
    dump: &Dump,
    cancel: &AtomicBool,
) -> io::Result<u64> {
    let temporary = format!("{name}{TEMPORARY}");
    let written = write_versions(&mut *disk.create(&temporary)?, dump, cancel).and_then(|length| {
        disk.rename(&temporary, name)?;
        disk.sync()?;
        Ok(length)
    });
    if written.is_err() {
        let _ = disk.remove(&temporary);
    }
    written
}

fn write_versions(file: &mut dyn DiskFile, dump: &Dump, cancel: &AtomicBool) -> io::Result<u64> {
    let id = rt::random();
    let mut offset = 0;
    let mut buffer = Vec::with_capacity(CHUNK + CHUNK / 4);
    frame::begin(&mut buffer);
    let versions = dump.versions.len() as u64;
    SnapshotHeader { id, revision: dump.revision, floor: dump.floor, versions }.encode(&mut buffer);
    frame::seal(&mut buffer, 0, 0);
    let mut flush = |buffer: &mut Vec<u8>| {
        file.write_at(offset, buffer)?;
        offset += buffer.len() as u64;
        frame::begin(buffer);
        io::Result::Ok(offset)
    };
    let mut at = flush(&mut buffer)?;
    for (key, version) in &dump.versions {
        record::put_version(&mut buffer, key, version);
        if buffer.len() >= CHUNK {
            frame::seal(&mut buffer, id, at);
            at = flush(&mut buffer)?;
            if cancel.load(Ordering::Relaxed) {
                return Err(io::Error::other("the store is shutting down"));
            }
        }
    }
    if buffer.len() > frame::HEADER {
        frame::seal(&mut buffer, id, at);
        at = flush(&mut buffer)?;
    }
    file.sync_data()?;
    Ok(at)
}

/// Reads a whole snapshot. `path` names it in errors.
pub(crate) fn read(file: &dyn DiskFile, path: &str) -> Result<Index> {
    let io = |source| Error::Io { operation: "read snapshot", path: path.to_owned(), source };
    let corrupt = |offset, detail: String| Error::Corrupt { file: path.to_owned(), offset, detail };
    let length = file.length().map_err(io)?;
    let mut frames = FrameReader::new(file, 0, 0, length);
    let header = match frames.next().map_err(io)? {
        NextFrame::Frame { payload, .. } => {
            SnapshotHeader::decode(payload).map_err(|error| corrupt(0, error.to_string()))?
        }
        NextFrame::End => return Err(corrupt(0, "the file is empty".to_owned())),
        NextFrame::Bad { offset, detail } => return Err(corrupt(offset, detail.to_owned())),
    };
    frames.set_id(header.id);
    let mut versions = Versions { frames, pending: Vec::new().into_iter(), found: 0, path };
    let index = Index::load(header.revision, header.floor, &mut versions)?;
    if versions.found != header.versions {
        let detail = format!("it holds {} of its {} versions", versions.found, header.versions);
        return Err(corrupt(length, detail));
    }
    index.ok_or_else(|| corrupt(0, "its revisions have gaps".to_owned()))
}

/// The versions of a snapshot, decoded one frame at a time.
struct Versions<'a> {
    frames: FrameReader<'a>,
    pending: std::vec::IntoIter<(Arc<str>, Version)>,
    found: u64,
    path: &'a str,
}

impl Versions<'_> {
    fn refill(&mut self) -> Result<()> {
        let path = self.path;
        let corrupt =
            |offset, detail: String| Error::Corrupt { file: path.to_owned(), offset, detail };
        let next = self.frames.next().map_err(|source| Error::Io {
            operation: "read snapshot",
            path: path.to_owned(),
            source,
        })?;
        let (offset, mut payload) = match next {
            NextFrame::End => return Ok(()),
            NextFrame::Bad { offset, detail } => return Err(corrupt(offset, detail.to_owned())),
            NextFrame::Frame { offset, payload } => (offset, payload),
        };
        let mut versions = Vec::new();
        while !payload.is_empty() {
            let (key, version) = record::take_version(&mut payload)
                .map_err(|error| corrupt(offset, error.to_string()))?;
            versions.push((key.into(), version));
        }
        self.found += versions.len() as u64;
        self.pending = versions.into_iter();
        Ok(())
    }
}

impl Iterator for &mut Versions<'_> {
    type Item = Result<(Arc<str>, Version)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.pending.len() == 0
            && let Err(error) = self.refill()
        {
            return Some(Err(error));
        }
        self.pending.next().map(Ok)
    }
}

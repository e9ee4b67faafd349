//! Recovers the store from disk: reads the newest snapshot, then replays the log after it.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    frame::{self, FrameReader, NextFrame},
    index::{FIRST_REVISION, Index, successor, tombstone},
    log::{self, Log, Segment, TEMPORARY, create_segment, segment_name, segment_sequence},
    record::{self, RecordError, SegmentHeader, Step},
    snapshot_file,
};
use crate::{
    disk::{Disk, DiskFile},
    error::{Error, Result},
    key_value::Revision,
    watch::{Change, ChangeKind},
};

/// The recovered state of a store.
pub(super) struct RecoveredStore {
    pub(super) index: Index,
    pub(super) log: Log,
    /// The name and length of the snapshot that was read.
    pub(super) snapshot: Option<(String, u64)>,
}

/// A segment whose header has been read.
struct SegmentFile {
    sequence: u64,
    header: SegmentHeader,
    file: Box<dyn DiskFile>,
    /// The offset of the first frame after the header.
    start: u64,
    length: u64,
}

pub(super) fn recover(disk: Arc<dyn Disk>, history_bytes: u64) -> Result<RecoveredStore> {
    let names = disk.list().map_err(|source| io(&*disk, "list", "", source))?;
    for name in names.iter().filter(|name| name.ends_with(TEMPORARY)) {
        remove(&*disk, name)?;
    }
    let (mut index, snapshot) = newest_snapshot(&*disk, &names)?;
    let mut segments = needed_segments(&*disk, &names, index.revision())?;
    let Some(last) = segments.pop() else {
        return fresh(disk, index, snapshot);
    };
    let mut sealed = Vec::new();
    for (at, segment) in segments.iter().enumerate() {
        let next = segments.get(at + 1).unwrap_or(&last);
        replay_sealed(&*disk, segment, &next.header, &mut index, history_bytes)?;
        sealed.push((segment.sequence, next.header.previous_length));
    }
    let current = reopen(&*disk, last, &mut index, history_bytes)?;
    Ok(RecoveredStore { index, log: Log::new(disk, current, sealed), snapshot })
}

fn fresh(
    disk: Arc<dyn Disk>,
    index: Index,
    snapshot: Option<(String, u64)>,
) -> Result<RecoveredStore> {
    if let Some((name, _)) = snapshot {
        let detail = "the log that belongs to this snapshot is missing".to_owned();
        return Err(Error::Corrupt { file: disk.path(&name), offset: 0, detail });
    }
    let first =
        create_segment(&*disk, 1, index.revision() + 1, 0).map_err(|failure| failure.to_error())?;
    Ok(RecoveredStore { index, log: Log::new(disk, first, Vec::new()), snapshot: None })
}

fn newest_snapshot(disk: &dyn Disk, names: &[String]) -> Result<(Index, Option<(String, u64)>)> {
    let mut revisions: Vec<Revision> =
        names.iter().filter_map(|name| snapshot_file::revision(name)).collect();
    revisions.sort_unstable();
    let Some(newest) = revisions.pop() else {
        return Ok((Index::new(FIRST_REVISION, FIRST_REVISION), None));
    };
    let name = snapshot_file::name(newest);
    let open = |source| io(disk, "open snapshot", &name, source);
    let file = disk.open(&name).map_err(open)?;
    let length = file.length().map_err(open)?;
    let index = snapshot_file::read(&*file, &disk.path(&name))?;
    for old in revisions {
        remove(disk, &snapshot_file::name(old))?;
    }
    Ok((index, Some((name, length))))
}

/// Opens the segments with writes after `revision`, in order and without a gap; removes older ones.
fn needed_segments(
    disk: &dyn Disk,
    names: &[String],
    revision: Revision,
) -> Result<Vec<SegmentFile>> {
    let mut sequences: Vec<u64> = names.iter().filter_map(|name| segment_sequence(name)).collect();
    sequences.sort_unstable();
    let mut segments = Vec::new();
    for sequence in sequences.into_iter().rev() {
        if let Some(next) = segments.last().map(|found: &SegmentFile| found.sequence)
            && next != sequence + 1
        {
            let detail = format!("segment {} before it is missing", segment_name(next - 1));
            return Err(corrupt(disk, next, 0, detail));
        }
        let found = open_segment(disk, sequence)?;
        let reaches_back = found.header.first_revision <= revision + 1;
        segments.push(found);
        if reaches_back {
            break;
        }
    }
    segments.reverse();
    let Some(first) = segments.first() else { return Ok(segments) };
    if first.header.first_revision > revision + 1 {
        let detail = format!(
            "it begins at revision {}, but the data before it ends at {revision}",
            first.header.first_revision
        );
        return Err(corrupt(disk, first.sequence, 0, detail));
    }
    for name in names {
        if segment_sequence(name).is_some_and(|sequence| sequence < first.sequence) {
            remove(disk, name)?;
        }
    }
    Ok(segments)
}

fn open_segment(disk: &dyn Disk, sequence: u64) -> Result<SegmentFile> {
    let name = segment_name(sequence);
    let open = |source| io(disk, "open log segment", &name, source);
    let file = disk.open(&name).map_err(open)?;
    let length = file.length().map_err(open)?;
    let mut frames = FrameReader::new(&*file, 0, 0, length);
    let header = match frames.next().map_err(open)? {
        NextFrame::Frame { payload, .. } => SegmentHeader::decode(payload)
            .map_err(|error| corrupt(disk, sequence, 0, error.to_string()))?,
        NextFrame::End => return Err(corrupt(disk, sequence, 0, "the file is empty".to_owned())),
        NextFrame::Bad { offset, detail } => {
            return Err(corrupt(disk, sequence, offset, detail.to_owned()));
        }
    };
    let start = frames.offset();
    Ok(SegmentFile { sequence, header, file, start, length })
}

/// The position at which replay stopped.
struct ReplayEnd {
    /// The end of the last good frame, and the offset at which that frame begins.
    good: u64,
    last_frame: u64,
    /// The revision of the next write.
    next: Revision,
    bad: Option<&'static str>,
}

/// Replays a sealed segment. Every byte within the length in the next segment's header was acknowledged.
fn replay_sealed(
    disk: &dyn Disk,
    segment: &SegmentFile,
    next: &SegmentHeader,
    index: &mut Index,
    history_bytes: u64,
) -> Result<()> {
    let length = next.previous_length;
    let bad = |offset, detail| Err(corrupt(disk, segment.sequence, offset, detail));
    if length > segment.length {
        let detail = format!("the file ends before {length}, where the next segment takes over");
        return bad(segment.length, detail);
    }
    let stop = replay_until(disk, segment, length, index, history_bytes)?;
    if let Some(detail) = stop.bad {
        return bad(stop.good, detail.to_owned());
    }
    if stop.next != next.first_revision {
        let detail = format!(
            "it ends before revision {}, the next segment begins at {}",
            stop.next, next.first_revision
        );
        return bad(stop.good, detail);
    }
    Ok(())
}

/// Replays the last segment, cuts a torn tail off and makes the rest durable.
fn reopen(
    disk: &dyn Disk,
    mut segment: SegmentFile,
    index: &mut Index,
    history_bytes: u64,
) -> Result<Segment> {
    let stop = replay_until(disk, &segment, segment.length, index, history_bytes)?;
    let name = segment_name(segment.sequence);
    let failed = |source| io(disk, "repair log segment", &name, source);
    if let Some(detail) = stop.bad {
        let rest = segment.length - stop.good;
        if frame::any_frame(&*segment.file, segment.header.id, stop.good + 1, segment.length)
            .map_err(failed)?
        {
            let detail = format!("{detail}, but good frames follow");
            return Err(corrupt(disk, segment.sequence, stop.good, detail));
        }
        tracing::warn!(
            file = %disk.path(&name), offset = stop.good, bytes = rest, detail,
            "cut the torn tail of the log; it was never acknowledged"
        );
        segment.file.truncate(stop.good).map_err(failed)?;
    }
    // The last frame may be only in the page cache, and an earlier failed sync may have marked it clean. Write it again
    // and sync before anyone reads its changes.
    let mut last = vec![0; (stop.good - stop.last_frame) as usize];
    let read = segment.file.read_at(stop.last_frame, &mut last).map_err(failed)?;
    segment.file.write_at(stop.last_frame, &last[..read]).map_err(failed)?;
    segment.file.sync_data().map_err(failed)?;
    disk.sync().map_err(failed)?;
    Ok(Segment {
        sequence: segment.sequence,
        id: segment.header.id,
        file: segment.file,
        good: stop.good,
    })
}

fn replay_until(
    disk: &dyn Disk,
    segment: &SegmentFile,
    length: u64,
    index: &mut Index,
    history_bytes: u64,
) -> Result<ReplayEnd> {
    let name = segment_name(segment.sequence);
    let mut frames = FrameReader::new(&*segment.file, segment.header.id, segment.start, length);
    let mut last_frame = 0;
    let mut expected = segment.header.first_revision;
    loop {
        match frames.next().map_err(|source| io(disk, "read log segment", &name, source))? {
            NextFrame::End => {
                return Ok(ReplayEnd { good: length, last_frame, next: expected, bad: None });
            }
            NextFrame::Bad { offset, detail } => {
                return Ok(ReplayEnd {
                    good: offset,
                    last_frame,
                    next: expected,
                    bad: Some(detail),
                });
            }
            NextFrame::Frame { offset, payload } => {
                let bad =
                    |error: RecordError| corrupt(disk, segment.sequence, offset, error.to_string());
                expected = replay_frame(payload, expected, index).map_err(bad)?;
                index.compact_to_bytes(history_bytes, usize::MAX);
                last_frame = offset;
            }
        }
    }
}

/// Applies one frame and returns the first revision of the next.
fn replay_frame(
    mut payload: &[u8],
    expected: Revision,
    index: &mut Index,
) -> Result<Revision, RecordError> {
    let mut revision = record::take_first_revision(&mut payload)?;
    if revision != expected {
        return Err(RecordError::Revision { found: revision, expected });
    }
    while !payload.is_empty() {
        let step = Step::decode(&mut payload)?;
        if let Step::Compact { revision } = step {
            index.compact(revision, usize::MAX);
            continue;
        }
        // Skip revisions that the snapshot contains.
        if revision > index.revision() {
            apply(index, &step, revision);
        }
        revision += 1;
    }
    Ok(revision)
}

fn apply(index: &mut Index, step: &Step<'_>, revision: Revision) {
    let (key, value, expires) = match *step {
        Step::Put { key, value, expires } => (key, Some(Bytes::copy_from_slice(value)), expires),
        Step::Delete { key } => (key, None, 0),
        Step::Compact { .. } => return,
    };
    let previous = index.get(key);
    let key: Arc<str> = previous.as_ref().map_or_else(|| key.into(), |kv| kv.key.clone());
    let change = match value {
        Some(value) => Change {
            kind: ChangeKind::Put,
            kv: successor(previous.as_ref(), &key, value, revision),
        },
        None => Change { kind: ChangeKind::Delete, kv: tombstone(&key, revision) },
    };
    index.apply(&change, expires);
}

fn remove(disk: &dyn Disk, name: &str) -> Result<()> {
    disk.remove(name).map_err(|source| io(disk, "remove", name, source))
}

fn io(disk: &dyn Disk, operation: &'static str, name: &str, source: std::io::Error) -> Error {
    Error::Io { operation, path: disk.path(name), source }
}

fn corrupt(disk: &dyn Disk, sequence: u64, offset: u64, detail: String) -> Error {
    Error::Corrupt { file: disk.path(&log::segment_name(sequence)), offset, detail }
}

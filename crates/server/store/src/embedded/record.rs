//! The encoding of the records in frames of a log or a snapshot.
//!
//! All integers are little-endian. The frame's checksum has been verified, so a payload that does not decode is
//! corruption.

use bytes::{Buf, BufMut, Bytes, TryGetError};

use super::index::Version;
use crate::key_value::Revision;

const FORMAT: u32 = 1;

/// The reason why a payload does not decode.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("a record ends early")]
    Short,
    #[error("a record holds an unknown tag or trailing bytes")]
    Unknown,
    #[error("a key is not UTF-8")]
    Key,
    #[error("format {0} is newer than this program knows")]
    Format(u32),
    #[error("revision {found} where {expected} was expected")]
    Revision { found: Revision, expected: Revision },
}

impl From<TryGetError> for RecordError {
    fn from(_: TryGetError) -> Self {
        Self::Short
    }
}

/// The first frame of a log segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// The segment's random identity, which is part of every later frame's checksum.
    pub(super) id: u64,
    /// The revision of the first write in this segment.
    pub(super) first_revision: Revision,
    /// The valid length of the segment before this one. Bytes beyond it were never acknowledged.
    pub(super) previous_length: u64,
}

impl SegmentHeader {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32_le(FORMAT);
        out.put_u64_le(self.id);
        out.put_u64_le(self.first_revision);
        out.put_u64_le(self.previous_length);
    }

    pub(super) fn decode(mut payload: &[u8]) -> Result<Self, RecordError> {
        format(&mut payload)?;
        let header = Self {
            id: payload.try_get_u64_le()?,
            first_revision: payload.try_get_u64_le()?,
            previous_length: payload.try_get_u64_le()?,
        };
        end(payload, header)
    }
}

/// The first frame of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SnapshotHeader {
    pub(super) id: u64,
    pub(super) revision: Revision,
    pub(super) floor: Revision,
    /// The number of versions that follow; reveals a snapshot that ends early.
    pub(super) versions: u64,
}

impl SnapshotHeader {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32_le(FORMAT);
        out.put_u64_le(self.id);
        out.put_u64_le(self.revision);
        out.put_u64_le(self.floor);
        out.put_u64_le(self.versions);
    }

    pub(super) fn decode(mut payload: &[u8]) -> Result<Self, RecordError> {
        format(&mut payload)?;
        let header = Self {
            id: payload.try_get_u64_le()?,
            revision: payload.try_get_u64_le()?,
            floor: payload.try_get_u64_le()?,
            versions: payload.try_get_u64_le()?,
        };
        end(payload, header)
    }
}

/// A step of a log. Puts and deletes take one revision each, starting at the frame's first.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    Put { key: &'a str, value: &'a [u8], expires: u64 },
    Delete { key: &'a str },
    Compact { revision: Revision },
}

const PUT: u8 = 1;
const DELETE: u8 = 2;
const COMPACT: u8 = 3;

/// Writes the beginning of a log frame's payload.
pub(super) fn put_first_revision(out: &mut Vec<u8>, revision: Revision) {
    out.put_u64_le(revision);
}

pub(super) fn take_first_revision(payload: &mut &[u8]) -> Result<Revision, RecordError> {
    Ok(payload.try_get_u64_le()?)
}

impl<'a> Step<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Step::Put { key, value, expires } => {
                out.put_u8(PUT);
                put_bytes(out, key.as_bytes());
                out.put_u64_le(*expires);
                put_bytes(out, value);
            }
            Step::Delete { key } => {
                out.put_u8(DELETE);
                put_bytes(out, key.as_bytes());
            }
            Step::Compact { revision } => {
                out.put_u8(COMPACT);
                out.put_u64_le(*revision);
            }
        }
    }

    pub(super) fn decode(payload: &mut &'a [u8]) -> Result<Self, RecordError> {
        Ok(match payload.try_get_u8()? {
            PUT => {
                let key = take_key(payload)?;
                let expires = payload.try_get_u64_le()?;
                Step::Put { key, value: take_bytes(payload)?, expires }
            }
            DELETE => Step::Delete { key: take_key(payload)? },
            COMPACT => Step::Compact { revision: payload.try_get_u64_le()? },
            _ => return Err(RecordError::Unknown),
        })
    }
}

/// Writes one version of a key to a snapshot. A deletion has no value.
pub(super) fn put_version(out: &mut Vec<u8>, key: &str, version: &Version) {
    put_bytes(out, key.as_bytes());
    out.put_u64_le(version.mod_revision);
    out.put_u64_le(version.create_revision);
    out.put_u64_le(version.version);
    out.put_u64_le(version.expires);
    out.put_u8(u8::from(version.value.is_some()));
    put_bytes(out, version.value.as_deref().unwrap_or_default());
}

pub(super) fn take_version<'a>(payload: &mut &'a [u8]) -> Result<(&'a str, Version), RecordError> {
    let key = take_key(payload)?;
    let mod_revision = payload.try_get_u64_le()?;
    let create_revision = payload.try_get_u64_le()?;
    let version = payload.try_get_u64_le()?;
    let expires = payload.try_get_u64_le()?;
    let live = payload.try_get_u8()? == 1;
    let bytes = take_bytes(payload)?;
    // Copy the exact size: a slice would keep the whole read window alive.
    let value = live.then(|| Bytes::copy_from_slice(bytes));
    Ok((key, Version { mod_revision, create_revision, version, expires, value }))
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.extend_from_slice(bytes);
}

fn take_bytes<'a>(payload: &mut &'a [u8]) -> Result<&'a [u8], RecordError> {
    let length = payload.try_get_u32_le()? as usize;
    let (bytes, rest) = payload.split_at_checked(length).ok_or(RecordError::Short)?;
    *payload = rest;
    Ok(bytes)
}

fn take_key<'a>(payload: &mut &'a [u8]) -> Result<&'a str, RecordError> {
    std::str::from_utf8(take_bytes(payload)?).map_err(|_| RecordError::Key)
}

fn format(payload: &mut &[u8]) -> Result<(), RecordError> {
    match payload.try_get_u32_le()? {
        FORMAT => Ok(()),
        other => Err(RecordError::Format(other)),
    }
}

fn end<T>(payload: &[u8], value: T) -> Result<T, RecordError> {
    if payload.has_remaining() { Err(RecordError::Unknown) } else { Ok(value) }
}

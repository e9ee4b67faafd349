//! Frames: the unit that is written, verified and torn as a whole.
//!
//! A frame is `magic, length, checksum, payload`. The checksum also covers the file's random identity and the frame's
//! offset. So neither a stale block nor a value that looks like a frame is accepted as one. A log writes a frame only
//! after the one before it is durable. So at most the last frame of a log can be torn, and a good frame after a bad one
//! proves corruption.

use std::io;

use crate::disk::DiskFile;

pub(super) const HEADER: usize = 12;
/// The largest payload; a longer length field is corrupt.
pub(super) const MAX_PAYLOAD: usize = 16 << 20;

const MAGIC: [u8; 4] = *b"wlf1";
const WINDOW: usize = 1 << 20;

/// Clears `buffer` and reserves the header; the caller appends the payload.
pub(super) fn begin(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(HEADER, 0);
}

/// Fills in the header of a frame for `offset` of the file with identity `id`.
pub(super) fn seal(buffer: &mut [u8], id: u64, offset: u64) {
    let (header, payload) = buffer.split_at_mut(HEADER);
    header[0..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[8..12].copy_from_slice(&checksum(id, offset, payload).to_le_bytes());
}

fn checksum(id: u64, offset: u64, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&id.to_le_bytes());
    hasher.update(&offset.to_le_bytes());
    hasher.update(&(payload.len() as u32).to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// The next frame of a file.
pub(super) enum NextFrame<'a> {
    Frame {
        offset: u64,
        payload: &'a [u8],
    },
    End,
    /// The bytes at `offset` are not a whole frame.
    Bad {
        offset: u64,
        detail: &'static str,
    },
}

/// Reads frames in order through a window, which bounds the memory for a large file.
pub(super) struct FrameReader<'a> {
    file: &'a dyn DiskFile,
    id: u64,
    offset: u64,
    end: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> FrameReader<'a> {
    pub(super) fn new(file: &'a dyn DiskFile, id: u64, offset: u64, end: u64) -> Self {
        Self { file, id, offset, end, window: Vec::new(), window_at: offset }
    }

    /// Returns the offset of the next frame.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Sets the file's identity, which is known once its first frame has been read.
    pub(super) fn set_id(&mut self, id: u64) {
        self.id = id;
    }

    pub(super) fn next(&mut self) -> io::Result<NextFrame<'_>> {
        let offset = self.offset;
        if offset == self.end {
            return Ok(NextFrame::End);
        }
        let bad = |detail| Ok(NextFrame::Bad { offset, detail });
        if !self.load(HEADER)? {
            return bad("the file ends within a frame's header");
        }
        let header = &self.window[self.position()..][..HEADER];
        if header[0..4] != MAGIC {
            return bad("no frame begins here");
        }
        let length = u32_at(header, 4) as usize;
        let expected = u32_at(header, 8);
        if length > MAX_PAYLOAD {
            return bad("the frame's length is impossible");
        }
        if !self.load(HEADER + length)? {
            return bad("the file ends within a frame");
        }
        let start = self.position() + HEADER;
        if checksum(self.id, offset, &self.window[start..start + length]) != expected {
            return bad("the frame's checksum does not match");
        }
        self.offset += (HEADER + length) as u64;
        Ok(NextFrame::Frame { offset, payload: &self.window[start..start + length] })
    }

    fn position(&self) -> usize {
        (self.offset - self.window_at) as usize
    }

    /// Loads `needed` bytes from the current offset; returns `false` if the file ends before.
    fn load(&mut self, needed: usize) -> io::Result<bool> {
        if self.end - self.offset < needed as u64 {
            return Ok(false);
        }
        let position = self.position();
        if self.window.len() >= position + needed {
            return Ok(true);
        }
        self.window.drain(..position);
        self.window_at = self.offset;
        let have = self.window.len();
        let wanted = needed.max(WINDOW).min((self.end - self.offset) as usize);
        self.window.resize(wanted, 0);
        let read = self.file.read_at(self.offset + have as u64, &mut self.window[have..])?;
        self.window.truncate(have + read);
        Ok(self.window.len() >= needed)
    }
}

/// Reports whether a good frame begins anywhere in `[from, end)`.
pub(super) fn any_frame(file: &dyn DiskFile, id: u64, from: u64, end: u64) -> io::Result<bool> {
    let mut bytes = vec![0; (end - from) as usize];
    let read = file.read_at(from, &mut bytes)?;
    bytes.truncate(read);
    Ok((0..bytes.len().saturating_sub(HEADER - 1)).any(|at| {
        let candidate = &bytes[at..];
        let length = u32_at(candidate, 4) as usize;
        candidate[0..4] == MAGIC
            && length <= MAX_PAYLOAD
            && candidate.len() >= HEADER + length
            && checksum(id, from + at as u64, &candidate[HEADER..HEADER + length])
                == u32_at(candidate, 8)
    }))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

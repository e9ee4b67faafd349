//! Connections of callers that name their socket as the authority they call.
//!
//! Go's gRPC, given a path to dial by a function of its own, as plugins' usual example does, calls the authority
//! `/var/lib/kubelet/...`. That is none, and HTTP/2 as it is done here ends the stream for it, where Go's server looks
//! at it no further. So the field is given the name `host`, which may say anything: it is one byte in the frame, and
//! whatever the caller's compression remembers of it goes on to be found where it was.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// No frame is longer, as nobody here allows for more.
const LONGEST: usize = 16_384;

/// A literal field whose name is the first of the static table, `:authority`, and that is to be remembered.
const AUTHORITY: u8 = 0x41;
/// The same with the name `host`, the table's 38th.
const HOST: u8 = 0x40 | 38;

/// A connection on which the authority is passed on as `host` where it can be.
pub(crate) struct Lenient<T> {
    io: T,
    frames: Frames,
    ready: Vec<u8>,
    at: usize,
}

impl<T> Lenient<T> {
    pub(crate) fn new(io: T) -> Self {
        Self { io, frames: Frames::default(), ready: Vec::new(), at: 0 }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Lenient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        while self.at == self.ready.len() {
            let mut space = [0; 4096];
            let mut read = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
            let filled = read.filled();
            let ended = filled.is_empty();
            let passed = self.frames.pass(filled);
            (self.ready, self.at) = (passed, 0);
            if ended {
                return Poll::Ready(Ok(()));
            }
        }
        let rest = self.ready.get(self.at..).unwrap_or_default();
        let some = rest.get(..rest.len().min(into.remaining())).unwrap_or_default();
        into.put_slice(some);
        self.at += some.len();
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Lenient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Goes through what a caller sends, frame by frame, and keeps no more than one of its headers.
#[derive(Default)]
struct Frames {
    /// How much of the preface has passed.
    greeted: usize,
    kept: Vec<u8>,
    /// How much of a frame is still to pass as it is.
    passing: usize,
}

impl Frames {
    /// What may be passed on of all that has been sent so far.
    fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            if self.greeted < PREFACE {
                self.greeted += 1;
                out.push(byte);
            } else if self.passing > 0 {
                self.passing -= 1;
                out.push(byte);
            } else {
                self.kept.push(byte);
                self.look(&mut out);
            }
        }
        out
    }

    fn look(&mut self, out: &mut Vec<u8>) {
        let &[a, b, c, kind, flags, ..] = self.kept.as_slice() else { return };
        if self.kept.len() < FRAME_HEADER {
            return;
        }
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if kind != HEADERS || length > LONGEST {
            self.passing = length;
        } else if self.kept.len() < FRAME_HEADER + length {
            return;
        } else if let Some(block) = self.kept.get_mut(FRAME_HEADER..) {
            let ahead = usize::from(flags & PADDED != 0) + 5 * usize::from(flags & PRIORITY != 0);
            let padding = if flags & PADDED != 0 { block.first().copied().unwrap_or(0) } else { 0 };
            let end = block.len().saturating_sub(usize::from(padding));
            if let Some(fields) = block.get_mut(ahead..end) {
                rename(fields);
            }
        }
        out.append(&mut self.kept);
    }
}

/// Gives the authority its other name, if it is said in full and no other of the fields that must come first follows.
fn rename(block: &mut [u8]) {
    let (mut at, mut authority) = (0, None);
    while let Some(&first) = block.get(at) {
        let rest = block.get(at..).unwrap_or_default();
        let Some((index, size)) = field(rest) else { return };
        if first == AUTHORITY {
            authority = Some(at);
        } else if (1..=14).contains(&index) || first & 0x80 != 0 && index > 61 {
            // One that is remembered may be any.
            authority = None;
        }
        at += size;
    }
    if let Some(byte) = authority.and_then(|at| block.get_mut(at)) {
        *byte = HOST;
    }
}

/// The number of a field's name and how many bytes the field has.
fn field(bytes: &[u8]) -> Option<(usize, usize)> {
    let first = *bytes.first()?;
    let bits = match first {
        0x80.. => 7,
        0x40.. => 6,
        0x20.. => 5,
        _ => 4,
    };
    let (index, mut size) = number(bytes, bits)?;
    if first >= 0x80 {
        return Some((index, size));
    }
    if first & 0xe0 == 0x20 {
        // The size of the table.
        return Some((0, size));
    }
    for _ in 0..if index == 0 { 2 } else { 1 } {
        let (length, digits) = number(bytes.get(size..)?, 7)?;
        size = size.checked_add(digits)?.checked_add(length)?;
    }
    (size <= bytes.len()).then_some((index, size))
}

/// A number whose first digits are the last `bits` of a byte, and how many bytes it has.
fn number(bytes: &[u8], bits: u32) -> Option<(usize, usize)> {
    let most = (1_usize << bits) - 1;
    let mut value = usize::from(*bytes.first()?) & most;
    if value < most {
        return Some((value, 1));
    }
    for (at, byte) in bytes.iter().enumerate().skip(1).take(4) {
        value = value.checked_add(usize::from(byte & 0x7f) << (7 * (at - 1)))?;
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// `:method POST`, `:scheme http`, a path, an authority and a field of the caller's own, as Go's gRPC sends them.
    fn go(authority: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x86, 0x44, 2, b'/', b'x', AUTHORITY];
        block.push(u8::try_from(authority.len()).unwrap());
        block.extend(authority);
        block.extend([0x40, 1, b'a', 1, AUTHORITY]);
        block
    }

    /// However it is cut.
    fn passed(bytes: &[u8], piece: usize) -> Vec<u8> {
        let mut frames = Frames::default();
        bytes.chunks(piece).flat_map(|piece| frames.pass(piece)).collect()
    }

    #[test]
    fn an_authority_becomes_a_host_where_nothing_has_to_come_after_it() {
        let sent = |block: &[u8]| {
            [GREETING, &frame(4, 0, &[]), &frame(0, 0, b"AAA"), &frame(HEADERS, 4, block)].concat()
        };
        let mut host = go(b"%2Fvar%2Flib");
        host[6] = HOST;
        for piece in [1, 7, 4096] {
            assert_eq!(passed(&sent(&go(b"%2Fvar%2Flib")), piece), sent(&host));
            // A path that comes later has to come before any other field.
            let early = [&[AUTHORITY, 1, b'x'][..], &[0x84]].concat();
            assert_eq!(passed(&sent(&early), piece), sent(&early));
            let remembered = [&[AUTHORITY, 1, b'x'][..], &[0x80 | 62]].concat();
            assert_eq!(passed(&sent(&remembered), piece), sent(&remembered));
        }
        let padded = [&[2][..], &[0, 0, 0, 0, 9], &go(b"/x"), &[0, 0]].concat();
        let passed = passed(&[GREETING, &frame(HEADERS, PADDED | PRIORITY, &padded)].concat(), 5);
        assert_eq!(passed[GREETING.len() + FRAME_HEADER + 6 + 6], HOST);
    }

    #[test]
    fn what_is_no_http_passes_as_it_is() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[GREETING, &frame(HEADERS, 4, &[AUTHORITY, 0x7f])].concat(),
            &[GREETING, &frame(HEADERS, 4, &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff])].concat(),
            &[GREETING, &frame(HEADERS, PADDED | PRIORITY, &[255, AUTHORITY])].concat(),
            &[GREETING, &frame(HEADERS, 0, &[0; 20_000])].concat(),
        ] {
            assert_eq!(passed(bytes, 3), bytes);
        }
    }
}

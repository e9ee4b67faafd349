//! Connections of clients whose `:authority` is the path of the socket.
//!
//! Plugins often give Go's gRPC a path and a dial function. It then sends the authority `/var/lib/kubelet/...`, which
//! Go's server ignores, but which hyper's HTTP/2 rejects as invalid. So the field is renamed to `host`, which may have
//! any value. The name is one byte in the frame, and the indices of the client's HPACK table stay valid.

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
/// The maximum length of a frame, because this server does not announce a larger one.
const MAX_FRAME_LENGTH: usize = 16_384;

/// An indexed literal field with the name `:authority`, the first of the static table.
const AUTHORITY: u8 = 0x41;
/// The same with the name `host`, the 38th of the static table.
const HOST: u8 = 0x40 | 38;

/// A connection that renames `:authority` to `host`.
pub(crate) struct AuthorityRewriter<T> {
    io: T,
    frames: Frames,
    ready: Vec<u8>,
    at: usize,
}

impl<T> AuthorityRewriter<T> {
    pub(crate) fn new(io: T) -> Self {
        Self { io, frames: Frames::default(), ready: Vec::new(), at: 0 }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for AuthorityRewriter<T> {
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

impl<T: AsyncWrite + Unpin> AsyncWrite for AuthorityRewriter<T> {
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

/// Parses a client's frames, and buffers at most one HEADERS frame.
#[derive(Default)]
struct Frames {
    /// The number of bytes of the preface that have passed.
    greeted: usize,
    /// The buffered start of a frame.
    partial: Vec<u8>,
    /// The number of bytes of the current frame that pass unchanged.
    passing: usize,
}

impl Frames {
    /// Returns the bytes that can be passed on.
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
                self.partial.push(byte);
                self.process_frame(&mut out);
            }
        }
        out
    }

    fn process_frame(&mut self, out: &mut Vec<u8>) {
        let &[a, b, c, kind, flags, ..] = self.partial.as_slice() else { return };
        if self.partial.len() < FRAME_HEADER {
            return;
        }
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if kind != HEADERS || length > MAX_FRAME_LENGTH {
            self.passing = length;
        } else if self.partial.len() < FRAME_HEADER + length {
            return;
        } else if let Some(block) = self.partial.get_mut(FRAME_HEADER..) {
            let ahead = usize::from(flags & PADDED != 0) + 5 * usize::from(flags & PRIORITY != 0);
            let padding = if flags & PADDED != 0 { block.first().copied().unwrap_or(0) } else { 0 };
            let end = block.len().saturating_sub(usize::from(padding));
            if let Some(fields) = block.get_mut(ahead..end) {
                rename(fields);
            }
        }
        out.append(&mut self.partial);
    }
}

/// Renames the authority if it is a literal field and no other pseudo-header follows, because these must come first.
fn rename(block: &mut [u8]) {
    let (mut at, mut authority) = (0, None);
    while let Some(&first) = block.get(at) {
        let rest = block.get(at..).unwrap_or_default();
        let Some((index, size)) = field(rest) else { return };
        if first == AUTHORITY {
            authority = Some(at);
        } else if (1..=14).contains(&index) || first & 0x80 != 0 && index > 61 {
            // An entry of the dynamic table may be a pseudo-header.
            authority = None;
        }
        at += size;
    }
    if let Some(byte) = authority.and_then(|at| block.get_mut(at)) {
        *byte = HOST;
    }
}

/// Returns the index of a field's name, and the field's length in bytes.
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
        // An update of the table's size.
        return Some((0, size));
    }
    for _ in 0..if index == 0 { 2 } else { 1 } {
        let (length, digits) = number(bytes.get(size..)?, 7)?;
        size = size.checked_add(digits)?.checked_add(length)?;
    }
    (size <= bytes.len()).then_some((index, size))
}

/// Parses an integer with a prefix of `bits` bits. Returns the value and its length in bytes.
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

    /// Returns headers as Go's gRPC sends them: `:method POST`, `:scheme http`, a path, an authority, and a custom
    /// field.
    fn go(authority: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x86, 0x44, 2, b'/', b'x', AUTHORITY];
        block.push(u8::try_from(authority.len()).unwrap());
        block.extend(authority);
        block.extend([0x40, 1, b'a', 1, AUTHORITY]);
        block
    }

    /// Passes the bytes in pieces of the given length.
    fn passed(bytes: &[u8], piece: usize) -> Vec<u8> {
        let mut frames = Frames::default();
        bytes.chunks(piece).flat_map(|piece| frames.pass(piece)).collect()
    }

    #[test]
    fn renames_authority_unless_a_pseudo_header_follows() {
        let sent = |block: &[u8]| {
            [GREETING, &frame(4, 0, &[]), &frame(0, 0, b"AAA"), &frame(HEADERS, 4, block)].concat()
        };
        let mut host = go(b"%2Fvar%2Flib");
        host[6] = HOST;
        for piece in [1, 7, 4096] {
            assert_eq!(passed(&sent(&go(b"%2Fvar%2Flib")), piece), sent(&host));
            // A `:path` that follows must stay before all ordinary fields.
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
    fn passes_invalid_http_unchanged() {
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

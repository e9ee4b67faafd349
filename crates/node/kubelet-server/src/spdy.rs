//! The part of SPDY/3.1 that a client of a container runtime's streaming server needs.
//!
//! Received headers carry nothing that is needed, so they are not decompressed. Sent headers form a zlib stream of
//! stored blocks, which needs neither dictionary nor compressor. Flow control is omitted, as other implementations of
//! this protocol do in practice.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;
/// The largest frame in bytes. The protocol's limit is 16 MiB.
const MAX_FRAME_LENGTH: usize = (1 << 24) - 1;

/// A frame from the server, as far as it matters to the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Data {
        stream: u32,
        last: bool,
        content: Vec<u8>,
    },
    /// A failed stream.
    Reset {
        stream: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
    Other,
}

/// An encoder of frames. It records whether the zlib stream of headers has begun.
#[derive(Default)]
pub(crate) struct Encoder {
    begun: bool,
}

impl Encoder {
    /// Opens a stream with these headers, whose names are in lower case.
    pub(crate) fn open(&mut self, stream: u32, headers: &[(&str, &str)]) -> Vec<u8> {
        let length = |length: usize| u32::try_from(length).unwrap_or(0).to_be_bytes();
        let mut block = length(headers.len()).to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend_from_slice(&length(text.len()));
            block.extend_from_slice(text.as_bytes());
        }
        let mut body = Vec::new();
        body.extend_from_slice(&stream.to_be_bytes());
        // No associated stream, highest priority, no slot.
        body.extend_from_slice(&[0; 6]);
        if !self.begun {
            body.extend_from_slice(&[0x78, 0x01]);
            self.begun = true;
        }
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        body.push(0);
        body.extend_from_slice(&length.to_le_bytes());
        body.extend_from_slice(&(!length).to_le_bytes());
        body.extend_from_slice(&block);
        // An empty block flushes: without it, the receiver would wait for the next block.
        body.extend_from_slice(&[0, 0, 0, 0xff, 0xff]);
        control(SYN_STREAM, 0, &body)
    }

    /// Encodes bytes of a stream in one frame, or in several if one frame cannot hold them.
    pub(crate) fn data(&self, stream: u32, content: &[u8], last: bool) -> Vec<u8> {
        let mut frames = Vec::with_capacity(8 + content.len());
        let mut rest = content;
        loop {
            let (piece, left) = rest.split_at(rest.len().min(MAX_FRAME_LENGTH));
            let flags = if last && left.is_empty() { FIN } else { 0 };
            frames.extend_from_slice(&(stream & 0x7fff_ffff).to_be_bytes());
            frames.extend_from_slice(&head(flags, piece.len()));
            frames.extend_from_slice(piece);
            rest = left;
            if rest.is_empty() {
                return frames;
            }
        }
    }

    pub(crate) fn pong(&self, id: u32) -> Vec<u8> {
        control(PING, 0, &id.to_be_bytes())
    }
}

/// Encodes flags and a 24-bit length.
fn head(flags: u8, length: usize) -> [u8; 4] {
    let length = u32::try_from(length.min(MAX_FRAME_LENGTH)).unwrap_or(0);
    (u32::from(flags) << 24 | length).to_be_bytes()
}

fn control(kind: u16, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(8 + body.len());
    frame.extend_from_slice(&(0x8000 | VERSION).to_be_bytes());
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.extend_from_slice(&head(flags, body.len()));
    frame.extend_from_slice(body);
    frame
}

/// Reads one frame. Returns `None` at the end of the connection.
pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let mut start = [0; 8];
    match from.read_exact(&mut start).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    };
    let word = u32::from_be_bytes([start[0], start[1], start[2], start[3]]);
    let rest = u32::from_be_bytes([start[4], start[5], start[6], start[7]]);
    let (flags, length) = ((rest >> 24) as u8, (rest & 0x00ff_ffff) as usize);
    let mut content = vec![0; length];
    from.read_exact(&mut content).await?;
    if word >> 31 == 0 {
        return Ok(Some(Frame::Data { stream: word, last: flags & FIN != 0, content }));
    }
    let first = content.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes) & 0x7fff_ffff);
    Ok(Some(match ((word & 0xffff) as u16, first) {
        (RST_STREAM, Some(stream)) => Frame::Reset { stream },
        (PING, Some(_)) => {
            Frame::Ping { id: content.first_chunk::<4>().map_or(0, |b| u32::from_be_bytes(*b)) }
        }
        (GOAWAY, _) => Frame::GoAway,
        _ => Frame::Other,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_frames_as_written() {
        let encoder = Encoder::default();
        let mut bytes = encoder.data(5, b"hello", true);
        bytes.extend(control(RST_STREAM, 0, &[0, 0, 0, 7, 0, 0, 0, 1]));
        bytes.extend(encoder.pong(9));
        let mut from = bytes.as_slice();
        let mut next = async || read(&mut from).await.unwrap();
        assert_eq!(
            next().await,
            Some(Frame::Data { stream: 5, last: true, content: b"hello".to_vec() })
        );
        assert_eq!(next().await, Some(Frame::Reset { stream: 7 }));
        assert_eq!(next().await, Some(Frame::Ping { id: 9 }));
        assert_eq!(next().await, None);
    }

    #[test]
    fn encodes_headers_as_one_valid_zlib_stream() {
        let mut encoder = Encoder::default();
        let mut compressed = encoder.open(1, &[("streamtype", "error")])[18..].to_vec();
        let data = encoder.open(3, &[("streamtype", "data"), ("port", "80")]);
        compressed.extend_from_slice(&data[18..]);
        let mut inflate = flate2::Decompress::new(true);
        let mut out = Vec::with_capacity(1024);
        inflate.decompress_vec(&compressed, &mut out, flate2::FlushDecompress::Sync).unwrap();
        let text = String::from_utf8_lossy(&out);
        assert!(
            text.contains("streamtype\0\0\0\x05error")
                && text.contains("streamtype\0\0\0\x04data\0\0\0\x04port\0\0\0\x0280"),
            "{text:?}"
        );
    }
}

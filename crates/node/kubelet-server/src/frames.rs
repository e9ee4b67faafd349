//! Frames of WebSockets (RFC 6455 §5). The content of a client's message is returned as it arrives, so that a message
//! of any size, finished or not, takes no memory.

use std::io::Cursor;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_tungstenite::tungstenite::{
    self,
    protocol::frame::{
        FrameHeader,
        coding::{Control, Data, OpCode},
    },
};

/// The size of the largest piece of a message, in bytes.
const PIECE: usize = 16 << 10;

/// The size of the largest control frame.
const MAX_CONTROL: usize = 125;

#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("read from the client: {0}")]
    Read(#[from] std::io::Error),
    #[error("the client's WebSocket violates RFC 6455: {0}")]
    Protocol(&'static str),
    #[error("the head of the client's frame: {0}")]
    Head(#[from] tungstenite::Error),
}

/// A part of what a client sends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A part of the content of a message, and whether the message ends with it.
    Data {
        content: Bytes,
        last: bool,
    },
    /// A ping, which is answered with the same content.
    Ping(Bytes),
    Close,
}

/// A data frame whose content has not arrived completely.
struct DataFrame {
    left: u64,
    mask: [u8; 4],
    last: bool,
}

/// Reads a client's frames. Dropping a read loses nothing.
pub(crate) struct FrameReader<R> {
    from: R,
    buffer: BytesMut,
    frame: Option<DataFrame>,
    /// `true` between the frames of a message.
    in_message: bool,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, buffer: BytesMut::new(), frame: None, in_message: false }
    }

    /// Returns the next piece, or `None` at the end of the connection.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, FrameError> {
        loop {
            if let Some(piece) = self.parse()? {
                return Ok(Some(piece));
            }
            self.buffer.reserve(PIECE);
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn parse(&mut self) -> Result<Option<Piece>, FrameError> {
        loop {
            if let Some(frame) = &mut self.frame {
                if frame.left > 0 && self.buffer.is_empty() {
                    return Ok(None);
                }
                let size = usize::try_from(frame.left).unwrap_or(usize::MAX).min(self.buffer.len());
                let mut content = self.buffer.split_to(size);
                unmask(&mut content, frame.mask);
                frame.mask.rotate_left(size % 4);
                frame.left -= size as u64;
                let is_complete = frame.left == 0;
                let last = is_complete && frame.last;
                if is_complete {
                    self.frame = None;
                    self.in_message = !last;
                }
                return Ok(Some(Piece::Data { content: content.freeze(), last }));
            }
            let mut cursor = Cursor::new(&self.buffer[..]);
            let Some((head, length)) = FrameHeader::parse(&mut cursor)? else { return Ok(None) };
            let size = head.len(length);
            if head.rsv1 || head.rsv2 || head.rsv3 {
                return Err(FrameError::Protocol("a reserved bit is set"));
            }
            let Some(mask) = head.mask else {
                return Err(FrameError::Protocol("a frame is not masked"));
            };
            let control = match head.opcode {
                OpCode::Control(control) => control,
                OpCode::Data(data) => {
                    if self.in_message != (data == Data::Continue) {
                        return Err(FrameError::Protocol("a message begins within another one"));
                    }
                    self.buffer.advance(size);
                    self.frame = Some(DataFrame { left: length, mask, last: head.is_final });
                    continue;
                }
            };
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > MAX_CONTROL || !head.is_final {
                return Err(FrameError::Protocol("a control frame is too long or in parts"));
            }
            if self.buffer.len() < size + length {
                return Ok(None);
            }
            self.buffer.advance(size);
            let mut content = self.buffer.split_to(length);
            unmask(&mut content, mask);
            match control {
                Control::Ping => return Ok(Some(Piece::Ping(content.freeze()))),
                Control::Close => return Ok(Some(Piece::Close)),
                _ => {}
            }
        }
    }
}

fn unmask(content: &mut [u8], mask: [u8; 4]) {
    content.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
}

/// Encodes a frame of the server.
pub(crate) fn encode(opcode: OpCode, content: &[u8]) -> Vec<u8> {
    let header = FrameHeader { opcode, ..FrameHeader::default() };
    let length = content.len() as u64;
    let mut frame = Vec::with_capacity(header.len(length) + content.len());
    header.format(length, &mut frame).expect("a vector takes all that is written");
    frame.extend_from_slice(content);
    frame
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
    use tokio_tungstenite::{
        WebSocketStream,
        tungstenite::{Message, protocol::Role},
    };

    use super::*;

    /// Returns the messages and pings of `input`, with the largest memory of the reader.
    fn read(input: &[u8]) -> Result<(Vec<Vec<u8>>, usize), FrameError> {
        let mut reader = FrameReader::new(input);
        let (mut messages, mut memory) = (vec![Vec::new()], 0);
        while let Some(piece) = reader.next().now_or_never().unwrap()? {
            memory = memory.max(reader.buffer.capacity());
            match piece {
                Piece::Data { content, last } => {
                    messages.last_mut().unwrap().extend_from_slice(&content);
                    if last {
                        messages.push(Vec::new());
                    }
                }
                Piece::Ping(content) => assert_eq!(content, "ping"),
                Piece::Close => break,
            }
        }
        Ok((messages, memory))
    }

    #[tokio::test]
    async fn reads_frames_of_another_implementation_without_keeping_them() {
        let (mut wire, client) = tokio::io::duplex(64 << 20);
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        let sizes = [0, 1, 125, 126, 65_535, 65_536, 3 << 20];
        for size in sizes {
            client.send(Message::binary(vec![size as u8; size])).await.unwrap();
            client.send(Message::Ping("ping".into())).await.unwrap();
        }
        client.close(None).await.unwrap();
        drop(client);
        let mut bytes = Vec::new();
        wire.read_to_end(&mut bytes).await.unwrap();
        let (messages, memory) = read(&bytes).unwrap();
        assert_eq!(messages.len(), sizes.len() + 1);
        for (message, size) in messages.iter().zip(sizes) {
            assert!(*message == vec![size as u8; size], "{size}");
        }
        assert!(memory <= 4 * PIECE, "{memory}");
    }

    #[tokio::test]
    async fn writes_frames_for_another_implementation() {
        let (mut wire, client) = tokio::io::duplex(1 << 20);
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        for size in [0, 125, 126, 65_535, 65_536] {
            let content = vec![7; size];
            let frame = encode(OpCode::Data(Data::Binary), &content);
            tokio::io::AsyncWriteExt::write_all(&mut wire, &frame).await.unwrap();
            assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(content));
        }
    }

    #[test]
    fn rejects_what_the_protocol_forbids() {
        for (bytes, words) in [
            (&[0xc2, 0x80, 0, 0, 0, 0][..], "reserved bit"),
            (&[0x82, 0], "not masked"),
            (&[0x83, 0x80, 0, 0, 0, 0], "opcode"),
            (&[0x80, 0x80, 0, 0, 0, 0], "within another"),
            (&[0x02, 0x80, 0, 0, 0, 0, 0x82, 0x80, 0, 0, 0, 0], "within another"),
            (&[0x09, 0x80, 0, 0, 0, 0], "control frame"),
            (&[0x89, 0xfe, 0, 126, 0, 0, 0, 0], "control frame"),
            (&[0x88, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], "control"),
        ] {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn unfinished_message_takes_no_memory() {
        let head = [0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        let endless = [&head[..], &vec![1; 40 << 20]].concat();
        let (messages, memory) = read(&endless).unwrap();
        assert_eq!(messages[0].len(), 40 << 20);
        assert!(memory <= 4 * PIECE, "{memory}");
    }
}

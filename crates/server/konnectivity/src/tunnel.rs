//! A connection within a tunnel, as a stream of bytes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use client::Stream;
use futures_util::Stream as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc,
};
use tokio_util::sync::PollSender;
use tonic::Streaming;

use crate::proto::{Data, Packet, PacketType, packet::Payload};

/// The number of packets that wait to be sent.
pub(crate) const QUEUE: usize = 4;
/// The largest number of bytes in a sent packet.
const PIECE: usize = 32 << 10;

/// A connection through a tunnel. The tunnel ends when it is dropped.
pub(crate) struct Tunnel {
    id: i64,
    sender: PollSender<Packet>,
    incoming: Streaming<Packet>,
    /// Bytes that were received and not read.
    unread: Bytes,
    is_at_end: bool,
}

impl Tunnel {
    pub(crate) fn new(id: i64, sender: mpsc::Sender<Packet>, incoming: Streaming<Packet>) -> Self {
        let sender = PollSender::new(sender);
        Self { id, sender, incoming, unread: Bytes::new(), is_at_end: false }
    }

    /// Takes a packet in. Packets of other connections and kinds are ignored.
    fn receive(&mut self, packet: Packet) -> io::Result<()> {
        match packet.payload {
            Some(Payload::Data(data)) if data.connect_id == self.id => {
                if !data.error.is_empty() {
                    return Err(io::Error::other(data.error));
                }
                self.unread = data.data.into();
            }
            Some(Payload::CloseResponse(closed)) if closed.connect_id == self.id => {
                self.is_at_end = true;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Stream for Tunnel {}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() && !self.is_at_end {
            match ready!(Pin::new(&mut self.incoming).poll_next(context)) {
                None => self.is_at_end = true,
                Some(packet) => self.receive(packet.map_err(io::Error::other)?)?,
            }
        }
        let count = buffer.remaining().min(self.unread.len());
        buffer.put_slice(&self.unread[..count]);
        self.unread.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let broken = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        ready!(self.sender.poll_reserve(context)).map_err(broken)?;
        let piece = &bytes[..bytes.len().min(PIECE)];
        let data = Data { connect_id: self.id, error: String::new(), data: piece.to_vec() };
        let packet = Packet { r#type: PacketType::Data.into(), payload: Some(Payload::Data(data)) };
        self.sender.send_item(packet).map_err(broken)?;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Does nothing, because the other half may still be read.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

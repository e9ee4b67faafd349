//! Connections through konnectivity-server by gRPC on a Unix socket, for the egress selector of API servers
//! (KEP-1281). Read [`Konnectivity`] first.
//!
//! Not responsible for: the choice of the network (`apiserver`), TLS within a connection (`client`) and agents.
//!
//! Invariants: a tunnel carries one connection and ends with it. Its queues are bounded, so a slow server slows its
//! writer. The protocol has no half-closed connections: a closed write half ends nothing until the connection is
//! dropped.

mod proto;
mod tunnel;

use std::{io, path::PathBuf};

use client::{Dialer, Stream};
use futures_util::{future::BoxFuture, stream};
use tokio::sync::mpsc;
use tonic::Streaming;

use self::{
    proto::{
        DialRequest, Packet, PacketType, packet::Payload, proxy_service_client::ProxyServiceClient,
    },
    tunnel::{QUEUE, Tunnel},
};

/// A konnectivity-server.
#[derive(Debug)]
pub struct Konnectivity {
    socket: PathBuf,
}

impl Konnectivity {
    /// Names the server at a Unix socket, without connecting.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Opens a tunnel to `target` (`host:port`).
    async fn open(&self, target: &str) -> io::Result<Tunnel> {
        let channel = grpc::connect(&self.socket).await.map_err(io::Error::other)?;
        let (sender, mut packets) = mpsc::channel(QUEUE);
        let random = i64::from(rt::random::<u32>());
        let dial = DialRequest { protocol: "tcp".to_owned(), address: target.to_owned(), random };
        let _queue_is_empty = sender.try_send(Packet {
            r#type: PacketType::DialReq.into(),
            payload: Some(Payload::DialRequest(dial)),
        });
        let packets = stream::poll_fn(move |context| packets.poll_recv(context));
        let answered = ProxyServiceClient::new(channel).proxy(packets).await;
        let mut incoming = answered.map_err(io::Error::other)?.into_inner();
        let id = connection_id(&mut incoming, random).await?;
        Ok(Tunnel::new(id, sender, incoming))
    }
}

impl Dialer for Konnectivity {
    fn dial<'a>(&'a self, target: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move { Ok(Box::new(self.open(target).await?) as Box<dyn Stream>) })
    }
}

/// Waits for the answer to a request to dial. The caller limits the time.
async fn connection_id(incoming: &mut Streaming<Packet>, random: i64) -> io::Result<i64> {
    loop {
        let packet = incoming.message().await.map_err(io::Error::other)?;
        match packet.and_then(|packet| packet.payload) {
            Some(Payload::DialResponse(answer)) if answer.random == random => {
                return if answer.error.is_empty() {
                    Ok(answer.connect_id)
                } else {
                    Err(io::Error::other(answer.error))
                };
            }
            Some(Payload::CloseDial(_)) => return Err(io::Error::other("dial closed")),
            Some(_) => {}
            None => return Err(io::Error::other("tunnel closed")),
        }
    }
}

#[cfg(test)]
mod tests;

//! Queries over UDP and TCP.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
    time::timeout,
};

use crate::{
    observe::Metrics,
    resolver::{Local, Resolver, Via},
};

/// The resolver of the newest Corefile.
#[derive(Clone)]
pub(crate) struct Current(Arc<RwLock<Arc<Resolver>>>);

impl Current {
    pub(crate) fn new(resolver: Resolver) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(resolver))))
    }

    pub(crate) fn get(&self) -> Arc<Resolver> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, resolver: Resolver) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(resolver);
    }
}

/// Queries that wait for another server at a time, and TCP connections; what comes beyond is dropped, and asked
/// again by its client.
const WAITING: usize = 4096;
const CONNECTIONS: usize = 1024;
const IDLE: Duration = Duration::from_secs(10);

pub(crate) async fn udp(
    socket: UdpSocket,
    current: Current,
    metrics: Arc<Metrics>,
    tasks: rt::Tasks,
) {
    let socket = Arc::new(socket);
    let port = socket.local_addr().map_or(53, |address| address.port());
    let via = Via { port, tcp: false };
    let waiting = Arc::new(Semaphore::new(WAITING));
    let mut buffer = vec![0; 4096];
    loop {
        let (length, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // An ICMP error for an earlier answer, mostly.
                tracing::debug!(%error, "receiving a query");
                continue;
            }
        };
        let start = Instant::now();
        let packet = &buffer[..length];
        let resolver = current.get();
        match resolver.local(packet, via) {
            Local::Ignore => {}
            Local::Answer(answer) => {
                metrics.answered(false, &answer, start.elapsed());
                let _ = socket.send_to(&answer, peer).await;
            }
            Local::Elsewhere(_) => {
                let Ok(slot) = waiting.clone().try_acquire_owned() else { continue };
                let (packet, socket, metrics) = (packet.to_vec(), socket.clone(), metrics.clone());
                let resolver = resolver.clone();
                tasks.spawn_until_shutdown("forwarded query", async move {
                    let _slot = slot;
                    if let Some(answer) = resolver.answer(&packet, via).await {
                        metrics.answered(false, &answer, start.elapsed());
                        let _ = socket.send_to(&answer, peer).await;
                    }
                });
            }
        }
    }
}

pub(crate) async fn tcp(
    listener: TcpListener,
    current: Current,
    metrics: Arc<Metrics>,
    tasks: rt::Tasks,
) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let port = listener.local_addr().map_or(53, |address| address.port());
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (current, metrics) = (current.clone(), metrics.clone());
                tasks.spawn_until_shutdown("dns connection", async move {
                    let _slot = slot;
                    if let Err(error) = converse(stream, port, &current, &metrics).await {
                        tracing::debug!(%peer, %error, "connection ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Answers one query after the other until the client leaves or says nothing for a while.
async fn converse(
    mut stream: TcpStream,
    port: u16,
    current: &Current,
    metrics: &Metrics,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut packet = Vec::new();
    loop {
        let Ok(length) = timeout(IDLE, stream.read_u16()).await else { return Ok(()) };
        match length {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            length => packet.resize(length?.into(), 0),
        }
        timeout(IDLE, stream.read_exact(&mut packet)).await??;
        let start = Instant::now();
        let Some(answer) = current.get().answer(&packet, Via { port, tcp: true }).await else {
            return Ok(());
        };
        metrics.answered(true, &answer, start.elapsed());
        let mut framed = u16::try_from(answer.len()).unwrap_or_default().to_be_bytes().to_vec();
        framed.extend_from_slice(&answer);
        timeout(IDLE, stream.write_all(&framed)).await??;
    }
}

/// Both sockets of one address. The port of the second is the first's, which matters where it was 0.
pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<(UdpSocket, TcpListener)> {
    let udp = UdpSocket::bind(address).await?;
    let tcp = TcpListener::bind(udp.local_addr()?).await?;
    Ok((udp, tcp))
}

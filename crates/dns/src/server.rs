//! Queries over UDP and TCP.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Instant,
};

use tokio::{
    net::{TcpListener, UdpSocket},
    sync::Semaphore,
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
    let port = listener.local_addr().map_or(53, |address| address.port());
    let answer = move |packet: Vec<u8>| {
        let (resolver, metrics) = (current.get(), metrics.clone());
        async move {
            let start = Instant::now();
            let answer = resolver.answer(&packet, Via { port, tcp: true }).await?;
            metrics.answered(true, &answer, start.elapsed());
            Some(answer)
        }
    };
    serve::dns::serve(listener, CONNECTIONS, tasks, answer).await;
}

/// Both sockets of one address. The port of the second is the first's, which matters where it was 0.
pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<(UdpSocket, TcpListener)> {
    let udp = UdpSocket::bind(address).await?;
    let tcp = TcpListener::bind(udp.local_addr()?).await?;
    Ok((udp, tcp))
}

//! Serves queries over UDP and TCP.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::time::Instant;

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
pub(crate) struct CurrentResolver(Arc<RwLock<Arc<Resolver>>>);

impl CurrentResolver {
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

/// The largest number of forwarded queries in flight, and of TCP connections. Further ones are dropped.
const WAITING: usize = 4096;
const CONNECTIONS: usize = 1024;

pub(crate) async fn udp(
    socket: UdpSocket,
    current: CurrentResolver,
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
                // Usually an ICMP error for an earlier answer.
                tracing::debug!(%error, "receiving a query");
                continue;
            }
        };
        let start = Instant::now();
        let packet = &buffer[..length];
        let resolver = current.get();
        let local = rt::catch_sync("dns query", peer, || resolver.local(packet, via));
        let failed = |_| panicked(packet, &metrics).map_or(Local::Ignore, Local::Answer);
        match local.unwrap_or_else(failed) {
            Local::Ignore => {}
            Local::Answer(answer) => {
                metrics.record_response(false, &answer, start.elapsed());
                let _ = socket.send_to(&answer, peer).await;
            }
            Local::Pending(_) => {
                let Ok(slot) = waiting.clone().try_acquire_owned() else { continue };
                let (packet, socket, metrics) = (packet.to_vec(), socket.clone(), metrics.clone());
                let resolver = resolver.clone();
                tasks.spawn_until_shutdown("forwarded query", async move {
                    let _slot = slot;
                    if let Some(answer) = answer(&resolver, &packet, via, &metrics).await {
                        metrics.record_response(false, &answer, start.elapsed());
                        let _ = socket.send_to(&answer, peer).await;
                    }
                });
            }
        }
    }
}

pub(crate) async fn tcp(
    listener: TcpListener,
    current: CurrentResolver,
    metrics: Arc<Metrics>,
    tasks: rt::Tasks,
) {
    let port = listener.local_addr().map_or(53, |address| address.port());
    let answer = move |packet: Vec<u8>| {
        let (resolver, metrics) = (current.get(), metrics.clone());
        async move {
            let start = Instant::now();
            let answer = answer(&resolver, &packet, Via { port, tcp: true }, &metrics).await?;
            metrics.record_response(true, &answer, start.elapsed());
            Some(answer)
        }
    };
    serve::dns::serve(listener, CONNECTIONS, tasks, answer).await;
}

/// Returns the resolver's answer, or SERVFAIL if resolving panicked.
async fn answer(
    resolver: &Resolver,
    packet: &[u8],
    via: Via,
    metrics: &Metrics,
) -> Option<Vec<u8>> {
    let answered = rt::catch("dns query", "that waits", resolver.answer(packet, via)).await;
    answered.unwrap_or_else(|_| panicked(packet, metrics))
}

/// Answers a query that caused a panic with SERVFAIL, as CoreDNS does.
fn panicked(packet: &[u8], metrics: &Metrics) -> Option<Vec<u8>> {
    const RESPONSE: u8 = 0x80;
    metrics.panicked();
    let mut answer = packet.to_vec();
    let header = answer.get_mut(..12)?;
    if header[2] & RESPONSE != 0 {
        return None;
    }
    // The rest is copied from the query, because clients check the question.
    header[2] |= RESPONSE;
    header[3] = 2;
    Some(answer)
}

/// Binds UDP and TCP of one address. TCP uses the port of UDP, which matters for port 0.
pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<(UdpSocket, TcpListener)> {
    let udp = UdpSocket::bind(address).await?;
    let tcp = TcpListener::bind(udp.local_addr()?).await?;
    Ok((udp, tcp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_answers_query_with_servfail_but_no_response() {
        let metrics = Metrics::default();
        let query = *b"\x12\x34\x01\x20\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";
        let answer = panicked(&query, &metrics).unwrap();
        assert_eq!(answer[..4], *b"\x12\x34\x81\x02");
        assert_eq!(answer[4..], query[4..]);
        assert_eq!(panicked(&answer, &metrics), None, "two servers would talk for ever");
        assert_eq!(panicked(b"short", &metrics), None);
        assert!(metrics.text().contains("coredns_panics_total 3\n"));
    }
}

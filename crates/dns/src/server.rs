//! Queries over UDP and TCP.

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
        let local = rt::catch_sync("dns query", peer, || resolver.local(packet, via));
        let failed = |_| panicked(packet, &metrics).map_or(Local::Ignore, Local::Answer);
        match local.unwrap_or_else(failed) {
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
                    if let Some(answer) = answer(&resolver, &packet, via, &metrics).await {
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
            let answer = answer(&resolver, &packet, Via { port, tcp: true }, &metrics).await?;
            metrics.answered(true, &answer, start.elapsed());
            Some(answer)
        }
    };
    serve::dns::serve(listener, CONNECTIONS, tasks, answer).await;
}

/// The resolver's answer, or that of a query that panicked.
async fn answer(
    resolver: &Resolver,
    packet: &[u8],
    via: Via,
    metrics: &Metrics,
) -> Option<Vec<u8>> {
    let answered = rt::catch("dns query", "that waits", resolver.answer(packet, via)).await;
    answered.unwrap_or_else(|_| panicked(packet, metrics))
}

/// Who asked what panicked hears of it at once, as from CoreDNS: SERVFAIL.
fn panicked(packet: &[u8], metrics: &Metrics) -> Option<Vec<u8>> {
    const RESPONSE: u8 = 0x80;
    metrics.panicked();
    let mut answer = packet.to_vec();
    let header = answer.get_mut(..12)?;
    if header[2] & RESPONSE != 0 {
        return None;
    }
    // The rest is the query's: clients look for their question.
    header[2] |= RESPONSE;
    header[3] = 2;
    Some(answer)
}

/// Both sockets of one address. The port of the second is the first's, which matters where it was 0.
pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<(UdpSocket, TcpListener)> {
    let udp = UdpSocket::bind(address).await?;
    let tcp = TcpListener::bind(udp.local_addr()?).await?;
    Ok((udp, tcp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_panicked_is_answered_servfail_with_its_question_and_an_answer_is_not() {
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

//! Serves queries over UDP and TCP.

use std::{net::SocketAddr, sync::Arc};

use futures_util::FutureExt;
use serve::ClientLimits;
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::watch,
    time::Instant,
};

use crate::{
    corefile::Timeouts,
    observe::Metrics,
    resolver::{Answers, QueryOrigin, Resolver},
};

/// The resolver of the newest Corefile.
#[derive(Clone)]
pub(crate) struct CurrentResolver(watch::Sender<Arc<Resolver>>);

impl CurrentResolver {
    pub(crate) fn new(resolver: Arc<Resolver>) -> Self {
        Self(watch::Sender::new(resolver))
    }

    pub(crate) fn get(&self) -> Arc<Resolver> {
        self.0.borrow().clone()
    }

    pub(crate) fn set(&self, resolver: Arc<Resolver>) {
        self.0.send_replace(resolver);
    }

    /// Does the periodic work of the resolver, and of each one that replaces it.
    pub(crate) async fn maintain(self) {
        let mut changes = self.0.subscribe();
        loop {
            let resolver = changes.borrow_and_update().clone();
            let work = async {
                resolver.maintain().await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = work => {}
                // This sender lives as long as the task.
                _ = changes.changed() => {}
            }
        }
    }
}

/// The largest number of queries that wait for other servers, also for one client, and of TCP connections. Further ones
/// are dropped. A client may ask for names whose servers never answer.
const WAITING: usize = 4096;
const WAITING_OF_ONE_CLIENT: usize = 256;
const CONNECTIONS: usize = 1024;

pub(crate) async fn udp(
    socket: UdpSocket,
    current: CurrentResolver,
    metrics: Arc<Metrics>,
    tasks: rt::Tasks,
) {
    let socket = Arc::new(socket);
    let port = socket.local_addr().map_or(53, |address| address.port());
    let waiting = ClientLimits::new(WAITING, WAITING_OF_ONE_CLIENT);
    let mut buffer = vec![0; 4096];
    loop {
        let (length, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // Usually an ICMP error for an earlier answer.
                tracing::debug!(%error, "receiving a query");
                continue;
            }
        };
        let via = QueryOrigin { client, port, tcp: false };
        let packet = buffer[..length].to_vec();
        let mut answering = Box::pin(answer(current.get(), packet, via, metrics.clone()));
        // Most queries are answered from memory, without a task of their own.
        if let Some(answers) = answering.as_mut().now_or_never() {
            for answer in answers {
                let _ = socket.send_to(&answer, client).await;
            }
            continue;
        }
        let Some(slot) = waiting.try_enter(client.ip()) else { continue };
        let socket = socket.clone();
        tasks.spawn_until_shutdown("forwarded query", async move {
            let _slot = slot;
            for answer in answering.await {
                let _ = socket.send_to(&answer, client).await;
            }
        });
    }
}

pub(crate) async fn tcp(
    listener: TcpListener,
    timeouts: Timeouts,
    current: CurrentResolver,
    metrics: Arc<Metrics>,
    tasks: rt::Tasks,
) {
    let port = listener.local_addr().map_or(53, |address| address.port());
    let Timeouts { read, write, idle, queries } = timeouts;
    let limits = serve::dns::Limits { connections: CONNECTIONS, read, write, idle, queries };
    let answer = move |packet: Vec<u8>, client| {
        let via = QueryOrigin { client, port, tcp: true };
        answer(current.get(), packet, via, metrics.clone())
    };
    serve::dns::serve(listener, limits, tasks, answer).await;
}

/// Returns the resolver's answers, or SERVFAIL if resolving panicked.
async fn answer(
    resolver: Arc<Resolver>,
    packet: Vec<u8>,
    via: QueryOrigin,
    metrics: Arc<Metrics>,
) -> Answers {
    let start = Instant::now();
    let answered = rt::catch("dns query", via.client, resolver.answer(&packet, via)).await;
    let answers = answered.unwrap_or_else(|_| Answers::of(panicked(&packet, &metrics)));
    if let Some(answer) = answers.first() {
        metrics.record_response(via.tcp, answer, start.elapsed());
    }
    answers
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

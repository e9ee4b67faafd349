//! A server that queries are forwarded to: exchanges over UDP, TCP and TLS, and its health.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use client::Stream;
use hickory_proto::op::Message;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, UdpSocket},
    time::Instant,
};

/// The largest number of idle connections to a server, unless the Corefile has a smaller one.
const MAX_IDLE: usize = 64;

/// The settings of connections to a server.
#[derive(Clone, Debug)]
pub(super) struct Connecting {
    /// The time for which an idle connection is kept.
    pub(super) expire: Duration,
    /// The number of idle connections that are kept; 0 for as many as this server keeps at all.
    pub(super) max_idle: usize,
    pub(super) source: Option<IpAddr>,
}

/// The TLS settings of a server.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) config: Arc<ClientConfig>,
    /// The name or address that the server's certificate must contain.
    pub(super) name: String,
}

pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    tls: Option<Tls>,
    connecting: Connecting,
    idle: Mutex<Vec<Idle>>,
    /// The number of consecutive failed health checks.
    failures: AtomicU32,
    /// `true` from the first failure until a health check succeeds.
    is_suspect: AtomicBool,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.tls.is_some() { "tls://" } else { "" }, self.address)
    }
}

struct Idle {
    stream: Box<dyn Stream>,
    since: Instant,
}

impl Upstream {
    pub(super) fn new(address: SocketAddr, tls: Option<Tls>, connecting: Connecting) -> Self {
        let (idle, failures, is_suspect) =
            (Mutex::default(), AtomicU32::new(0), AtomicBool::new(false));
        Self { address, tls, connecting, idle, failures, is_suspect }
    }

    /// Reports whether so many health checks have failed that the server is skipped; 0 for never.
    pub(super) fn is_down(&self, allowed: u32) -> bool {
        allowed > 0 && self.failures.load(Ordering::Relaxed) >= allowed
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed)
    }

    /// Lets the health checks begin.
    pub(super) fn suspect(&self) {
        self.is_suspect.store(true, Ordering::Relaxed);
    }

    pub(super) fn record_health(&self, is_healthy: bool) {
        if is_healthy {
            self.failures.store(0, Ordering::Relaxed);
            self.is_suspect.store(false, Ordering::Relaxed);
        } else {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends a query with an id of its own, and accepts only an answer to this query.
    pub(super) async fn exchange(&self, query: &Message, tcp: bool) -> std::io::Result<Message> {
        let mut sent = query.clone();
        sent.metadata.id = rt::random();
        let bytes = sent.to_vec().map_err(std::io::Error::other)?;
        let mut response = if tcp || self.tls.is_some() {
            self.over_stream(&sent, &bytes).await?
        } else {
            self.over_udp(&sent, &bytes).await?
        };
        response.metadata.id = query.metadata.id;
        Ok(response)
    }

    async fn over_udp(&self, sent: &Message, bytes: &[u8]) -> std::io::Result<Message> {
        let any: IpAddr = if self.address.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((self.connecting.source.unwrap_or(any), 0)).await?;
        socket.connect(self.address).await?;
        socket.send(bytes).await?;
        let mut buffer = vec![0; 65_535];
        loop {
            let length = socket.recv(&mut buffer).await?;
            // A packet that is not the answer may be an attempt to guess the id.
            if let Ok(response) = Message::from_vec(&buffer[..length])
                && answers(sent, &response)
            {
                return Ok(response);
            }
        }
    }

    /// Uses an idle connection, or a new one if there is none or the server has closed it.
    async fn over_stream(&self, sent: &Message, bytes: &[u8]) -> std::io::Result<Message> {
        let framed =
            [&u16::try_from(bytes.len()).map_err(std::io::Error::other)?.to_be_bytes()[..], bytes]
                .concat();
        if let Some(mut stream) = self.take_idle()
            && let Ok(response) = exchange(&mut stream, &framed).await
        {
            return self.accept(stream, sent, &response);
        }
        let mut stream = self.connect().await?;
        let response = exchange(&mut stream, &framed).await?;
        self.accept(stream, sent, &response)
    }

    fn accept(
        &self,
        stream: Box<dyn Stream>,
        sent: &Message,
        response: &[u8],
    ) -> std::io::Result<Message> {
        let response = Message::from_vec(response).map_err(std::io::Error::other)?;
        if !answers(sent, &response) {
            return Err(std::io::Error::other("the answer is to another question"));
        }
        let most = match self.connecting.max_idle {
            0 => MAX_IDLE,
            most => most.min(MAX_IDLE),
        };
        let mut idle = self.idle.lock();
        if idle.len() < most {
            idle.push(Idle { stream, since: Instant::now() });
        }
        Ok(response)
    }

    fn take_idle(&self) -> Option<Box<dyn Stream>> {
        let mut idle = self.idle.lock();
        idle.retain(|idle| idle.since.elapsed() < self.connecting.expire);
        idle.pop().map(|idle| idle.stream)
    }

    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        let socket =
            if self.address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(source) = self.connecting.source {
            socket.bind((source, 0).into())?;
        }
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => client::encrypt(Box::new(stream), &tls.name, &tls.config).await,
        }
    }
}

async fn exchange(stream: &mut Box<dyn Stream>, framed: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(framed).await?;
    stream.flush().await?;
    let length = stream.read_u16().await?;
    let mut response = vec![0; length.into()];
    stream.read_exact(&mut response).await?;
    Ok(response)
}

/// Reports whether a response answers a query: the id and the question are the same.
fn answers(sent: &Message, response: &Message) -> bool {
    response.metadata.id == sent.metadata.id
        && response.metadata.message_type == hickory_proto::op::MessageType::Response
        && response.queries == sent.queries
}

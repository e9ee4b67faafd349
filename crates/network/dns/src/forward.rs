//! Forwards queries to other servers.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use hickory_proto::rr::Name;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    sync::Semaphore,
    time::timeout,
};

use crate::{corefile::ForwardOptions, wire};

/// The time limits for the answer of one server, and for all servers together.
const ONE: Duration = Duration::from_secs(2);
const ALL: Duration = Duration::from_secs(5);
/// The time for which a server is skipped after too many failures, as long as others answer.
const REST: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    #[error("too many queries are being forwarded already")]
    Busy,
    #[error(
        "a query sent to the servers comes back here: there is a loop; check /etc/resolv.conf for loopback addresses"
    )]
    Loop,
    #[error("there is no server to ask; name one in the Corefile or in the file that it refers to")]
    NoServer,
    #[error("no server answered in time; the last, {server}: {reason}")]
    NoAnswer { server: SocketAddr, reason: String },
}

/// The error for a server that is neither an address nor a file with addresses.
#[derive(Debug, thiserror::Error)]
#[error(
    "forward: {server:?} is neither an address nor a readable file in the form of resolv.conf: {reason}"
)]
pub struct ServerError {
    server: String,
    reason: String,
}

struct Server {
    address: SocketAddr,
    failures: AtomicU32,
    resting_until: Mutex<Option<Instant>>,
}

pub(crate) struct Forward {
    options: ForwardOptions,
    servers: Vec<Server>,
    slots: Semaphore,
    /// `true` if a loop was found; forwarding stops until a later probe finds none.
    pub(crate) looped: AtomicBool,
}

impl Forward {
    pub(crate) fn new(options: ForwardOptions) -> Result<Self, ServerError> {
        let mut servers = Vec::new();
        for text in &options.to {
            servers.extend(addresses(text)?);
        }
        let server = |address| Server {
            address,
            failures: AtomicU32::new(0),
            resting_until: Mutex::default(),
        };
        let slots = if options.max_concurrent == 0 { 4096 } else { options.max_concurrent };
        Ok(Self {
            servers: servers.into_iter().map(server).collect(),
            slots: Semaphore::new(slots),
            looped: AtomicBool::new(false),
            options,
        })
    }

    pub(crate) fn covers(&self, name: &Name) -> bool {
        self.options.from.zone_of(name)
            && !self.options.except.iter().any(|zone| zone.zone_of(name))
    }

    pub(crate) fn from(&self) -> &Name {
        &self.options.from
    }

    /// Returns a server's response to `query`, with the query's id.
    pub(crate) async fn send(&self, query: &[u8], over_tcp: bool) -> Result<Vec<u8>, ForwardError> {
        if self.looped.load(Ordering::Relaxed) {
            return Err(ForwardError::Loop);
        }
        let _slot = self.slots.try_acquire().map_err(|_| ForwardError::Busy)?;
        let deadline = Instant::now() + ALL;
        let mut failure = ForwardError::NoServer;
        for server in self.order() {
            let wait = ONE.min(deadline.saturating_duration_since(Instant::now()));
            if wait.is_zero() {
                break;
            }
            let tcp = over_tcp || self.options.force_tcp;
            let reason = match timeout(wait, exchange(server.address, query, tcp)).await {
                Ok(Ok(response)) => {
                    server.failures.store(0, Ordering::Relaxed);
                    return Ok(response);
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {} ms", wait.as_millis()),
            };
            server.record_failure(self.options.max_fails);
            failure = ForwardError::NoAnswer { server: server.address, reason };
        }
        Err(failure)
    }

    /// Sends `query` to every server to find out whether it comes back; answers are ignored.
    pub(crate) async fn probe(&self, query: &[u8]) {
        for server in &self.servers {
            let _ = timeout(ONE, exchange(server.address, query, false)).await;
        }
    }

    /// Returns the servers in the order of attempts: by policy, with skipped servers last.
    fn order(&self) -> Vec<&Server> {
        let mut order: Vec<&Server> = self.servers.iter().collect();
        if !self.options.sequential && order.len() > 1 {
            let start = rt::random_in(0..order.len());
            order.rotate_left(start);
        }
        let now = Instant::now();
        order.sort_by_key(|server| server.rests(now));
        order
    }
}

impl Server {
    fn rests(&self, now: Instant) -> bool {
        let until = self.resting_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| now < until)
    }

    fn record_failure(&self, allowed: u32) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if allowed > 0 && failures >= allowed {
            *self.resting_until.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Instant::now() + REST);
        }
    }
}

/// Queries a server with a new id from a new port, and accepts only an answer to this query.
async fn exchange(server: SocketAddr, query: &[u8], tcp: bool) -> std::io::Result<Vec<u8>> {
    let mut sent = query.to_vec();
    let (own, theirs) = (rt::random(), wire::id(query).unwrap_or_default());
    wire::set_id(&mut sent, own);
    let fits = |response: &[u8]| wire::id(response) == Some(own) && wire::answers(&sent, response);
    let mut response =
        if tcp { over_tcp(server, &sent).await? } else { over_udp(server, &sent, fits).await? };
    if tcp && !fits(&response) {
        return Err(std::io::Error::other("the answer is to another question"));
    }
    wire::set_id(&mut response, theirs);
    Ok(response)
}

async fn over_udp(
    server: SocketAddr,
    query: &[u8],
    fits: impl Fn(&[u8]) -> bool,
) -> std::io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; 65_535];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if fits(&buffer[..length]) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn over_tcp(server: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(query.len()).map_err(std::io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(query);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut response = vec![0; length.into()];
    stream.read_exact(&mut response).await?;
    Ok(response)
}

/// Returns the addresses that one argument of `forward` stands for.
fn addresses(text: &str) -> Result<Vec<SocketAddr>, ServerError> {
    let bare = text.strip_prefix("dns://").unwrap_or(text);
    if let Ok(address) = bare.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, 53)]);
    }
    let file = std::fs::read_to_string(text);
    let file =
        file.map_err(|error| ServerError { server: text.to_owned(), reason: error.to_string() })?;
    let servers = file.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    // A zone after % names an interface of this machine and is dropped.
    let ips =
        servers.filter_map(|server| server.trim().split(['%', ' ', '\t']).next()?.parse().ok());
    Ok(ips.map(|ip| SocketAddr::new(ip, 53)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_servers_from_addresses_and_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "# x\nsearch a b\nnameserver 192.0.2.1\n nameserver fe80::1%eth0\noptions edns0\n",
        )
        .unwrap();
        for (text, expected) in [
            ("192.0.2.7", vec!["192.0.2.7:53"]),
            ("dns://192.0.2.7:54", vec!["192.0.2.7:54"]),
            ("[fd00::1]:54", vec!["[fd00::1]:54"]),
            (file.path().to_str().unwrap(), vec!["192.0.2.1:53", "[fe80::1]:53"]),
        ] {
            let found: Vec<_> =
                addresses(text).unwrap().iter().map(SocketAddr::to_string).collect();
            assert_eq!(found, expected);
        }
        assert!(addresses("/no/such/file").unwrap_err().to_string().contains("/no/such/file"));
    }
}

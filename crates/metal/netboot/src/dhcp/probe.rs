//! Detects whether an address is already in use: sends one ICMP echo request and waits briefly for the reply.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use tokio::{net::UdpSocket, sync::oneshot};

use crate::interface::Interface;

/// The time to wait for a reply. A neighbour replies within milliseconds; a client waits at least a second for its
/// offer.
const REPLY_TIMEOUT: Duration = Duration::from_millis(25);
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// Probes addresses on one interface. All probes share one raw socket: the kernel delivers every reply to every raw
/// socket, and a rack that powers on causes hundreds of probes at once.
pub(super) struct Prober {
    socket: UdpSocket,
    waiting: Mutex<HashMap<Ipv4Addr, Vec<oneshot::Sender<()>>>>,
}

impl Prober {
    pub(super) fn new(interface: &Interface) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            Some(ipproto::ICMP),
        )?;
        interface.bind(&socket)?;
        // A raw socket supports the same send and receive calls as a UDP socket.
        let socket = UdpSocket::from_std(std::net::UdpSocket::from(socket))?;
        Ok(Self { socket, waiting: Mutex::default() })
    }

    pub(super) async fn is_in_use(&self, address: Ipv4Addr) -> io::Result<bool> {
        let (sender, reply) = oneshot::channel();
        self.waiting.lock().entry(address).or_default().push(sender);
        let sent = self.socket.send_to(&echo_request(), SocketAddr::from((address, 0))).await;
        let is_answered = match sent {
            Ok(_) => {
                tokio::time::timeout(REPLY_TIMEOUT, reply).await.is_ok_and(|reply| reply.is_ok())
            }
            Err(_) => false,
        };
        let mut waiting = self.waiting.lock();
        if let Some(others) = waiting.get_mut(&address) {
            others.retain(|other| !other.is_closed());
            if others.is_empty() {
                waiting.remove(&address);
            }
        }
        sent.map(|_| is_answered)
    }

    /// Receives replies and wakes the probes that wait for them.
    pub(super) async fn listen(&self) {
        let mut buffer = [0u8; 128];
        loop {
            match self.socket.recv_from(&mut buffer).await {
                Ok((length, from)) => {
                    if let IpAddr::V4(from) = from.ip()
                        && is_reply(&buffer[..length])
                    {
                        for waiting in self.waiting.lock().remove(&from).into_iter().flatten() {
                            let _ = waiting.send(());
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "receiving probe replies");
                    tokio::time::sleep(REPLY_TIMEOUT).await;
                }
            }
        }
    }
}

/// Returns an echo request. Its checksum is the complement of the only non-zero word.
fn echo_request() -> [u8; 8] {
    let [high, low] = (!(u16::from(ECHO_REQUEST) << 8)).to_be_bytes();
    [ECHO_REQUEST, 0, high, low, 0, 0, 0, 0]
}

/// Returns `true` for an echo reply. The packet includes its IP header.
fn is_reply(packet: &[u8]) -> bool {
    let header = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    packet.get(header) == Some(&ECHO_REPLY) && header > 0
}

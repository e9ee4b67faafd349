//! Whether someone answers at an address already: one echo request, and a short wait for its answer.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use tokio::net::UdpSocket;

use super::server::Interface;

/// A neighbour answers within a few milliseconds; a client waits a second or more for its offer.
const PATIENCE: Duration = Duration::from_millis(30);
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

pub(super) async fn is_taken(interface: &Interface, address: Ipv4Addr) -> io::Result<bool> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::RAW,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        Some(ipproto::ICMP),
    )?;
    interface.bind(&socket)?;
    // A connected raw socket hears only its peer.
    // A raw socket sends and receives as a UDP socket does, and connected it hears only its peer.
    let socket = UdpSocket::from_std(std::net::UdpSocket::from(socket))?;
    socket.connect(SocketAddrV4::new(address, 0)).await?;
    socket.send(&echo_request()).await?;
    match tokio::time::timeout(PATIENCE, reply(&socket)).await {
        Ok(answered) => Ok(answered),
        Err(_) => Ok(false),
    }
}

/// With its checksum: the one's complement of the one word that is not zero.
fn echo_request() -> [u8; 8] {
    let [high, low] = (!(u16::from(ECHO_REQUEST) << 8)).to_be_bytes();
    [ECHO_REQUEST, 0, high, low, 0, 0, 0, 0]
}

async fn reply(socket: &UdpSocket) -> bool {
    let mut buffer = [0u8; 128];
    loop {
        // Host unreachable: nobody is there.
        let Ok(length) = socket.recv(&mut buffer).await else { return false };
        // The packet comes with its IP header.
        let header = usize::from(buffer[0] & 0x0f) * 4;
        if header < length && buffer[header] == ECHO_REPLY {
            return true;
        }
    }
}

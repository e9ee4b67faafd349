//! Sends IPv6 router advertisements with a router lifetime of zero, so that hosts install no default route.
//!
//! iPXE solicits IPv6 routers before it continues with IPv4, and waits 13 seconds without an answer. The advertisement
//! ends that wait.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr, SocketAddrV6},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use tokio::net::UdpSocket;

use crate::interface::Interface;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;

/// Returns the advertisement; the kernel fills in the checksum.
fn advertisement() -> [u8; 16] {
    let mut packet = [0; 16];
    packet[0] = ADVERTISEMENT;
    // Hop limit. Flags, lifetime and timers stay zero.
    packet[4] = 64;
    packet
}

/// Answers router solicitations on one interface.
pub struct Responder {
    socket: UdpSocket,
    interface: Interface,
}

impl Responder {
    /// Opens a raw ICMPv6 socket on the interface, which requires CAP_NET_RAW.
    pub fn new(interface: Interface) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::INET6,
            SocketType::RAW,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            Some(ipproto::ICMPV6),
        )?;
        interface.bind(&socket)?;
        sockopt::set_ipv6_add_membership(&socket, &ALL_ROUTERS, interface.index)?;
        // Neighbour discovery drops packets with another hop limit, because a router may have forwarded them.
        sockopt::set_ipv6_multicast_hops(&socket, 255)?;
        // A raw socket supports the same send and receive calls as a UDP socket.
        let socket = UdpSocket::from_std(std::net::UdpSocket::from(socket))?;
        Ok(Self { socket, interface })
    }

    /// Answers until the future is dropped. Errors are logged and retried.
    pub async fn run(self: std::sync::Arc<Self>) {
        loop {
            if let Err(error) = self.answer_one().await {
                tracing::warn!(interface = %self.interface.name, %error, "router advertisement");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }

    async fn answer_one(&self) -> io::Result<()> {
        let mut buffer = [0u8; 256];
        let length = self.socket.recv(&mut buffer).await?;
        if length < 8 || buffer[0] != SOLICITATION {
            return Ok(());
        }
        let to = SocketAddrV6::new(ALL_NODES, 0, 0, self.interface.index);
        self.socket.send_to(&advertisement(), SocketAddr::V6(to)).await?;
        tracing::debug!(interface = %self.interface.name, "answered a router solicitation");
        Ok(())
    }
}

//! Network interfaces that the servers bind to, so that they answer only the networks behind them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, OwnedFd},
};

use nix::sys::socket::{setsockopt, sockopt::BindToDevice};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, UdpSocket};

/// The receive buffer in bytes, enough for some thousand packets.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The maximum number of connections that wait for `accept`.
const BACKLOG: i32 = 128;

/// A network interface with an IPv4 address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The name, for example `eth0`.
    pub name: String,
    /// The kernel's interface index.
    pub index: u32,
    /// The first IPv4 address.
    pub address: Ipv4Addr,
}

impl Interface {
    /// Looks up an interface and its first IPv4 address.
    pub fn named(name: &str) -> io::Result<Self> {
        let failed = |reason: &str| io::Error::other(format!("interface {name}: {reason}"));
        let index = nix::net::if_::if_nametoindex(name)
            .map_err(|error| failed(&format!("{error}; is its name right?")))?;
        let address = nix::ifaddrs::getifaddrs()?
            .filter(|entry| entry.interface_name == name)
            .find_map(|entry| Some(entry.address?.as_sockaddr_in()?.ip()))
            .ok_or_else(|| failed("has no IPv4 address; give it one"))?;
        Ok(Self { name: name.to_owned(), index, address })
    }

    /// Restricts a socket to this interface.
    pub(crate) fn bind(&self, socket: &impl AsFd) -> io::Result<()> {
        Ok(setsockopt(socket, BindToDevice, &self.name.clone().into())?)
    }

    /// Opens a UDP socket on this interface that receives from all clients.
    pub(crate) fn udp(&self, address: Ipv4Addr, port: u16) -> io::Result<UdpSocket> {
        let socket = self.udp_of_one(address, port)?;
        // The default buffer holds 90 packets, fewer than a rack that powers on sends at once. Without CAP_NET_ADMIN
        // the system limit applies.
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
        }
        Ok(socket)
    }

    /// Opens a UDP socket on this interface for one client.
    pub(crate) fn udp_of_one(&self, address: Ipv4Addr, port: u16) -> io::Result<UdpSocket> {
        let socket = self.open(SocketType::DGRAM, address, port)?;
        sockopt::set_socket_broadcast(&socket, true)?;
        UdpSocket::from_std(socket.into())
    }

    /// Listens for TCP connections on this interface.
    pub(crate) fn tcp(&self, address: Ipv4Addr, port: u16) -> io::Result<TcpListener> {
        let socket = self.open(SocketType::STREAM, address, port)?;
        rustix::net::listen(&socket, BACKLOG)?;
        TcpListener::from_std(socket.into())
    }

    fn open(&self, kind: SocketType, address: Ipv4Addr, port: u16) -> io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let open = || -> io::Result<OwnedFd> {
            let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
            // Each interface has a socket of its own on the same port.
            sockopt::set_socket_reuseaddr(&socket, true)?;
            self.bind(&socket)?;
            rustix::net::bind(&socket, &SocketAddrV4::new(address, port))?;
            Ok(socket)
        };
        open().map_err(|error| {
            let protocol = if kind == SocketType::STREAM { "TCP" } else { "UDP" };
            let name = &self.name;
            io::Error::new(error.kind(), format!("{protocol} {address}%{name}:{port}: {error}"))
        })
    }
}

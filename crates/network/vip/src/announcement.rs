//! Announces the MAC address of an IPv4 address to the neighbours on a link.

use std::{io, net::Ipv4Addr, os::fd::AsRawFd as _};

use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket},
};

/// The length of an Ethernet header and an ARP packet.
const LENGTH: usize = 42;

/// Broadcasts one gratuitous ARP request on the link.
pub(crate) fn announce(interface: &str, address: Ipv4Addr) -> io::Result<()> {
    let link = link_of(interface)?;
    let hardware = link.addr().ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "the interface has no hardware address")
    })?;
    let (family, kind) = (AddressFamily::Packet, SockType::Raw);
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    sendto(socket.as_raw_fd(), &frame(hardware, address), &link, MsgFlags::empty())?;
    Ok(())
}

/// Returns the kernel's description of the interface, which is also the address to send to.
fn link_of(interface: &str) -> io::Result<LinkAddr> {
    let all = getifaddrs()?.filter(|address| address.interface_name == interface);
    let mut links = all.filter_map(|address| address.address?.as_link_addr().copied());
    links
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no such interface"))
}

/// Builds an ARP request for the address by its own holder. Neighbours update their entries from the sender's fields.
fn frame(hardware: [u8; 6], address: Ipv4Addr) -> [u8; LENGTH] {
    let mut frame = [0; LENGTH];
    let ip = address.octets();
    let parts: [(usize, &[u8]); 10] = [
        (0, &[0xff; 6]),
        (6, &hardware),
        (12, &[0x08, 0x06]),
        // Ethernet and IPv4, with the lengths of their addresses.
        (14, &[0, 1, 0x08, 0]),
        (18, &[6, 4]),
        // A request.
        (20, &[0, 1]),
        (22, &hardware),
        (28, &ip),
        (32, &[0; 6]),
        (38, &ip),
    ];
    for (at, bytes) in parts {
        frame[at..at + bytes.len()].copy_from_slice(bytes);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_gratuitous_arp_request() {
        let frame = frame([2, 0, 0, 0, 0, 9], Ipv4Addr::new(192, 0, 2, 100));
        assert_eq!(
            data_encoding::HEXLOWER.encode(&frame),
            "ffffffffffff02000000000908060001080006040001020000000009c0000264000000000000c0000264"
        );
    }

    #[test]
    fn rejects_missing_interface() {
        let error = announce("no-such-link", Ipv4Addr::LOCALHOST).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

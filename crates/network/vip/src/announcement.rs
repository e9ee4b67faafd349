//! Announces the MAC address of an IP address to the neighbours on a link, by ARP or by neighbour discovery.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd as _,
};

use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket},
};

/// The length of an Ethernet header and an ARP packet.
const ARP_LENGTH: usize = 42;
/// The length of the ICMPv6 message: type, code, checksum, flags, target and one option.
const ADVERTISEMENT_LENGTH: usize = 32;
/// The protocol number of ICMPv6.
const ICMPV6: u8 = 58;

/// Sends one gratuitous ARP request or one unsolicited neighbour advertisement on the link.
pub(crate) fn send(interface: &str, address: IpAddr) -> io::Result<()> {
    let link = link_of(interface)?;
    let hardware = link.addr().ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "the interface has no hardware address")
    })?;
    let frame = match address {
        IpAddr::V4(v4) => arp_request(hardware, v4).to_vec(),
        IpAddr::V6(v6) => advertisement(hardware, v6),
    };
    let (family, kind) = (AddressFamily::Packet, SockType::Raw);
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    sendto(socket.as_raw_fd(), &frame, &link, MsgFlags::empty())?;
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
fn arp_request(hardware: [u8; 6], address: Ipv4Addr) -> [u8; ARP_LENGTH] {
    let mut frame = [0; ARP_LENGTH];
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

/// Builds an unsolicited neighbour advertisement to all nodes on the link (RFC 4861 §4.4). The flag Override makes
/// neighbours replace the MAC address that they know.
fn advertisement(hardware: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(address.octets());
    // The option of the target's link-layer address, one unit of eight bytes long.
    message.extend([2, 1]);
    message.extend(hardware);
    let checksum = checksum(address, all_nodes, &message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend(hardware);
    frame.extend([0x86, 0xdd]);
    // Version 6, the length, and the hop limit 255, which shows that no router has forwarded the packet.
    frame.extend([0x60, 0, 0, 0, 0, ADVERTISEMENT_LENGTH as u8, ICMPV6, 255]);
    frame.extend(address.octets());
    frame.extend(all_nodes.octets());
    frame.extend(message);
    frame
}

/// Returns the checksum of an ICMPv6 message with its pseudo-header (RFC 8200 §8.1).
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let pseudo = [0, 0, 0, message.len() as u8, 0, 0, 0, ICMPV6];
    let all = from.octets().into_iter().chain(to.octets()).chain(pseudo);
    let bytes: Vec<u8> = all.chain(message.iter().copied()).collect();
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_gratuitous_arp_request() {
        let frame = arp_request([2, 0, 0, 0, 0, 9], Ipv4Addr::new(192, 0, 2, 100));
        assert_eq!(
            data_encoding::HEXLOWER.encode(&frame),
            "ffffffffffff02000000000908060001080006040001020000000009c0000264000000000000c0000264"
        );
    }

    #[test]
    fn builds_neighbour_advertisement_with_valid_checksum() {
        let address: Ipv6Addr = "fd00::5".parse().unwrap();
        let frame = advertisement([2, 0, 0, 0, 0, 9], address);
        let (header, message) = frame.split_at(54);
        assert_eq!(
            data_encoding::HEXLOWER.encode(header),
            "33330000000102000000000986dd6000000000203afffd000000000000000000000000000005ff020000000000000000000000000001"
        );
        assert_eq!(message.len(), ADVERTISEMENT_LENGTH);
        assert_eq!(&message[24..], [2, 1, 2, 0, 0, 0, 0, 9]);
        // A message sums up to zero with its own checksum.
        assert_eq!(checksum(address, "ff02::1".parse().unwrap(), message), 0);
    }

    #[test]
    fn rejects_missing_interface() {
        let error = send("no-such-link", Ipv4Addr::LOCALHOST.into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

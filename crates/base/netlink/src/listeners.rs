//! Lists listening sockets from `/proc/net`, which every kernel has. The modules for listing them by netlink
//! (`tcp_diag`, `udp_diag`) may be missing.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    net::{IpAddr, SocketAddr},
};

use net_core::api::Protocol;

use crate::error::Error;

/// The tables and the state of a listening socket in each: `TCP_LISTEN`, and for UDP `TCP_CLOSE`, an unconnected
/// socket.
const TABLES: [(&str, Protocol, &str); 4] = [
    ("tcp", Protocol::Tcp, "0A"),
    ("tcp6", Protocol::Tcp, "0A"),
    ("udp", Protocol::Udp, "07"),
    ("udp6", Protocol::Udp, "07"),
];

pub(crate) fn list() -> Result<Vec<(Protocol, SocketAddr)>, Error> {
    let mut found = Vec::new();
    for (table, protocol, state) in TABLES {
        let path = format!("/proc/thread-self/net/{table}");
        let failed = |source| Error::Listeners { path: path.clone(), source };
        let file = match File::open(&path) {
            // The kernel has no IPv6.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            file => file.map_err(failed)?,
        };
        for line in BufReader::new(file).lines() {
            let line = line.map_err(failed)?;
            found.extend(parse(&line, state).map(|socket| (protocol, socket)));
        }
    }
    Ok(found)
}

/// Parses the local address of a line (`sl local_address rem_address st …`) whose socket is in `state`.
pub(crate) fn parse(line: &str, state: &str) -> Option<SocketAddr> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let local = words.next()?;
    if words.nth(1)? != state {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    Some(SocketAddr::new(parse_address(address)?, u16::from_str_radix(port, 16).ok()?))
}

/// Parses an address of 32-bit words in native byte order, each with eight hexadecimal digits.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match text.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (chunk, at) in octets.chunks_mut(4).zip([0, 8, 16, 24]) {
                chunk.copy_from_slice(&word(at)?);
            }
            Some(IpAddr::from(octets).to_canonical())
        }
        _ => None,
    }
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    #[test]
    fn parses_listening_sockets_only() {
        let tail = "00000000:00000000 00:00000000 00000000 0 0 1 1 0";
        for (line, expected) in [
            (format!("0: 0100007F:1F90 00000000:0000 0A {tail}"), Some("127.0.0.1:8080")),
            (format!("0: 0100007F:1F90 0100007F:D431 01 {tail}"), None),
            (format!("10: 00000000:0016 00000000:0000 0A {tail}"), Some("0.0.0.0:22")),
            (format!("0: {0}:192B {0}:0000 0A {tail}", "0".repeat(32)), Some("[::]:6443")),
            (
                "0: 0000000000000000FFFF0000010200C0:192B 0:0000 0A".to_owned(),
                Some("192.0.2.1:6443"),
            ),
            ("0: 000000FD000000000000000001000000:0035 0:0000 0A".to_owned(), Some("[fd00::1]:53")),
            ("  sl  local_address rem_address   st tx_queue".to_owned(), None),
            ("0: 0100007F".to_owned(), None),
            ("0: 0100007F:1F90Z 0:0 0A".to_owned(), None),
        ] {
            assert_eq!(parse(&line, "0A"), expected.map(|text| text.parse().unwrap()), "{line}");
        }
    }
}

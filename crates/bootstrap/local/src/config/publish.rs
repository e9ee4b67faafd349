//! Ports of this host that lead to node ports (`--publish`).

use std::{collections::BTreeSet, fmt, net::TcpListener, net::UdpSocket, str::FromStr};

use net_core::api::Protocol;
use serde::{Deserialize, Serialize};

/// The range of node ports.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// A port of this host that leads to a node port, written as `8080:30080/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublishedPort {
    /// The port of this host.
    pub port: u16,
    /// The node port.
    pub node_port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

/// The error for a text that is not a published port, or for one that cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error(
        "--publish {0}: expected PORT:NODEPORT or PORT:NODEPORT/PROTOCOL with tcp, udp or sctp, like \
         8080:30080/tcp"
    )]
    Form(String),
    #[error("--publish {0}: the node port is not from 30000 to 32767")]
    NodePort(String),
    #[error("--publish {0}: the port is published twice")]
    Twice(PublishedPort),
    #[error("--publish {0}: the port belongs to the cluster itself; choose another")]
    Reserved(PublishedPort),
    #[error(
        "--publish {port}: a program of this host listens there ({source}); find it with `ss -lntup`, or choose \
         another port"
    )]
    InUse { port: PublishedPort, source: std::io::Error },
}

impl FromStr for PublishedPort {
    type Err = PublishError;

    fn from_str(text: &str) -> Result<Self, PublishError> {
        let malformed = || PublishError::Form(text.to_owned());
        let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => return Err(malformed()),
        };
        let (port, node_port) = ports.split_once(':').ok_or_else(malformed)?;
        let number = |digits: &str| {
            let number: u16 = digits.parse().map_err(|_| malformed())?;
            if number == 0 || !digits.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(malformed());
            }
            Ok(number)
        };
        let (port, node_port) = (number(port)?, number(node_port)?);
        if !NODE_PORTS.contains(&node_port) {
            return Err(PublishError::NodePort(text.to_owned()));
        }
        Ok(Self { port, node_port, protocol })
    }
}

impl fmt::Display for PublishedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.port, self.node_port, self.protocol.lower())
    }
}

impl TryFrom<String> for PublishedPort {
    type Error = PublishError;

    fn try_from(text: String) -> Result<Self, PublishError> {
        text.parse()
    }
}

impl From<PublishedPort> for String {
    fn from(port: PublishedPort) -> Self {
        port.to_string()
    }
}

/// Checks that each port is free. Ports that are published already, as `current` lists, are.
pub(crate) fn check(
    ports: &[PublishedPort],
    current: &[PublishedPort],
    reserved: &[u16],
) -> Result<(), PublishError> {
    let mut seen = BTreeSet::new();
    for port in ports {
        if !seen.insert((port.protocol, port.port)) {
            return Err(PublishError::Twice(*port));
        }
        // All node ports belong to Services.
        let is_own = reserved.contains(&port.port) && port.protocol == Protocol::Tcp;
        if is_own || NODE_PORTS.contains(&port.port) {
            return Err(PublishError::Reserved(*port));
        }
        if current.contains(port) {
            continue;
        }
        let any = ("0.0.0.0", port.port);
        let free = match port.protocol {
            Protocol::Tcp => TcpListener::bind(any).map(drop),
            Protocol::Udp => UdpSocket::bind(any).map(drop),
            Protocol::Sctp => Ok(()),
        };
        free.map_err(|source| PublishError::InUse { port: *port, source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_ports() {
        for (text, shown) in [
            ("8080:30080/tcp", "8080:30080/tcp"),
            ("80:32767", "80:32767/tcp"),
            ("53:30053/udp", "53:30053/udp"),
            ("1:30000/sctp", "1:30000/sctp"),
        ] {
            assert_eq!(text.parse::<PublishedPort>().unwrap().to_string(), shown);
        }
        for wrong in [
            "",
            "8080",
            "8080:",
            ":30080",
            "0:30080",
            "8080:0",
            "8080:30080/TCP",
            "8080:30080/",
            "+80:30080",
            "8080:30080:1",
            "127.0.0.1:8080:30080",
            "70000:30080",
            "8080:29999",
            "8080:32768",
            "é:30080",
        ] {
            assert!(wrong.parse::<PublishedPort>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rejects_ports_in_use() {
        let parse = |text: &str| text.parse::<PublishedPort>().unwrap();
        let taken = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let (own, udp) = (parse(&format!("{port}:30080")), parse(&format!("{port}:30080/udp")));
        assert!(matches!(check(&[own], &[], &[]), Err(PublishError::InUse { .. })));
        assert!(check(&[own, udp], &[own], &[]).is_ok(), "its own rules do not keep the port busy");
        assert!(matches!(check(&[own, own], &[own], &[]), Err(PublishError::Twice(_))));
        for reserved in ["6443:30080", "30081:30080"] {
            let error = check(&[parse(reserved)], &[], &[6443]).unwrap_err();
            assert!(matches!(error, PublishError::Reserved(_)), "{reserved}");
        }
    }
}

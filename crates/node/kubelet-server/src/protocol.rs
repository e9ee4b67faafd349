//! The streams of an exec, attach or port-forward, and the WebSocket protocols that carry them.

use crate::query::Query;

/// The WebSocket protocols of exec and attach in the order of preference. kubectl requests the first one.
pub(crate) const CHANNELS: &[(&str, Dialect)] = &[
    ("v5.channel.k8s.io", Dialect { status: true, base64: false, can_close: true }),
    ("v4.channel.k8s.io", Dialect { status: true, base64: false, can_close: false }),
    ("v4.base64.channel.k8s.io", Dialect { status: true, base64: true, can_close: false }),
    ("channel.k8s.io", Dialect { status: false, base64: false, can_close: false }),
    ("base64.channel.k8s.io", Dialect { status: false, base64: true, can_close: false }),
    // A client without a protocol header uses the oldest protocol.
    ("", Dialect { status: false, base64: false, can_close: false }),
];

/// The WebSocket protocols of port-forward with two channels for each port, in the order of preference.
pub(crate) const PORTS: &[(&str, Dialect)] = &[
    ("v4.channel.k8s.io", Dialect { status: true, base64: false, can_close: false }),
    ("v4.base64.channel.k8s.io", Dialect { status: true, base64: true, can_close: false }),
    ("", Dialect { status: true, base64: false, can_close: false }),
];

/// The largest number of ports of one WebSocket, which has a byte for the channel.
const MAX_PORTS: usize = 127;

/// The reason why the ports of a port-forward are refused, with upstream's messages.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PortsError {
    #[error("query parameter \"port\" is required")]
    Missing,
    #[error("query parameter \"port\" cannot be empty")]
    Empty,
    #[error("unable to parse {0:?} as a port")]
    Unknown(String),
    #[error("port {0:?} must be > 0")]
    Zero(String),
    #[error("{0} ports are requested, but a WebSocket has channels for at most {MAX_PORTS}")]
    Many(usize),
}

/// Reads the ports of a port-forward from the kubelet's parameter or that of the Pod's subresource.
pub(crate) fn ports(query: &Query) -> Result<Vec<u16>, PortsError> {
    let values = [query.all("port"), query.all("ports")].concat();
    let mut ports = Vec::new();
    for value in &values {
        if value.is_empty() {
            return Err(PortsError::Empty);
        }
        for port in value.split(',') {
            let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            let number = port.parse().ok().filter(|_| digits);
            match number.ok_or_else(|| PortsError::Unknown(value.clone()))? {
                0 => return Err(PortsError::Zero(value.clone())),
                number => ports.push(number),
            }
        }
    }
    match ports.len() {
        0 => Err(PortsError::Missing),
        count if count > MAX_PORTS => Err(PortsError::Many(count)),
        _ => Ok(ports),
    }
}

/// The streams of an exec or attach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) tty: bool,
}

impl Options {
    /// Reads the kubelet's parameter names and those of the Pod's subresources, because a server may pass these on.
    pub(crate) fn of(query: &Query) -> Self {
        let either = |one: &str, other: &str| query.is(one) || query.is(other);
        let tty = query.is("tty");
        Self {
            stdin: either("input", "stdin"),
            stdout: either("output", "stdout"),
            // A terminal merges both outputs.
            stderr: either("error", "stderr") && !tty,
            tty,
        }
    }
}

/// The features of a WebSocket protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    /// `true` if the error channel ends with a Status in JSON, also on success. Else it only has the text of a failure.
    pub(crate) status: bool,
    /// `true` if messages are text: the channel's digit and the content in base64.
    pub(crate) base64: bool,
    /// `true` if a client may close one channel and leave the others open.
    pub(crate) can_close: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ports_and_refuses_broken_ones() {
        let read = |query: &str| ports(&Query::of(query)).map_err(|error| error.to_string());
        assert_eq!(read("port=80&port=443,8080"), Ok(vec![80, 443, 8080]));
        assert_eq!(read("ports=80"), Ok(vec![80]));
        for (query, message) in [
            ("", "query parameter \"port\" is required"),
            ("port=", "query parameter \"port\" cannot be empty"),
            ("port=80,", "unable to parse \"80,\" as a port"),
            ("port=+1", "unable to parse \" 1\" as a port"),
            ("port=65536", "unable to parse \"65536\" as a port"),
            ("port=0", "port \"0\" must be > 0"),
        ] {
            assert_eq!(read(query), Err(message.to_owned()), "{query}");
        }
        let many = format!("port={}", vec!["1"; MAX_PORTS + 1].join(","));
        assert!(read(&many).unwrap_err().starts_with("128 ports are requested"));
    }
}

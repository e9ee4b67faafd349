//! The address of a collector.

use std::path::PathBuf;

use tonic::transport::{self, Channel};

/// The collector's address by default: OTLP's port on this machine.
const DEFAULT: &str = "localhost:4317";
/// gRPC's port of an address without one.
const PORT: u16 = 443;

/// The address of a collector. Connections to it are not encrypted, as upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `host:port`.
    Tcp(String),
    /// The path of a socket; it begins with a zero byte in the abstract namespace.
    Unix(PathBuf),
}

/// The error for an address of a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("unsupported scheme: {0}.  Options are none, dns, unix, or unix-abstract")]
    Scheme(String),
    #[error("{0:?} is not host:port")]
    Address(String),
    #[error("a DNS server is not supported; use dns:///host:port")]
    DnsServer,
    #[error("the path of the socket is missing")]
    Path,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self::Tcp(DEFAULT.to_owned())
    }
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    /// Parses gRPC's notations: `host:port`, `dns:///host:port`, `unix:///path` and `unix-abstract://name`.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let Some((scheme, rest)) = text.split_once("://") else { return tcp(text) };
        match (scheme, rest.split_once('/')) {
            ("unix" | "unix-abstract", _) if rest.is_empty() => Err(EndpointError::Path),
            ("unix", _) => Ok(Self::Unix(rest.into())),
            ("unix-abstract", _) => Ok(Self::Unix(format!("\0{rest}").into())),
            ("dns", Some(("", address))) => tcp(address),
            ("dns", _) => Err(EndpointError::DnsServer),
            (scheme, _) => Err(EndpointError::Scheme(scheme.to_owned())),
        }
    }
}

fn tcp(text: &str) -> Result<Endpoint, EndpointError> {
    let invalid = || EndpointError::Address(text.to_owned());
    let authority: http::uri::Authority = text.parse().map_err(|_| invalid())?;
    // What follows the host is a port. A user before it is not supported.
    let rest = text.strip_prefix(authority.host()).filter(|_| !authority.host().is_empty());
    match rest.ok_or_else(invalid)?.strip_prefix(':') {
        Some(port) if port.parse::<u16>().is_ok() => Ok(Endpoint::Tcp(text.to_owned())),
        Some(_) => Err(invalid()),
        None => Ok(Endpoint::Tcp(format!("{text}:{PORT}"))),
    }
}

impl Endpoint {
    /// Returns a connection that is opened by the first request. Must be called within a Tokio runtime.
    pub(crate) fn channel(&self) -> Result<Channel, EndpointError> {
        match self {
            Self::Tcp(authority) => {
                let endpoint = transport::Endpoint::from_shared(format!("http://{authority}"));
                let endpoint =
                    endpoint.map_err(|_| EndpointError::Address(authority.to_owned()))?;
                Ok(endpoint.connect_lazy())
            }
            Self::Unix(path) => Ok(grpc::channel(path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_notations_of_grpc() {
        for (text, wanted) in [
            ("localhost:4317", Endpoint::Tcp("localhost:4317".to_owned())),
            ("[::1]:4317", Endpoint::Tcp("[::1]:4317".to_owned())),
            ("collector.example", Endpoint::Tcp("collector.example:443".to_owned())),
            ("dns:///collector:1", Endpoint::Tcp("collector:1".to_owned())),
            ("unix:///run/otel.sock", Endpoint::Unix("/run/otel.sock".into())),
            ("unix-abstract://otel", Endpoint::Unix("\0otel".into())),
        ] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn rejects_other_addresses() {
        let address = |text: &str| EndpointError::Address(text.to_owned());
        for (text, error) in [
            ("http://localhost:4317", EndpointError::Scheme("http".to_owned())),
            ("dns://8.8.8.8/collector:1", EndpointError::DnsServer),
            ("dns://collector:1", EndpointError::DnsServer),
            ("unix://", EndpointError::Path),
            ("", address("")),
            ("host:", address("host:")),
            ("host:99999", address("host:99999")),
            ("me@host:1", address("me@host:1")),
            ("a b:1", address("a b:1")),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(error), "{text}");
        }
    }
}

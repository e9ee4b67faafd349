//! The egress selector: the proxies through which the API server reaches networks (`--egress-selector-config-file`).

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use api_config::{
    EgressSelectorConfiguration,
    egress::{Connection, TcpTransport, TlsConfig, Transport, UdsTransport},
};
use api_meta::{ErrorList, FieldError, Path as Field, aggregate};
use client::{ClientTls, Proxy, TlsFiles};
use konnectivity::Konnectivity;

/// The authorities for servers without a bundle of their own.
pub(crate) const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

const PROTOCOLS: [&str; 3] = ["Direct", "HTTPConnect", "GRPC"];
const NETWORKS: [&str; 3] = ["cluster", "controlplane", "etcd"];

/// A network that the API server connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Network {
    /// The cluster: kubelets, Pods and Services.
    Cluster,
    /// The control plane's own network: webhooks at URLs, and webhooks of kubeconfigs.
    ControlPlane,
    /// A server that is never reached through a proxy.
    Direct,
}

/// The proxies by network. Without one, connections leave directly.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    /// `true` if there is a configuration, even if all of its connections are direct.
    pub(crate) is_configured: bool,
    cluster: Option<Proxy>,
    control_plane: Option<Proxy>,
    /// The proxy of connections to etcd.
    pub etcd: Option<Proxy>,
}

/// The error for an unusable egress selector, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    #[error("failed to read egress selector config: {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("failed to read egress selector config: {path}: {source}")]
    Parse { path: String, source: api_config::Error },
    #[error("failed to validate egress selector configuration: {}", aggregate(.0))]
    Invalid(ErrorList),
    #[error("egress selector {network}: invalid proxy server url {url:?}: {source}")]
    Url { network: String, url: String, source: client::ProxyUrlError },
    #[error("egress selector {network}: failed to read key pair and authorities: {source}")]
    Tls { network: String, source: client::TlsError },
}

impl Egress {
    /// Reads and validates the file.
    pub fn load(path: &Path) -> Result<Self, EgressError> {
        let shown = || path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| EgressError::Read { path: shown(), source })?;
        let config = EgressSelectorConfiguration::parse(&text)
            .map_err(|source| EgressError::Parse { path: shown(), source })?;
        let errors = validate(&config);
        if !errors.is_empty() {
            return Err(EgressError::Invalid(errors));
        }
        let mut egress = Self { is_configured: true, ..Self::default() };
        for selection in config.egress_selections {
            let network = selection.name.to_lowercase();
            let proxy = proxy(&network, &selection.connection)?;
            match network.as_str() {
                "cluster" => egress.cluster = proxy,
                "controlplane" => egress.control_plane = proxy,
                _ => egress.etcd = proxy,
            }
        }
        Ok(egress)
    }

    /// Returns the proxy of a network, or `None` if its servers are reached directly.
    pub(crate) fn proxy(&self, network: Network) -> Option<Proxy> {
        match network {
            Network::Cluster => self.cluster.clone(),
            Network::ControlPlane => self.control_plane.clone(),
            Network::Direct => None,
        }
    }
}

/// Returns the proxy of a validated connection.
fn proxy(network: &str, connection: &Connection) -> Result<Option<Proxy>, EgressError> {
    let network = network.to_owned();
    let transport = match (&*connection.proxy_protocol, &connection.transport) {
        ("GRPC", Some(Transport { uds: Some(uds), .. })) => {
            let server = Arc::new(Konnectivity::new(&uds.uds_name));
            return Ok(Some(Proxy::dialer(&uds.uds_name, server)));
        }
        ("HTTPConnect", Some(transport)) => transport,
        _ => return Ok(None),
    };
    match transport {
        Transport { uds: Some(uds), .. } => Ok(Some(Proxy::unix(Path::new(&uds.uds_name)))),
        Transport { tcp: Some(tcp), .. } => {
            let tls = tcp.tls_config.as_ref().map(tls).transpose();
            let tls =
                tls.map_err(|source| EgressError::Tls { network: network.clone(), source })?;
            let (proxy, url) = (Proxy::http_connect(&tcp.url, tls), Proxy::shown_url(&tcp.url));
            proxy.map(Some).map_err(|source| EgressError::Url { network, url, source })
        }
        Transport { uds: None, tcp: None } => Ok(None),
    }
}

fn tls(config: &TlsConfig) -> Result<ClientTls, client::TlsError> {
    let ca = match config.ca_bundle.as_str() {
        "" => SYSTEM_AUTHORITIES,
        bundle => bundle,
    };
    ClientTls::from_files(TlsFiles {
        ca: Some(ca.into()),
        certificate: Some(PathBuf::from(&config.client_cert)),
        key: Some(PathBuf::from(&config.client_key)),
        insecure: false,
    })
}

fn validate(config: &EgressSelectorConfiguration) -> ErrorList {
    let mut errors = ErrorList::new();
    let at = Field::new("service").child("connection");
    for selection in &config.egress_selections {
        let Connection { proxy_protocol, transport } = &selection.connection;
        match (proxy_protocol.as_str(), transport) {
            ("Direct", None) => {}
            ("Direct", Some(_)) => {
                let detail = "Transport config should be absent for direct connect";
                errors.push(FieldError::invalid(&at.child("transport"), "direct", detail));
            }
            (protocol @ ("HTTPConnect" | "GRPC"), None) => {
                let detail = format!("transport must be set for {protocol}");
                errors.push(FieldError::required(&at.child("transport"), detail));
            }
            ("HTTPConnect", Some(transport)) => http_connect(transport, &at, &mut errors),
            ("GRPC", Some(Transport { uds: Some(uds), .. })) => unix(uds, &at, &mut errors),
            ("GRPC", Some(_)) => {
                errors.push(FieldError::required(&at.child("uds"), "UDS must be set with GRPC"));
            }
            (other, _) => {
                errors.push(FieldError::not_supported(&at.child("protocol"), other, &PROTOCOLS));
            }
        }
    }
    let mut known = BTreeSet::new();
    for (i, selection) in config.egress_selections.iter().enumerate() {
        let name = selection.name.to_lowercase();
        if !known.insert(name.clone()) {
            errors.push(FieldError::duplicate(&at.index(i), name));
        } else if !NETWORKS.contains(&name.as_str()) {
            errors.push(FieldError::not_supported(&at, name, &NETWORKS));
        }
    }
    errors
}

fn http_connect(transport: &Transport, at: &Field, errors: &mut ErrorList) {
    match (&transport.tcp, &transport.uds) {
        (Some(tcp), Some(_)) => {
            let detail = "TCP and UDS cannot both be set";
            errors.push(FieldError::invalid(&at.child("tcp"), Proxy::shown_url(&tcp.url), detail));
        }
        (None, None) => {
            errors.push(FieldError::required(&at.child("tcp"), "One of TCP or UDS must be set"));
        }
        (Some(tcp), None) => by_tcp(tcp, at, errors),
        (None, Some(uds)) => unix(uds, at, errors),
    }
}

fn unix(uds: &UdsTransport, at: &Field, errors: &mut ErrorList) {
    if uds.uds_name.is_empty() {
        let detail = "UDSName should be present for UDS connections";
        errors.push(FieldError::invalid(&at.child("udsName"), "nil", detail));
    }
}

fn by_tcp(tcp: &TcpTransport, at: &Field, errors: &mut ErrorList) {
    let tls = at.child("tlsConfig");
    if tcp.url.starts_with("http://") {
        if tcp.tls_config.is_some() {
            let detail = "TLSConfig config should not be present when using HTTP";
            errors.push(FieldError::invalid(&tls, "nil", detail));
        }
    } else if tcp.url.starts_with("https://") {
        match &tcp.tls_config {
            Some(config) => files(config, &tls, errors),
            None => {
                errors
                    .push(FieldError::required(&tls, "TLSConfig must be present when using HTTPS"));
            }
        }
    } else {
        let detail = "supported connection protocols are http:// and https://";
        errors.push(FieldError::invalid(&at.child("url"), Proxy::shown_url(&tcp.url), detail));
    }
}

fn files(config: &TlsConfig, at: &Field, errors: &mut ErrorList) {
    let is_missing = |path: &str| !Path::new(path).exists();
    let mut invalid = |field: &str, value: &str, detail: &str| {
        errors.push(FieldError::invalid(&at.child(field), value, detail));
    };
    let bundle = config.ca_bundle.as_str();
    if !bundle.is_empty() && is_missing(bundle) {
        invalid("caBundle", bundle, "TLS config ca bundle does not exist");
    }
    match config.client_cert.as_str() {
        "" => invalid("clientCert", "nil", "Using TLS requires clientCert"),
        path if is_missing(path) => invalid("clientCert", path, "TLS client cert does not exist"),
        _ => {}
    }
    match config.client_key.as_str() {
        "" => invalid("clientKey", "nil", "Using TLS requires requires clientKey"),
        path if is_missing(path) => invalid("clientKey", path, "TLS client key does not exist"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(selections: &str) -> Result<Egress, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let head = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n";
        std::fs::write(file.path(), format!("{head}egressSelections: [{selections}]\n")).unwrap();
        Egress::load(file.path()).map_err(|error| error.to_string())
    }

    fn selection(name: &str, connection: &str) -> String {
        format!("{{name: {name}, connection: {{{connection}}}}}")
    }

    #[test]
    fn selects_proxies_by_network() {
        let direct = selection("etcd", "proxyProtocol: Direct");
        let socket = "proxyProtocol: HTTPConnect, transport: {uds: {udsName: /run/proxy.sock}}";
        let plain = "proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://127.0.0.1:8131'}}";
        let (cluster, control_plane) =
            (selection("Cluster", socket), selection("controlplane", plain));
        let egress = load(&format!("{direct}, {cluster}, {control_plane}")).unwrap();
        assert!(egress.is_configured && egress.etcd.is_none());
        assert!(egress.proxy(Network::Cluster).is_some());
        assert!(egress.proxy(Network::ControlPlane).is_some());
        assert!(egress.proxy(Network::Direct).is_none());
        assert!(load("").unwrap().proxy(Network::Cluster).is_none());
    }

    #[test]
    fn rejects_invalid_selections() {
        let connect = |transport: &str| {
            selection("cluster", &format!("proxyProtocol: HTTPConnect, transport: {{{transport}}}"))
        };
        let https =
            |tls: &str| connect(&format!("tcp: {{url: 'https://a:8131', tlsConfig: {{{tls}}}}}"));
        let direct = selection("cluster", "proxyProtocol: Direct");
        for (selections, message) in [
            (
                selection("cluster", "proxyProtocol: SOCKS5"),
                "service.connection.protocol: Unsupported value: \"SOCKS5\": supported values: \"Direct\", \"HTTPConnect\", \"GRPC\"",
            ),
            (
                selection("cluster", "proxyProtocol: Direct, transport: {}"),
                "service.connection.transport: Invalid value: \"direct\": Transport config should be absent for direct connect",
            ),
            (
                selection("cluster", "proxyProtocol: HTTPConnect"),
                "service.connection.transport: Required value: transport must be set for HTTPConnect",
            ),
            (connect(""), "service.connection.tcp: Required value: One of TCP or UDS must be set"),
            (
                connect("tcp: {url: 'http://a'}, uds: {udsName: /a}"),
                "service.connection.tcp: Invalid value: \"http://a\": TCP and UDS cannot both be set",
            ),
            (
                connect("uds: {}"),
                "service.connection.udsName: Invalid value: \"nil\": UDSName should be present for UDS connections",
            ),
            (
                connect("tcp: {url: 'socks5://root:secret@a'}"),
                "service.connection.url: Invalid value: \"socks5://a\": supported connection protocols are http:// and https://",
            ),
            (
                connect("tcp: {url: 'http://a', tlsConfig: {}}"),
                "service.connection.tlsConfig: Invalid value: \"nil\": TLSConfig config should not be present when using HTTP",
            ),
            (
                connect("tcp: {url: 'https://a'}"),
                "service.connection.tlsConfig: Required value: TLSConfig must be present when using HTTPS",
            ),
            (
                https("caBundle: /none"),
                "[service.connection.tlsConfig.caBundle: Invalid value: \"/none\": TLS config ca bundle does not exist, service.connection.tlsConfig.clientCert: Invalid value: \"nil\": Using TLS requires clientCert, service.connection.tlsConfig.clientKey: Invalid value: \"nil\": Using TLS requires requires clientKey]",
            ),
            (
                https("clientCert: /none, clientKey: /none"),
                "[service.connection.tlsConfig.clientCert: Invalid value: \"/none\": TLS client cert does not exist, service.connection.tlsConfig.clientKey: Invalid value: \"/none\": TLS client key does not exist]",
            ),
            (
                selection("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'http://a'}}"),
                "service.connection.uds: Required value: UDS must be set with GRPC",
            ),
            (format!("{direct}, {direct}"), "service.connection[1]: Duplicate value: \"cluster\""),
            (
                selection("master", "proxyProtocol: Direct"),
                "service.connection: Unsupported value: \"master\": supported values: \"cluster\", \"controlplane\", \"etcd\"",
            ),
        ] {
            let wanted = format!("failed to validate egress selector configuration: {message}");
            assert_eq!(load(&selections).unwrap_err(), wanted);
        }
        let grpc = selection("cluster", "proxyProtocol: GRPC, transport: {uds: {udsName: /a}}");
        assert!(load(&grpc).unwrap().proxy(Network::Cluster).is_some());
        let unusable = load(&connect("tcp: {url: 'http://root:secret@ a'}")).unwrap_err();
        assert!(unusable.contains("\"http:// a\"") && !unusable.contains("secret"), "{unusable}");
        assert!(load("{name: cluster, connections: {}}").unwrap_err().contains("connections"));
        assert!(Egress::load(Path::new("/none")).is_err());
    }
}

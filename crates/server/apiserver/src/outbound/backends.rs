//! Cached transports to backends behind Services and URLs: webhooks and aggregated API servers.
//!
//! The API's objects resolve a Service to an address. No data of a backend is interpreted as an address.

use std::{collections::HashMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::time::Instant;

use api_meta::{GroupResource, Objects, Tree as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use client::{ClientTls, HttpTransport, TlsError, TlsMaterial};
use parking_lot::Mutex;

use super::{error::BackendError, target, users::WebhookUser};
use crate::config::{Egress, Network, egress::SYSTEM_AUTHORITIES};

/// The number of cached transports, and the time after which an unused one is dropped.
const CACHED: usize = 256;
const UNUSED: Duration = Duration::from_secs(90);

/// The transports to all backends. Objects with the same destination share its connections.
pub(crate) struct Backends {
    /// The source of Services and endpoints.
    objects: Arc<dyn Objects>,
    identity: Option<Identity>,
    egress: Egress,
    cached: Mutex<HashMap<Destination, CachedTransport>>,
}

/// The client certificate and key for aggregated API servers, which trust the user headers of requests with it.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

struct CachedTransport {
    transport: Arc<HttpTransport>,
    used: Instant,
}

/// The address and TLS parameters of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    pub(super) at: Location,
    /// The name in the backend's certificate and in the `Host` header.
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) trust: Trust,
    /// The network of the backend, which may be behind a proxy.
    pub(super) network: Network,
}

/// The address of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Location {
    /// An endpoint of a Service.
    Address(SocketAddr),
    /// The origin of a URL or of an ExternalName Service.
    Server(String),
}

/// The authorities for the backend's certificate, and the credentials for the backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trust {
    /// Authorities as base64 of PEM; the system's if empty.
    pub(crate) bundle: Arc<str>,
    /// `true` if any certificate is accepted.
    pub(crate) insecure: bool,
    /// The credentials sent to the backend.
    pub(crate) credentials: Credentials,
}

/// The credentials sent to a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Credentials {
    Anonymous,
    /// The client certificate that aggregated API servers trust.
    Server,
    User(Arc<WebhookUser>),
}

impl Trust {
    /// Verifies the backend with the authorities of a bundle, and sends no credentials.
    pub(super) fn bundle(bundle: Arc<str>) -> Self {
        Self { bundle, insecure: false, credentials: Credentials::Anonymous }
    }
}

impl Backends {
    pub(crate) fn new(
        objects: Arc<dyn Objects>,
        identity: Option<Identity>,
        egress: Egress,
    ) -> Arc<Self> {
        Arc::new(Self { objects, identity, egress, cached: Mutex::default() })
    }

    pub(super) fn pooled_transport(
        &self,
        destination: &Destination,
    ) -> Result<Arc<HttpTransport>, BackendError> {
        let mut cached = self.cached.lock();
        if let Some(way) = cached.get_mut(destination) {
            way.used = Instant::now();
            return Ok(way.transport.clone());
        }
        cached
            .retain(|_, way| way.used.elapsed() < UNUSED || Arc::strong_count(&way.transport) > 1);
        if cached.len() >= CACHED {
            cached.clear();
        }
        let transport = Arc::new(self.transport(destination)?);
        let used = Instant::now();
        cached.insert(destination.clone(), CachedTransport { transport: transport.clone(), used });
        Ok(transport)
    }

    pub(super) fn endpoint(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<Location, BackendError> {
        let service = self.objects.get(&GroupResource::SERVICES, namespace, name);
        let service = service.ok_or_else(|| BackendError::NoService(name.to_owned()))?;
        if let Some(host) = service.opt_text("spec.externalName") {
            return Ok(Location::Server(format!("https://{host}:{port}")));
        }
        if !service.items("spec.ports").iter().any(|p| p["port"] == port) {
            return Err(BackendError::NoPort { service: name.to_owned(), port });
        }
        let address = target::endpoint(&*self.objects, namespace, name, port);
        address.map(Location::Address).ok_or_else(|| BackendError::NoEndpoints(name.to_owned()))
    }

    fn transport(&self, destination: &Destination) -> Result<HttpTransport, BackendError> {
        let tls = self.tls(&destination.trust)?;
        let transport = match &destination.at {
            Location::Address(address) => {
                HttpTransport::at(*address, tls).for_host(&destination.name, destination.port)
            }
            Location::Server(server) => {
                HttpTransport::new(server, tls, None)?.with_server_name(&destination.name)
            }
        };
        let transport = transport.by_proxy(self.egress.proxy(destination.network));
        Ok(match &destination.trust.credentials {
            Credentials::User(user) => user.on(transport),
            Credentials::Anonymous | Credentials::Server => transport,
        })
    }

    fn tls(&self, trust: &Trust) -> Result<ClientTls, BackendError> {
        let ca = match &*trust.bundle {
            _ if trust.insecure => None,
            "" => Some(std::fs::read(SYSTEM_AUTHORITIES).map_err(|source| {
                BackendError::SystemAuthorities { path: SYSTEM_AUTHORITIES, source }
            })?),
            bundle => Some(STANDARD.decode(bundle)?),
        };
        let material = TlsMaterial { ca, insecure: trust.insecure, ..TlsMaterial::default() };
        let tls = match (&trust.credentials, self.identity.clone()) {
            (Credentials::User(user), _) => user.clone().tls(material),
            (Credentials::Server, Some(identity)) => {
                let files = vec![identity.certificate.clone(), identity.key.clone()];
                ClientTls::following(files, move || identity.add_identity(material.clone()))
            }
            (Credentials::Anonymous | Credentials::Server, _) => {
                material.client_config().map(ClientTls::from)
            }
        };
        Ok(tls?)
    }
}

impl Identity {
    fn add_identity(&self, material: TlsMaterial) -> Result<TlsMaterial, TlsError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| TlsError::Read { path: path.clone(), source })
        };
        let (certificate, key) = (Some(read(&self.certificate)?), Some(read(&self.key)?));
        Ok(TlsMaterial { certificate, key, ..material })
    }
}

impl Destination {
    /// Returns the error for a failed connection, with its innermost cause in upstream's words for common causes.
    pub(super) fn connection_error(&self, error: &client::Error) -> BackendError {
        let address = match &self.at {
            Location::Address(address) => address.to_string(),
            Location::Server(server) => server.trim_start_matches("https://").to_owned(),
        };
        BackendError::Connection { cause: cause(error, &address, &self.name) }
    }
}

/// Returns the innermost cause of a failed connection, as [`Destination::connection_error`], for a server at `address`
/// whose certificate must be valid for `name`.
pub(super) fn cause(error: &client::Error, address: &str, name: &str) -> String {
    match error.cause().to_string() {
        words if words.contains("Connection refused") => {
            format!("dial tcp {address}: connect: connection refused")
        }
        words if words.contains("UnknownIssuer") => {
            "tls: failed to verify certificate: x509: certificate signed by unknown authority"
                .to_owned()
        }
        words if words.contains("not valid for name") || words.contains("NotValidForName") => {
            format!(
                "tls: failed to verify certificate: x509: certificate is not valid for {name}: {words}"
            )
        }
        words => words,
    }
}

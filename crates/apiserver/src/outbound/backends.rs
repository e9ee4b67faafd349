//! Ways to the servers that stand behind Services and URLs: webhooks, and API servers of other groups.
//!
//! A Service's name becomes an address by the API's own objects; no text of a backend's is read as one.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

use api_meta::{GroupResource, Objects, Tree as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use client::{ClientTls, HttpTransport, TlsError, TlsMaterial};

use super::{target, users::WebhookUser};

/// Whom a backend's certificate is checked against when nothing is said.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// How many ways are kept, and for how long nobody may have gone one of them.
const WAYS: usize = 256;
const UNUSED: Duration = Duration::from_secs(90);

/// The ways to all backends. Those who call the same place share its connections, whichever object they have it from.
pub(crate) struct Backends {
    /// Where Services are looked for.
    objects: Arc<dyn Objects>,
    identity: Option<Identity>,
    ways: Mutex<HashMap<Place, Way>>,
}

/// The certificate and key by which API servers of other groups know this one, and believe whom it names.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

struct Way {
    transport: Arc<HttpTransport>,
    used: Instant,
}

/// Where a backend is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) at: At,
    /// Whom its certificate must name, and what it is called in requests.
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) trust: Trust,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum At {
    /// An endpoint of a Service.
    Address(SocketAddr),
    /// What a URL, or a Service that stands for a name outside, says.
    Server(String),
}

/// What a backend must show, and what it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trust {
    /// Authorities in PEM, as base64; the system's if empty.
    pub(crate) bundle: Arc<str>,
    /// Any certificate will do.
    pub(crate) insecure: bool,
    /// Who this server is to the backend.
    pub(crate) shown: Shown,
}

/// Who this server shows itself to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shown {
    Nobody,
    /// Whom other API servers believe.
    Server,
    User(Arc<WebhookUser>),
}

impl Trust {
    /// A backend that must be known to the authorities of a bundle, and is shown nothing.
    pub(super) fn bundle(bundle: Arc<str>) -> Self {
        Self { bundle, insecure: false, shown: Shown::Nobody }
    }
}

impl Backends {
    pub(crate) fn new(objects: Arc<dyn Objects>, identity: Option<Identity>) -> Arc<Self> {
        Arc::new(Self { objects, identity, ways: Mutex::default() })
    }

    pub(super) fn way(&self, place: &Place) -> Result<Arc<HttpTransport>, String> {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(way) = ways.get_mut(place) {
            way.used = Instant::now();
            return Ok(way.transport.clone());
        }
        ways.retain(|_, way| way.used.elapsed() < UNUSED || Arc::strong_count(&way.transport) > 1);
        if ways.len() >= WAYS {
            ways.clear();
        }
        let transport = Arc::new(self.transport(place)?);
        let used = Instant::now();
        ways.insert(place.clone(), Way { transport: transport.clone(), used });
        Ok(transport)
    }

    pub(super) fn endpoint(&self, namespace: &str, name: &str, port: u16) -> Result<At, String> {
        let service = self.objects.get(&GroupResource::SERVICES, namespace, name);
        let service = service.ok_or_else(|| format!("service \"{name}\" not found"))?;
        if let Some(host) = service.opt_text("spec.externalName") {
            return Ok(At::Server(format!("https://{host}:{port}")));
        }
        if !service.items("spec.ports").iter().any(|p| p["port"] == port) {
            return Err(format!("no service port {port} found for service \"{name}\""));
        }
        let address = target::endpoint(&*self.objects, namespace, name, port);
        address
            .map(At::Address)
            .ok_or_else(|| format!("no endpoints available for service \"{name}\""))
    }

    fn transport(&self, place: &Place) -> Result<HttpTransport, String> {
        let tls = self.tls(&place.trust)?;
        let transport = match &place.at {
            At::Address(address) => {
                HttpTransport::at(*address, tls).for_host(&place.name, place.port)
            }
            At::Server(server) => HttpTransport::new(server, tls, None)
                .map_err(|e| e.to_string())?
                .with_server_name(&place.name),
        };
        Ok(match &place.trust.shown {
            Shown::User(user) => user.on(transport),
            Shown::Nobody | Shown::Server => transport,
        })
    }

    fn tls(&self, trust: &Trust) -> Result<ClientTls, String> {
        let ca = match &*trust.bundle {
            _ if trust.insecure => None,
            "" => Some(std::fs::read(SYSTEM_AUTHORITIES).map_err(|e| {
                format!("reading {SYSTEM_AUTHORITIES}, as no caBundle is given: {e}")
            })?),
            bundle => {
                Some(STANDARD.decode(bundle).map_err(|e| format!("reading the caBundle: {e}"))?)
            }
        };
        let material = TlsMaterial { ca, insecure: trust.insecure, ..TlsMaterial::default() };
        let tls = match (&trust.shown, self.identity.clone()) {
            (Shown::User(user), _) => user.clone().tls(material),
            (Shown::Server, Some(identity)) => {
                let files = vec![identity.certificate.clone(), identity.key.clone()];
                ClientTls::following(files, move || identity.beside(material.clone()))
            }
            (Shown::Nobody | Shown::Server, _) => material.client_config().map(ClientTls::from),
        };
        tls.map_err(|e| e.to_string())
    }
}

impl Identity {
    fn beside(&self, material: TlsMaterial) -> Result<TlsMaterial, TlsError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| TlsError::Read { path: path.clone(), source })
        };
        let (certificate, key) = (Some(read(&self.certificate)?), Some(read(&self.key)?));
        Ok(TlsMaterial { certificate, key, ..material })
    }
}

impl Place {
    /// The innermost cause, which is what went wrong with the connection, in upstream's words where people know those.
    pub(super) fn cause(&self, error: &client::Error) -> String {
        let address = match &self.at {
            At::Address(address) => address.to_string(),
            At::Server(server) => server.trim_start_matches("https://").to_owned(),
        };
        cause(error, &address, &self.name)
    }
}

/// The same, for a server at `address` whose certificate must name `name`.
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

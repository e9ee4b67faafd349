//! The HTTPS server of a component's pages.

use std::{fmt, net::SocketAddr, path::PathBuf, sync::Arc};

use api_config::FeatureGates;
use client::Client;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, request::Parts};
use pki::AltName;
use rt::FromFiles;
use serde_json::Value;
use serve::{Body, Handler, ServerTls, TlsPolicy, answer};
use telemetry::metrics::{CONTENT_TYPE, Metrics};
use tokio::net::TcpListener;

use crate::{
    access::Access,
    cache::TtlCache,
    health::HealthPage,
    slis::Slis,
    zpages::{ComponentInfo, NotAcceptable},
};

/// A further metrics page: its path and its text at the time of the call.
#[derive(Clone)]
pub struct Page {
    /// The path, such as `/metrics/resources`.
    pub path: &'static str,
    /// Returns the text.
    pub text: Arc<dyn Fn() -> String + Send + Sync>,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path)
    }
}

/// The settings of a component's server.
#[derive(Clone)]
pub struct Settings {
    /// The name of the component.
    pub component: &'static str,
    /// The address to listen on. Port 0 disables serving, as upstream.
    pub address: SocketAddr,
    /// The serving certificate and its key; `None` generates one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The permitted TLS versions and cipher suites.
    pub tls: TlsPolicy,
    /// The CA of client certificates; without it, certificates name no user.
    pub client_ca: Option<PathBuf>,
    /// The client for TokenReviews; without it, tokens are rejected.
    pub authentication: Option<Client>,
    /// The client for SubjectAccessReviews; without it, only administrators are authorized.
    pub authorization: Option<Client>,
    /// The component's metrics.
    pub metrics: Metrics,
    /// The feature gates, which switch `/flagz` and `/statusz`.
    pub features: FeatureGates,
    /// A metrics page besides `/metrics` and `/metrics/slis`.
    pub page: Option<Page>,
    /// The effective configuration, by the name of its kind's group.
    pub configuration: Value,
}

/// The error of starting the server.
#[derive(Debug, thiserror::Error)]
pub enum DiagnosticsError {
    #[error("reading the client CA {path}: {source}; correct --client-ca-file")]
    ReadCa { path: PathBuf, source: std::io::Error },
    #[error("parsing the client CA {path}: {source}; correct --client-ca-file")]
    ParseCa { path: PathBuf, source: pki::ClientError },
    #[error("generating the serving certificate of {component}: {source}")]
    Certificate { component: &'static str, source: pki::Error },
    #[error("loading the serving certificate of {component}: {source}")]
    Tls { component: &'static str, source: serve::TlsError },
    #[error(
        "listening for health checks of {component} on {address}: {source}; stop the process that listens there, or \
         choose another --secure-port"
    )]
    Listen { component: &'static str, address: SocketAddr, source: std::io::Error },
}

/// The paths of a component, for `/statusz`.
const PATHS: &[&str] = &[
    "/configz",
    "/flagz",
    "/healthz",
    "/livez",
    "/metrics",
    "/metrics/slis",
    "/readyz",
    "/statusz",
];

/// Serves the pages until shutdown.
///
/// # Errors
///
/// Returns an error if a certificate cannot be used or the address is taken.
pub async fn serve(settings: Settings, tasks: &rt::Tasks) -> Result<(), DiagnosticsError> {
    let Settings { component, address, .. } = settings;
    if address.port() == 0 {
        return Ok(());
    }
    let client_ca = settings.client_ca.clone().map(client_ca).transpose()?;
    let hints = client_ca.as_ref().map(|ca| ca.current().authorities()).unwrap_or_default();
    let tls = server_tls(&settings, hints)?;
    let listener = TcpListener::bind(address).await.map_err(|source| DiagnosticsError::Listen {
        component,
        address,
        source,
    })?;
    let handler = Pages {
        access: Access {
            client_ca,
            authentication: settings.authentication,
            authorization: settings.authorization,
            tokens: TtlCache::default(),
            decisions: TtlCache::default(),
        },
        info: ComponentInfo { name: component, started: rt::now().into(), paths: PATHS },
        metrics: settings.metrics,
        features: settings.features,
        page: settings.page,
        configuration: settings.configuration.to_string(),
        slis: Slis::default(),
        tasks: tasks.clone(),
    };
    // Only probes and a few scrapers connect: more connections are an attack or a leak.
    let limits = serve::Limits { connections: 64, ..serve::Limits::default() };
    let serving = serve::serve(listener, Some(tls), limits, Arc::new(handler), tasks.clone());
    tasks.essential("diagnostics", serving);
    Ok(())
}

fn client_ca(file: PathBuf) -> Result<FromFiles<pki::ClientCa>, DiagnosticsError> {
    let watched = vec![file.clone()];
    let read = move || {
        let pem = std::fs::read(&file)
            .map_err(|source| DiagnosticsError::ReadCa { path: file.clone(), source })?;
        pki::ClientCa::from_pem(&pem)
            .map_err(|source| DiagnosticsError::ParseCa { path: file.clone(), source })
    };
    FromFiles::new(watched, read)
}

fn server_tls(settings: &Settings, hints: Vec<Vec<u8>>) -> Result<ServerTls, DiagnosticsError> {
    let component = settings.component;
    let tls = match &settings.identity {
        Some((certificate, key)) => {
            ServerTls::from_files_under(settings.tls.clone(), certificate, key, hints)
        }
        None => {
            // Probes do not verify the certificate.
            let names = vec![AltName::dns("localhost"), AltName::Ip(settings.address.ip())];
            let (certificate, key) = pki::self_signed(component, names, rt::now())
                .map_err(|source| DiagnosticsError::Certificate { component, source })?;
            ServerTls::new_under(&settings.tls, &certificate, &key, hints)
        }
    };
    tls.map_err(|source| DiagnosticsError::Tls { component, source })
}

/// The handler of all pages.
struct Pages {
    access: Access,
    info: ComponentInfo,
    metrics: Metrics,
    features: FeatureGates,
    page: Option<Page>,
    configuration: String,
    slis: Slis,
    tasks: rt::Tasks,
}

impl Handler for Pages {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        // The body is not needed, so drop it before calling the API server.
        let (parts, _) = request.into_parts();
        Box::pin(async move { self.respond(&parts).await })
    }
}

impl Pages {
    async fn respond(&self, request: &Parts) -> Response<Body> {
        let path = request.uri.path();
        if let Some(page) = HealthPage::of(path) {
            let verbose = request.uri.query().is_some_and(|query| has_parameter(query, "verbose"));
            let (status, words) = page.answer(&self.tasks, &self.slis, verbose);
            return text(status, words);
        }
        let Some(user) = self.access.user(request).await else {
            return text(StatusCode::UNAUTHORIZED, "Unauthorized\n".to_owned());
        };
        let reads = matches!(request.method, Method::GET | Method::HEAD);
        let verb = if reads { "get" } else { "post" };
        if !self.access.is_authorized(&user, verb, path).await {
            let name = &user.name;
            let message = format!("forbidden: User {name:?} cannot {verb} path {path:?}\n");
            return text(StatusCode::FORBIDDEN, message);
        }
        if !reads {
            return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n".to_owned());
        }
        self.read(request)
            .unwrap_or_else(|error| text(StatusCode::NOT_ACCEPTABLE, format!("{error}\n")))
    }

    fn read(&self, request: &Parts) -> Result<Response<Body>, NotAcceptable> {
        let metrics = |page: String| answer(StatusCode::OK, CONTENT_TYPE, page);
        let path = request.uri.path();
        if let Some(page) = self.info.page(path, &request.headers, &self.features) {
            return page;
        }
        Ok(match path {
            "/metrics" => metrics(self.metrics.text()),
            "/metrics/slis" => metrics(self.slis.text()),
            "/configz" => answer(StatusCode::OK, "application/json", self.configuration.clone()),
            path => match self.page.as_ref().filter(|page| page.path == path) {
                Some(page) => metrics((page.text)()),
                None => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
            },
        })
    }
}

fn text(status: StatusCode, words: String) -> Response<Body> {
    answer(status, "text/plain; charset=utf-8", words)
}

/// Returns `true` if a query has a parameter of this name.
fn has_parameter(query: &str, name: &str) -> bool {
    query.split('&').any(|pair| pair.split('=').next() == Some(name))
}

#[cfg(test)]
mod tests;

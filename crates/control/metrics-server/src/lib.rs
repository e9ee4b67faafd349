//! The Metrics API (`metrics.k8s.io/v1beta1`): current resource usage, for `kubectl top` and autoscalers.
//!
//! It is an aggregated API server, as upstream's metrics-server: an APIService names it, the front proxy authenticates
//! the user, and a SubjectAccessReview authorizes each request. Usage comes from the kubelets' `/metrics/resource`. The
//! server uses a separate identity for that, which may read nothing else of a node. Read [`start`] first.
//!
//! Invariants:
//! - Kubelets are only scraped while clients request metrics, so that an idle cluster has no cost. The first request
//!   after a pause scrapes all kubelets twice within about a second, because a rate needs two points. Then they are
//!   scraped every 15 seconds, as by metrics-server, until no request has come for a minute.
//! - The last two points of each node are kept, and no history.

mod documents;
mod points;
mod scrape;
mod server;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use client::{Client, ClientTls};
use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serve::ServerTls;
use tokio::net::TcpListener;

/// The configuration of the server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The kubeconfig for the API server and the kubelets.
    pub kubeconfig: PathBuf,
    /// The CA of the front proxy's client certificate.
    pub front_proxy_ca: PathBuf,
    /// The common name that the front proxy's certificate must have.
    pub front_proxy_name: String,
}

/// An error that prevents serving the Metrics API.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listen on {address}: {source}; is another server there?")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the authority of the front proxy, {}: {source}", path.display())]
    FrontProxy { path: PathBuf, source: auth::authn::certificate::CertificateError },
    #[error("create the serving certificate: {0}")]
    Certificate(#[from] pki::Error),
    #[error(transparent)]
    Tls(#[from] serve::TlsError),
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
}

/// The validity of the serving certificate, which is created at each start.
const TEN_YEARS: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Listens, and serves until shutdown.
pub async fn start(config: Config, tasks: &rt::Tasks) -> Result<(), Error> {
    let client = Client::from_kubeconfig_file(&config.kubeconfig, "metrics-server")?;
    let tls = ClientTls::from_kubeconfig_file(&config.kubeconfig)?;
    let authority = read(&config)?;
    let server = server::Server::new(
        client.clone(),
        authority,
        config.front_proxy_name.clone(),
        Arc::new(scrape::Scraper::new(client, tls)),
    );
    serve_at(config.address, server, tasks).await
}

fn read(config: &Config) -> Result<auth::authn::certificate::ClientCa, Error> {
    let path = &config.front_proxy_ca;
    let pem = std::fs::read(path).map_err(|source| Error::Read { path: path.clone(), source })?;
    auth::authn::certificate::ClientCa::from_pem(&pem)
        .map_err(|source| Error::FrontProxy { path: path.clone(), source })
}

async fn serve_at(
    address: SocketAddr,
    server: server::Server,
    tasks: &rt::Tasks,
) -> Result<(), Error> {
    let listener =
        TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    let tls = identity(address)?;
    let server = Arc::new(server);
    let scraper = server.scraper.clone();
    tasks.keep("metrics of kubelets", move || scraper.clone().follow());
    let serving =
        serve::serve(listener, Some(tls), serve::Limits::default(), server, tasks.clone());
    tasks.essential("metrics API", serving);
    Ok(())
}

/// Creates a serving certificate from a new CA. An APIService can either name a CA or be replaced by metrics-server's
/// manifest, which disables verification. The risk is limited to usage data.
fn identity(address: SocketAddr) -> Result<ServerTls, Error> {
    let validity = Validity::starting(rt::now(), TEN_YEARS);
    let authority = Authority::create("metrics-server-ca", KeyAlgorithm::EcdsaP256, validity)?;
    let alt_names = vec![AltName::Ip(address.ip())];
    let spec =
        LeafSpec { subject: Subject::new("metrics-server"), alt_names, usage: Usage::Server };
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    Ok(ServerTls::new(cert.to_pem().as_bytes(), key.to_pem()?.as_bytes(), Vec::new())?)
}

//! The Metrics API (`metrics.k8s.io/v1beta1`): what nodes and Pods use now, for `kubectl top` and autoscalers.
//!
//! It stands behind the API server as upstream's metrics-server does: an APIService names it, the API server vouches for
//! who asks, and whether they may is asked of the API server again. What is used comes from the kubelets'
//! `/metrics/resource`, under an identity of its own that may read that and nothing else of a node.
//!
//! Nobody is asked while nobody asks. The first question after a pause has all kubelets asked twice, a second apart, as a
//! rate needs two points; from then on they are asked every 15 seconds, as metrics-server does, until the questions have
//! stopped for a minute. So an idle cluster pays nothing, and the window of the first answer is short, and says so.

mod answers;
mod points;
mod scrape;
mod server;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use client::{Client, ClientTls};
use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serve::ServerTls;
use tokio::net::TcpListener;

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens.
    pub address: SocketAddr,
    /// As whom it asks the API server and the kubelets.
    pub kubeconfig: PathBuf,
    /// Who signs the certificate of the proxy that may speak for users, and what it is called.
    pub front_proxy_ca: PathBuf,
    pub front_proxy_name: String,
}

/// Why the Metrics API is not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listen on {address}: {source}; is another server there?")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the authority of the front proxy, {}: {message}", path.display())]
    FrontProxy { path: PathBuf, message: String },
    #[error("make a certificate to serve with: {0}")]
    Certificate(#[from] pki::Error),
    #[error(transparent)]
    Tls(#[from] serve::TlsError),
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
}

/// The certificate is made anew at each start, and is good for longer than a process lives.
const TEN_YEARS: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Begins to listen, and serves until shutdown.
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
        .map_err(|error| Error::FrontProxy { path: path.clone(), message: error.to_string() })
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

/// A certificate of its own making: an APIService can either name an authority or be taken over by applying
/// metrics-server's manifest, which says to check none. What is at stake is who uses how much.
fn identity(address: SocketAddr) -> Result<ServerTls, Error> {
    let validity = Validity::starting(rt::now(), TEN_YEARS);
    let authority = Authority::create("metrics-server-ca", KeyAlgorithm::EcdsaP256, validity)?;
    let alt_names = vec![AltName::Ip(address.ip())];
    let spec =
        LeafSpec { subject: Subject::new("metrics-server"), alt_names, usage: Usage::Server };
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    Ok(ServerTls::new(cert.to_pem().as_bytes(), key.to_pem()?.as_bytes(), Vec::new())?)
}

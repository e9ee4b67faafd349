//! A node's own way to the API: a TCP balancer on the node over all API servers of the cluster.
//!
//! Whoever on the node speaks to it speaks TLS with an API server; the balancer hands bytes on. It learns of servers
//! from the endpoints of the Service `kubernetes`, through itself, and keeps them in a file, so that it knows them
//! when it starts in a cluster that lacks the one it began with.
//!
//! Invariants: a connection goes to a server that answers, if there is one; a connection to a server that is silent
//! is closed, so that clients do not wait for theirs to time out; a server is never forgotten while the last list of
//! the cluster's names it.

mod health;
mod known;
mod pool;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pool::Pool;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::timeout,
};

/// By which name every API server's certificate is asked for: all have it, whatever their addresses.
pub const SERVER_NAME: &str = "kubernetes";

/// How long a server has to take a connection before another one is tried.
const DIAL: Duration = Duration::from_secs(2);
/// Far more than a node's components need.
const CONNECTIONS: usize = 4096;

/// Balances this node's connections over the cluster's API servers
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Where the node's components reach the API
    #[arg(long, default_value = "127.0.0.1:7445")]
    pub listen: SocketAddr,
    /// The file of known API servers, one host:port a line; rewritten as the cluster's change
    #[arg(long)]
    pub servers: PathBuf,
    /// The authorities of the API servers' certificates
    #[arg(long)]
    pub certificate_authority: PathBuf,
    /// Asks the cluster for its API servers; while it is not there, those of the file are used
    #[arg(long)]
    pub kubeconfig: PathBuf,
}

/// Why the balancer does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listening on {address}: {source}; does another balancer run on this node?")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("reading the API servers in {path}: {source}; join writes it")]
    Servers { path: String, source: std::io::Error },
    #[error("{path} names no API server; write host:port of one into it")]
    NoServer { path: String },
}

/// The servers, shared by the tasks; tells of every change.
pub(crate) struct Servers {
    pool: Mutex<Pool>,
    changed: watch::Sender<()>,
}

impl Servers {
    fn new(addresses: &[String]) -> Self {
        Self { pool: Mutex::new(Pool::new(addresses)), changed: watch::channel(()).0 }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, address: &str, finding: pool::Finding) {
        let changed = self.pool().report(address, finding);
        if let Some(standing) = changed {
            tracing::info!(server = address, ?standing, "API server");
            self.changed.send_replace(());
        }
    }

    /// Returns when the server is silent.
    async fn silent(&self, address: &str) {
        let mut changes = self.changed.subscribe();
        while !self.pool().is_silent(address) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Serves until it is told to stop.
pub async fn run(args: Args, tasks: &rt::Tasks) -> Result<(), Error> {
    let path = || args.servers.display().to_string();
    let addresses =
        known::read(&args.servers).map_err(|source| Error::Servers { path: path(), source })?;
    if addresses.is_empty() {
        return Err(Error::NoServer { path: path() });
    }
    let address = args.listen;
    let listening = TcpListener::bind(address).await;
    let listener = listening.map_err(|source| Error::Listen { address, source })?;
    let servers = Arc::new(Servers::new(&addresses));
    tasks.essential("health", health::watch(servers.clone(), args.clone(), tasks.clone()));
    tasks.essential("servers", known::keep(servers.clone(), args, tasks.shutdown().clone()));
    tasks.shutdown().unless_stopping(accept(listener, servers, tasks)).await;
    Ok(())
}

async fn accept(listener: TcpListener, servers: Arc<Servers>, tasks: &rt::Tasks) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let servers = servers.clone();
                tasks.spawn_until_shutdown("connection", async move {
                    carry(client, &servers).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "taking a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Connects a client with the first server that takes it, and hands bytes on until either ends.
async fn carry(mut client: TcpStream, servers: &Servers) {
    let candidates = servers.pool().candidates();
    for address in &candidates {
        match timeout(DIAL, TcpStream::connect(address.as_str())).await {
            Ok(Ok(mut server)) => {
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                tokio::select! {
                    // Whoever ended it, the other one sees its end.
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    () = servers.silent(address) => {}
                }
                return;
            }
            _ => servers.report(address, pool::Finding::Silent),
        }
    }
    tracing::warn!(servers = ?candidates, "no API server takes a connection");
}

#[cfg(test)]
mod tests;

//! The node-local API balancer: forwards TCP connections of a node's components to the API servers of the cluster.
//!
//! The clients use TLS with an API server; the balancer does not decrypt it. It learns the servers from the endpoints
//! of the Service `kubernetes`, through itself. It stores them in a file, so that it can start when its first server no
//! longer exists. Read [`run`] first.
//!
//! Invariants:
//! - A connection goes to a server that answers, if there is one.
//! - A connection to a silent server is closed, so that clients do not wait for their own timeouts.
//! - A server is never dropped while the cluster's last list contains it.

mod args;
mod health;
mod pool;
mod server_list;
mod servers;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

pub use args::Args;
pub use health::SERVER_NAME;
use pool::Finding;
use servers::Servers;

/// The time limit for connecting to a server before the next one is tried.
const DIAL: Duration = Duration::from_secs(2);
/// The largest number of connections, far more than a node's components need.
const CONNECTIONS: usize = 4096;

/// An error that prevents the start of the balancer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listening on {address}: {source}; does another balancer run on this node?")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("reading the API servers in {path}: {source}; join writes it")]
    Servers { path: String, source: std::io::Error },
    #[error("{path} names no API server; write host:port of one into it")]
    NoServer { path: String },
}

/// Serves until shutdown.
pub async fn run(args: Args, tasks: &rt::Tasks) -> Result<(), Error> {
    let path = || args.servers.display().to_string();
    let addresses = server_list::read(&args.servers)
        .map_err(|source| Error::Servers { path: path(), source })?;
    if addresses.is_empty() {
        return Err(Error::NoServer { path: path() });
    }
    let address = args.listen;
    let listening = TcpListener::bind(address).await;
    let listener = listening.map_err(|source| Error::Listen { address, source })?;
    let servers = Arc::new(Servers::new(&addresses));
    tasks.essential("health", health::watch(servers.clone(), args.clone(), tasks.clone()));
    tasks.essential(
        "servers",
        server_list::refresh(servers.clone(), args, tasks.shutdown().clone()),
    );
    tasks.shutdown().unless_stopping(accept(listener, servers, tasks)).await;
    Ok(())
}

async fn accept(listener: TcpListener, servers: Arc<Servers>, tasks: &rt::Tasks) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let servers = servers.clone();
                tasks.spawn_until_shutdown("connection", async move {
                    forward(client, &servers).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Connects a client to the first server that accepts, and forwards bytes until either side closes.
async fn forward(mut client: TcpStream, servers: &Servers) {
    let candidates = servers.pool().candidates();
    for address in &candidates {
        match timeout(DIAL, TcpStream::connect(address.as_str())).await {
            Ok(Ok(mut server)) => {
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                tokio::select! {
                    // A close of one side is forwarded to the other.
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    () = servers.wait_until_silent(address) => {}
                }
                return;
            }
            _ => servers.report(address, Finding::Silent),
        }
    }
    tracing::warn!(servers = ?candidates, "no API server accepts a connection");
}

#[cfg(test)]
mod tests;

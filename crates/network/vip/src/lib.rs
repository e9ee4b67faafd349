//! The virtual address of the API: one control plane node holds it, and another takes over when that one fails. This
//! crate does not spread connections over the nodes; `balancer` does.
//!
//! A Lease decides which machine holds the address. Each machine uses its own API server. So a machine whose API server
//! fails, or whose store has no quorum, loses the lease and the address. Read [`run`] first.
//!
//! Invariants:
//! - A machine adds the address after it acquires the lease, and removes it before another machine can acquire the
//!   lease.
//! - A machine that starts with the address keeps it only until it learns that another machine holds the lease.
//!
//! [`announce`] does the same for the addresses of LoadBalancer Services, which are many and move between all nodes.

mod announcement;
mod error;
mod interface;
mod speaker;

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use api_config::Kubeconfig;
use client::{Client, LeaderElection, LeaderElectionConfig, Resource};
pub use error::Error;
pub use interface::AddressInterface;
use netlink::{Kernel, Net};
use serde_json::Value;
pub use speaker::{SpeakerSettings, announce, remove};

const NAMESPACE: &str = "kube-system";
const LEASE: &str = "windlass-virtual-address";
const AGAIN: Duration = Duration::from_secs(2);
/// The time for which a machine that starts with the address keeps it while the holder is unknown.
const UNANSWERED: Duration = Duration::from_secs(120);

/// Holds a virtual address for the API while this control plane has its Lease
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The address to hold
    #[arg(long)]
    pub address: Ipv4Addr,
    /// The interface of the address [default: the interface of the API server's own address]
    #[arg(long)]
    pub interface: Option<String>,
    /// Kubeconfig of a user who may get, create and update Leases in kube-system
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// The API server of this machine, as https://host:port
    #[arg(long)]
    pub server: String,
    /// The name of this machine as the holder of the Lease
    #[arg(long)]
    pub identity: String,
}

/// Competes for the address until shutdown.
pub async fn run(args: Args, tasks: &rt::Tasks) -> Result<(), Error> {
    let net: Arc<dyn Net> = Arc::new(Kernel::open()?);
    let beside = host_of(&args.server);
    let place =
        AddressInterface::find(net, args.address.into(), args.interface.as_deref(), beside)?;
    contend(&client_of(&args)?, &args.identity, &place, tasks.shutdown()).await;
    Ok(())
}

async fn contend(
    client: &Client,
    identity: &str,
    place: &AddressInterface,
    shutdown: &rt::Shutdown,
) {
    if shutdown.unless_stopping(yield_to_holder(client, identity, place)).await.is_none() {
        return;
    }
    while !shutdown.is_stopping() {
        let lease = LeaderElectionConfig::new(NAMESPACE, LEASE, identity.to_owned());
        let election = LeaderElection::new(client.clone(), lease);
        let leads = AtomicBool::new(false);
        let lead = || {
            leads.store(true, Ordering::Relaxed);
            hold(place, shutdown)
        };
        // Waiting for the lease can be dropped. While the lease is held, `hold` ends first and the lease is released.
        let stopped_waiting = async {
            shutdown.stopping().await;
            if leads.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        let result = tokio::select! {
            result = election.run(lead) => result,
            () = stopped_waiting => Ok(()),
        };
        if let Err(error) = place.remove() {
            tracing::error!(%error, "cannot remove the virtual address");
        }
        if let Err(error) = result {
            tracing::warn!(%error, address = %place.address, "removed the virtual address");
        }
    }
}

/// Removes the address if another machine holds the lease or if the holder stays unknown. A machine starts with the
/// address when the cluster is created, or after its process was killed.
async fn yield_to_holder(client: &Client, identity: &str, place: &AddressInterface) {
    let holder = match tokio::time::timeout(UNANSWERED, holder(client)).await {
        Ok(holder) if holder.is_empty() || holder == identity => return,
        Ok(holder) => holder,
        Err(_) => format!("unknown, because the API server was silent for {UNANSWERED:?}"),
    };
    if let Err(error) = place.remove() {
        tracing::error!(%error, holder, "cannot remove the virtual address, which another machine holds");
    }
}

/// Returns the holder of the lease; empty for none.
async fn holder(client: &Client) -> String {
    loop {
        match client.get::<Value>(&Resource::LEASES, NAMESPACE, LEASE).await {
            Ok(lease) => {
                return lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
            }
            Err(error) if error.is_not_found() => return String::new(),
            Err(error) => {
                tracing::info!(%error, "cannot read the Lease of the virtual address; retrying");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Holds the address until shutdown.
async fn hold(place: &AddressInterface, shutdown: &rt::Shutdown) {
    if let Err(error) = place.add() {
        tracing::error!(%error, address = %place.address, "cannot add the virtual address");
        tokio::time::sleep(AGAIN).await;
        return;
    }
    tracing::info!(address = %place.address, interface = place.interface, "holding the virtual address");
    for sent in 0u32.. {
        if let Err(error) = place.announce() {
            tracing::warn!(%error, "cannot announce the virtual address; neighbours will notice the change later");
        }
        let wait = tokio::time::sleep(AddressInterface::pause(sent));
        if shutdown.unless_stopping(wait).await.is_none() {
            return;
        }
    }
}

/// Returns the IP address in a server's URL.
pub fn host_of(server: &str) -> Option<IpAddr> {
    let url = server.parse::<http::Uri>().ok()?;
    url.host()?.trim_matches(['[', ']']).parse().ok()
}

fn client_of(args: &Args) -> Result<Client, Error> {
    let path = args.kubeconfig.display().to_string();
    let failed = |cause: String| Error::Kubeconfig { path: path.clone(), cause };
    let mut config = Kubeconfig::load(&args.kubeconfig).map_err(|e| failed(e.to_string()))?;
    for named in &mut config.clusters {
        named.cluster.server.clone_from(&args.server);
    }
    Client::from_kubeconfig(&config, "windlass-virtual-address").map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests;

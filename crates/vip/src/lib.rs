//! A virtual address for the API, which one of the control planes holds and another takes when that one is gone.
//!
//! Who holds it is settled by a Lease. Each machine asks its own API server, so a machine whose API server does not
//! work, or whose store has no quorum, loses the lease and with it the address.
//!
//! Invariants: the address is taken after the lease and given up before anyone else can have the lease; a machine
//! that starts with the address keeps it only until it learns that somebody else holds the lease.

mod arp;

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
use net_core::Cidr;
use netlink::{Kernel, Net};
use serde_json::Value;

const NAMESPACE: &str = "kube-system";
const LEASE: &str = "windlass-virtual-address";
const AGAIN: Duration = Duration::from_secs(2);
/// How long a machine that starts with the address keeps it without knowing whose it is.
const UNANSWERED: Duration = Duration::from_secs(120);
/// Neighbours are told several times at first, for a telling may be lost, and now and then after that.
const TELL_SOON: (u32, Duration) = (5, Duration::from_secs(1));
const TELL_LATER: Duration = Duration::from_secs(30);

/// Holds a virtual address for the API while this control plane has its Lease
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The address to hold
    #[arg(long)]
    pub address: Ipv4Addr,
    /// The interface to hold it on [default: that of the API server's own address]
    #[arg(long)]
    pub interface: Option<String>,
    /// Who may get, create and update Leases in kube-system
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// This machine's own API server, as https://host:port
    #[arg(long)]
    pub server: String,
    /// By what name this machine holds the Lease
    #[arg(long)]
    pub identity: String,
}

/// Why the address is not held here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Net(#[from] netlink::Error),
    #[error("no interface is called {0:?}; see ip link")]
    NoInterface(String),
    #[error("the API server is not named by its address; name an interface with --interface")]
    NoPlace,
    #[error("no interface has the address {0}; name one with --interface")]
    Nowhere(IpAddr),
    #[error(
        "{0:?} is not the URL of an API server by its address; name an interface with --interface"
    )]
    Server(String),
    #[error("reading {path}: {cause}")]
    Kubeconfig { path: String, cause: String },
    #[error("telling the neighbours of {address} on {interface}: {source}")]
    Tell { address: Ipv4Addr, interface: String, source: std::io::Error },
}

/// Where the address is held.
pub struct Place {
    net: Arc<dyn Net>,
    address: Ipv4Addr,
    index: u32,
    interface: String,
}

impl Place {
    /// On a named interface, or on the one that has `beside`.
    pub fn find(
        net: Arc<dyn Net>,
        address: Ipv4Addr,
        interface: Option<&str>,
        beside: Option<IpAddr>,
    ) -> Result<Self, Error> {
        let link = match (interface, beside) {
            (Some(name), _) => {
                net.link(name)?.ok_or_else(|| Error::NoInterface(name.to_owned()))?
            }
            (None, Some(beside)) => {
                let has = |a: &&netlink::Address| a.cidr.address == beside;
                let index = net.addresses()?.iter().find(has).map(|a| a.index);
                let all = net.links()?;
                let found = all.into_iter().find(|l| Some(l.index) == index);
                found.ok_or(Error::Nowhere(beside))?
            }
            (None, None) => return Err(Error::NoPlace),
        };
        Ok(Self { net, address, index: link.index, interface: link.name })
    }

    fn cidr(&self) -> Cidr {
        Cidr::host(self.address.into())
    }

    /// Whether this machine has the address now, from whichever run.
    pub fn is_here(&self) -> Result<bool, Error> {
        let all = self.net.addresses()?;
        Ok(all.iter().any(|a| a.index == self.index && a.cidr == self.cidr()))
    }

    /// Takes the address; one that is there already is kept.
    pub fn take(&self) -> Result<(), Error> {
        match self.net.add_address(self.index, self.cidr()) {
            Err(error) if !error.is_exists() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Gives the address up; success if it is not here.
    pub fn give_up(&self) -> Result<(), Error> {
        match self.net.delete_address(self.index, self.cidr()) {
            Err(error) if !error.is_missing() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Tells the neighbours that the address is here.
    pub fn tell(&self) -> Result<(), Error> {
        arp::announce(&self.interface, self.address).map_err(|source| Error::Tell {
            address: self.address,
            interface: self.interface.clone(),
            source,
        })
    }
}

/// Contends for the address until it is told to stop.
pub async fn run(args: Args, tasks: &rt::Tasks) -> Result<(), Error> {
    let net: Arc<dyn Net> = Arc::new(Kernel::open()?);
    let beside = host_of(&args.server);
    let place = Place::find(net, args.address, args.interface.as_deref(), beside)?;
    contend(&client_of(&args)?, &args.identity, &place, tasks.shutdown()).await;
    Ok(())
}

async fn contend(client: &Client, identity: &str, place: &Place, shutdown: &rt::Shutdown) {
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
        // Waiting for the lease it can be dropped; with the lease, `hold` ends, and the lease is given back.
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
        if let Err(error) = place.give_up() {
            tracing::error!(%error, "giving up the virtual address");
        }
        if let Err(error) = result {
            tracing::warn!(%error, address = %place.address, "the virtual address is given up");
        }
    }
}

/// A machine that starts with the address, as the first one does while the cluster comes up and any does whose holder
/// was killed, has it by right unless somebody else has the lease; or may have it, because nobody says.
async fn yield_to_holder(client: &Client, identity: &str, place: &Place) {
    let holder = match tokio::time::timeout(UNANSWERED, holder(client)).await {
        Ok(holder) if holder.is_empty() || holder == identity => return,
        Ok(holder) => holder,
        Err(_) => format!("unknown, for the API server was silent for {UNANSWERED:?}"),
    };
    if let Err(error) = place.give_up() {
        tracing::error!(%error, holder, "giving up the virtual address to its holder");
    }
}

/// Who has the lease; empty for nobody.
async fn holder(client: &Client) -> String {
    loop {
        match client.get::<Value>(&Resource::LEASES, NAMESPACE, LEASE).await {
            Ok(lease) => {
                return lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
            }
            Err(error) if error.is_not_found() => return String::new(),
            Err(error) => {
                tracing::info!(%error, "asking who holds the virtual address; trying again");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Has the address until it is told to stop.
async fn hold(place: &Place, shutdown: &rt::Shutdown) {
    if let Err(error) = place.take() {
        tracing::error!(%error, address = %place.address, "taking the virtual address");
        tokio::time::sleep(AGAIN).await;
        return;
    }
    tracing::info!(address = %place.address, interface = place.interface, "the virtual address is here");
    for told in 0u32.. {
        if let Err(error) = place.tell() {
            tracing::warn!(%error, "neighbours notice by themselves, but later");
        }
        let wait = if told < TELL_SOON.0 { TELL_SOON.1 } else { TELL_LATER };
        if shutdown.unless_stopping(tokio::time::sleep(wait)).await.is_none() {
            return;
        }
    }
}

/// The address in a server's URL.
pub fn host_of(server: &str) -> Option<IpAddr> {
    let rest = server.strip_prefix("https://")?;
    let host = rest.rsplit_once(':').map_or(rest, |(host, _)| host);
    host.trim_matches(['[', ']']).parse().ok()
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

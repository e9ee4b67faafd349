//! Announces the addresses of LoadBalancer Services that come from ranges. One node holds each address.
//!
//! Each node renews a Lease of its own, and a second Lease names the holder of each address. A node takes an address
//! that has no holder or whose holder has not renewed its Lease for two seconds.
//!
//! Invariants:
//! - A node takes an address by a conditional write, so one of several contenders gets it.
//! - A node that cannot renew its Lease removes its addresses before another node may take them.

mod leases;
mod links;
mod plan;
mod settings;
mod state;
mod subject;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use client::Client;
use netlink::Net;
use tokio::time::Instant;

use leases::Leases;
use links::Links;
pub use links::remove;
pub use settings::SpeakerSettings;
use settings::TICK;
use state::State;

/// The interval at which the interfaces' networks are read.
const LOOK: Duration = Duration::from_secs(5);
/// The longest wait for the first answers of the API before addresses of an earlier run are removed.
const START: Duration = Duration::from_secs(2);

/// Announces addresses until shutdown, and releases them then.
pub async fn announce(
    settings: SpeakerSettings,
    client: Client,
    net: Arc<dyn Net>,
    tasks: &rt::Tasks,
) {
    let state = Arc::new(State::start(&settings, &client, tasks));
    let leases = Arc::new(Leases::new(client, &settings));
    let (own, renewing) = (leases.clone(), state.clone());
    tasks.keep("load balancer heartbeat", move || renew(own.clone(), renewing.clone()));
    let (own, looking) = (net.clone(), state.clone());
    tasks.keep("load balancer networks", move || look(own.clone(), looking.clone()));
    let (own, claiming) = (leases.clone(), state.clone());
    tasks.keep("load balancer claims", move || claim(own.clone(), claiming.clone()));
    hold(&settings, &state, net, tasks.shutdown()).await;
    leases.release(&state).await;
}

/// Renews this node's Lease while a Service has an address that the node may announce.
async fn renew(leases: Arc<Leases>, state: Arc<State>) {
    loop {
        let began = Instant::now();
        if state.is_needed() {
            match leases.renew().await {
                Ok(()) => state.renewed(began),
                Err(error) => {
                    tracing::warn!(%error, "cannot renew the Lease of this node's load balancer addresses");
                }
            }
        }
        tokio::time::sleep_until(began + plan::RENEW).await;
    }
}

/// Takes and releases addresses.
async fn claim(leases: Arc<Leases>, state: Arc<State>) {
    state.synced().await;
    loop {
        let plan = state.plan();
        let mut failed = false;
        for (address, change) in &plan.changes {
            // Another node may have been faster, and the watch shows it.
            if let Err(error) = leases.change(&state, *address, *change).await {
                tracing::info!(%address, %error, "cannot change the holder of a load balancer address");
                failed = true;
            }
        }
        // A successful write arrives by the watch; until then the same plan would write again.
        let rest = if failed { plan::RENEW } else { TICK };
        tokio::time::sleep(rest).await;
    }
}

/// Keeps the interfaces' addresses equal to the plan's.
async fn hold(
    settings: &SpeakerSettings,
    state: &Arc<State>,
    net: Arc<dyn Net>,
    shutdown: &rt::Shutdown,
) {
    // Addresses of an earlier run stay until the API has shown whether they are still this node's.
    let ready = tokio::time::timeout(START, state.ready());
    let _ = shutdown.unless_stopping(ready).await;
    let mut links = Links::new(settings.clone(), net.clone());
    while !shutdown.is_stopping() {
        let announced = state.plan().announced;
        if !links.is_settled(&announced) {
            let reserved = state.reserved();
            let work = move || {
                links.follow(&announced, &reserved);
                links
            };
            // After a panic the next round reads the interfaces again.
            let done = tokio::task::spawn_blocking(work).await;
            links = done.unwrap_or_else(|_| Links::new(settings.clone(), net.clone()));
        }
        let _ = shutdown.unless_stopping(tokio::time::sleep(TICK)).await;
    }
    let reserved = state.reserved();
    let work = move || links.follow(&BTreeSet::new(), &reserved);
    let removed = tokio::task::spawn_blocking(work).await;
    if let Err(error) = removed {
        tracing::error!(%error, "cannot remove load balancer addresses");
    }
}

/// Follows the networks of this node's interfaces, which decide which addresses it can announce.
async fn look(net: Arc<dyn Net>, state: Arc<State>) {
    loop {
        let net = net.clone();
        match tokio::task::spawn_blocking(move || links::networks(&*net)).await {
            Ok(Ok(networks)) => state.set_networks(networks),
            Ok(Err(error)) => tracing::warn!(%error, "cannot list the interfaces' networks"),
            Err(error) => tracing::error!(%error, "cannot list the interfaces' networks"),
        }
        tokio::time::sleep(LOOK).await;
    }
}

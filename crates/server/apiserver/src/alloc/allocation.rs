//! The addresses and ports that one write of a Service allocates and releases.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use api_meta::steps;
use serde_json::Value;
use store::{Outcome, Write};
use tokio::sync::oneshot;

use super::{
    address::{AddressRevision, ServiceName},
    pool::Pool,
    service::{addresses, ports},
};
use crate::watch_cache::Feed;

/// The allocations and releases of one write of a Service. If it is dropped before the write, new allocations are
/// released.
pub(crate) struct Allocation {
    pool: Option<Arc<Pool>>,
    service: ServiceName,
    added: NewAllocations,
    removed: RemovedAllocations,
}

/// New allocations.
#[derive(Debug, Default)]
pub(crate) struct NewAllocations {
    pub(crate) addresses: Vec<AddressRevision>,
    pub(crate) ports: BTreeSet<u16>,
}

/// Addresses and ports that the Service no longer has.
#[derive(Debug, Default)]
struct RemovedAllocations {
    addresses: Vec<IpAddr>,
    ports: BTreeSet<u16>,
}

impl NewAllocations {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.ports.is_empty()
    }
}

impl RemovedAllocations {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.ports.is_empty()
    }
}

impl Allocation {
    /// Returns an empty allocation for objects other than Services.
    pub(crate) fn nothing() -> Self {
        Self::new(None, ServiceName::default())
    }

    pub(crate) fn of(pool: Arc<Pool>, service: &Value) -> Self {
        Self::new(Some(pool), ServiceName::of(service))
    }

    fn new(pool: Option<Arc<Pool>>, service: ServiceName) -> Self {
        Self {
            pool,
            service,
            added: NewAllocations::default(),
            removed: RemovedAllocations::default(),
        }
    }

    pub(crate) fn service(&self) -> &ServiceName {
        &self.service
    }

    pub(crate) fn additions(&mut self) -> &mut NewAllocations {
        &mut self.added
    }

    /// Records what is released after the write: what the old Service has and the new one does not.
    pub(crate) fn release_after_update(&mut self, old: &Value, new: &Value) {
        let (kept, kept_ports) = (addresses(new), ports(new));
        self.removed.addresses.extend(addresses(old).into_iter().filter(|a| !kept.contains(a)));
        self.removed.ports.extend(ports(old).into_iter().filter(|p| !kept_ports.contains(p)));
    }

    /// Records that the write deletes the Service and releases all that it has.
    pub(crate) fn release_after_delete(&mut self, last: &Value) {
        self.removed.addresses.extend(addresses(last));
        self.removed.ports.extend(ports(last));
    }

    /// Returns `true` if it belongs to a Service.
    pub(crate) fn is_of_service(&self) -> bool {
        self.pool.is_some()
    }

    /// Writes the Service, then releases what is not needed: the old allocations after a success, the new ones after a
    /// conflict. It runs in its own task, because the release must follow the write even if the client disconnects.
    pub(crate) async fn write(
        self,
        feed: &Arc<Feed>,
        tasks: &rt::Tasks,
        write: Write,
    ) -> store::Result<Outcome> {
        let outcome = self.write_and_settle(feed, tasks, write).await;
        // The outcome is final. From here on, no limit of processor time may end the request.
        if !matches!(outcome, Ok(Outcome::Conflict { .. })) {
            steps::commit();
        }
        outcome
    }

    async fn write_and_settle(
        self,
        feed: &Arc<Feed>,
        tasks: &rt::Tasks,
        write: Write,
    ) -> store::Result<Outcome> {
        if self.added.is_empty() && self.removed.is_empty() {
            return feed.write(write).await;
        }
        let (done, outcome) = oneshot::channel();
        let own = feed.clone();
        tasks.spawn("write of a Service", async move {
            let outcome = own.write(write).await;
            self.settle(&outcome).await;
            // The receiver may be gone.
            let _ = done.send(outcome);
        });
        outcome.await.unwrap_or(Err(store::Error::Unavailable {
            operation: "write",
            detail: "the server is stopping".to_owned(),
        }))
    }

    async fn settle(mut self, outcome: &store::Result<Outcome>) {
        let (added, removed) = (std::mem::take(&mut self.added), std::mem::take(&mut self.removed));
        let Some(pool) = self.pool.take() else { return };
        match outcome {
            Ok(Outcome::Done { revision, .. }) => {
                let known =
                    pool.unchanged_addresses(&self.service, &removed.addresses, *revision).await;
                pool.release(&known, &removed.ports).await;
            }
            Ok(Outcome::Conflict { .. }) => {
                pool.release(&added.addresses, &added.ports).await;
            }
            // The write may have happened. If it has not, the repair releases the new allocations.
            Err(_) => {}
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let added = std::mem::take(&mut self.added);
        if let Some(pool) = self.pool.take().filter(|_| !added.is_empty()) {
            let tasks = pool.cache.tasks.clone();
            tasks.spawn("release of what a Service did not need", async move {
                pool.release(&added.addresses, &added.ports).await;
            });
        }
    }
}

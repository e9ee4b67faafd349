//! What a request has taken for its Service, and what its Service gives up.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use serde_json::Value;
use store::{Outcome, Revision, Write};
use tokio::sync::oneshot;

use super::{
    Allocators,
    address::{self, Known, Place},
    service::{addresses, ports},
};
use crate::watch_cache::follower::Hub;

/// What one write of a Service takes and gives back. When it is dropped without the write, what was taken is given
/// back.
pub(crate) struct Held {
    allocators: Option<Arc<Allocators>>,
    place: Place,
    taken: Taken,
    gone: Gone,
}

/// What was free before.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) addresses: Vec<Known>,
    pub(crate) ports: BTreeSet<u16>,
}

/// What the Service had and has no longer.
#[derive(Debug, Default)]
struct Gone {
    addresses: Vec<IpAddr>,
    ports: BTreeSet<u16>,
}

impl Taken {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.ports.is_empty()
    }
}

impl Gone {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.ports.is_empty()
    }
}

impl Held {
    /// Of what has no addresses.
    pub(crate) fn nothing() -> Self {
        Self::new(None, Place::default())
    }

    pub(crate) fn of(allocators: Arc<Allocators>, service: &Value) -> Self {
        Self::new(Some(allocators), Place::of(service))
    }

    fn new(allocators: Option<Arc<Allocators>>, place: Place) -> Self {
        Self { allocators, place, taken: Taken::default(), gone: Gone::default() }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn took(&mut self) -> &mut Taken {
        &mut self.taken
    }

    /// Notes what goes when the write is done: what the old Service has and the new one has not.
    pub(crate) fn giving_up(&mut self, old: &Value, new: &Value) {
        let (kept, kept_ports) = (addresses(new), ports(new));
        self.gone.addresses.extend(addresses(old).into_iter().filter(|a| !kept.contains(a)));
        self.gone.ports.extend(ports(old).into_iter().filter(|p| !kept_ports.contains(p)));
    }

    /// Notes that all goes that the Service has, because the write ends it.
    pub(crate) fn giving_up_all(&mut self, last: &Value) {
        self.gone.addresses.extend(addresses(last));
        self.gone.ports.extend(ports(last));
    }

    /// Whether it is of a Service.
    pub(crate) fn is_something(&self) -> bool {
        self.allocators.is_some()
    }

    /// Writes the Service, then gives back what goes: what it has given up, or what was taken for it in vain. A task of
    /// its own does so, because a client that goes away in the middle does not take the write back.
    pub(crate) async fn write(self, hub: &Arc<Hub>, write: Write) -> store::Result<Outcome> {
        if self.taken.is_empty() && self.gone.is_empty() {
            return hub.write(write).await;
        }
        let (done, outcome) = oneshot::channel();
        let own = hub.clone();
        hub.tasks.spawn("write of a Service", async move {
            let outcome = own.write(write).await;
            self.settle(&outcome).await;
            // Who asked may be gone.
            let _ = done.send(outcome);
        });
        outcome.await.unwrap_or(Err(store::Error::Unavailable {
            operation: "write",
            detail: "the server stops".to_owned(),
        }))
    }

    async fn settle(mut self, outcome: &store::Result<Outcome>) {
        let (taken, gone) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.gone));
        let Some(allocators) = self.allocators.take() else { return };
        match outcome {
            Ok(Outcome::Done { revision, .. }) => {
                let known = allocators.still_there(&self.place, &gone.addresses, *revision).await;
                allocators.release(&known, &gone.ports).await;
            }
            Ok(Outcome::Conflict { .. }) => {
                allocators.release(&taken.addresses, &taken.ports).await;
            }
            // The write may have happened. If it has not, the repair finds nobody who has this.
            Err(_) => {}
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        if let Some(allocators) = self.allocators.take().filter(|_| !taken.is_empty()) {
            let tasks = allocators.hub.tasks.clone();
            tasks.spawn("release of what a Service did not need", async move {
                allocators.release(&taken.addresses, &taken.ports).await;
            });
        }
    }
}

impl Allocators {
    /// The objects of a Service's addresses from before a write of it: one that was made since belongs to a Service that
    /// came later, if of the same name.
    async fn still_there(
        &self,
        place: &Place,
        addresses: &[IpAddr],
        written: Revision,
    ) -> Vec<Known> {
        let mut known = Vec::new();
        for address in addresses {
            match address::get(&self.client, *address).await {
                Ok(Some(object)) => {
                    let version = object["metadata"]["resourceVersion"].as_str();
                    let revision: Revision = version.and_then(|v| v.parse().ok()).unwrap_or(0);
                    if revision < written && Place::parent(&object).as_ref() == Some(place) {
                        known.push(Known::of(*address, &object));
                    }
                }
                Ok(None) => {}
                Err(error) => warn(&error),
            }
        }
        known
    }

    /// Gives back addresses and ports. What cannot be given back now is found by the repair.
    async fn release(&self, addresses: &[Known], ports: &BTreeSet<u16>) {
        for known in addresses {
            if let Err(error) = address::delete(&self.client, known).await {
                warn(&error);
            }
        }
        if ports.is_empty() {
            return;
        }
        let released = self.ports.change(|map| {
            ports.iter().for_each(|port| map.release(*port));
            Ok::<(), std::convert::Infallible>(())
        });
        if let Err(error) = released.await {
            warn(&error);
        }
    }
}

fn warn(error: &dyn std::error::Error) {
    tracing::warn!(%error, "giving back what a Service had; the repair does so later");
}

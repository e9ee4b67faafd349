//! What a request has taken for its Service, and what its Service gives up.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use api_meta::steps;
use serde_json::Value;
use store::{Outcome, Write};
use tokio::sync::oneshot;

use super::{
    address::{Known, Place},
    pool::Pool,
    service::{addresses, ports},
};
use crate::watch_cache::WatchCache;

/// What one write of a Service takes and gives back. When it is dropped without the write, what was taken is given
/// back.
pub(crate) struct Held {
    pool: Option<Arc<Pool>>,
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

    pub(crate) fn of(pool: Arc<Pool>, service: &Value) -> Self {
        Self::new(Some(pool), Place::of(service))
    }

    fn new(pool: Option<Arc<Pool>>, place: Place) -> Self {
        Self { pool, place, taken: Taken::default(), gone: Gone::default() }
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
        self.pool.is_some()
    }

    /// Writes the Service, then gives back what goes: what it has given up, or what was taken for it in vain. A task of
    /// its own does so, because a client that goes away in the middle does not take the write back.
    pub(crate) async fn write(
        self,
        cache: &Arc<WatchCache>,
        write: Write,
    ) -> store::Result<Outcome> {
        let outcome = self.write_and_settle(cache, write).await;
        // From here on the client is told of what was done, whatever that takes.
        if !matches!(outcome, Ok(Outcome::Conflict { .. })) {
            steps::commit();
        }
        outcome
    }

    async fn write_and_settle(
        self,
        cache: &Arc<WatchCache>,
        write: Write,
    ) -> store::Result<Outcome> {
        if self.taken.is_empty() && self.gone.is_empty() {
            return cache.write(write).await;
        }
        let (done, outcome) = oneshot::channel();
        let own = cache.clone();
        cache.tasks.spawn("write of a Service", async move {
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
        let Some(pool) = self.pool.take() else { return };
        match outcome {
            Ok(Outcome::Done { revision, .. }) => {
                let known = pool.still_there(&self.place, &gone.addresses, *revision).await;
                pool.release(&known, &gone.ports).await;
            }
            Ok(Outcome::Conflict { .. }) => {
                pool.release(&taken.addresses, &taken.ports).await;
            }
            // The write may have happened. If it has not, the repair finds nobody who has this.
            Err(_) => {}
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        if let Some(pool) = self.pool.take().filter(|_| !taken.is_empty()) {
            let tasks = pool.cache.tasks.clone();
            tasks.spawn("release of what a Service did not need", async move {
                pool.release(&taken.addresses, &taken.ports).await;
            });
        }
    }
}

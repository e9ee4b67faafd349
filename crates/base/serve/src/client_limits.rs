//! Limits on concurrent work, in total and per client.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Limits the number of permits, in total and per client.
pub struct ClientLimits {
    all: Arc<Semaphore>,
    per_client: usize,
    clients: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

/// A permit for one piece of work, released on drop.
pub struct ClientPermit {
    permits: Option<[OwnedSemaphorePermit; 2]>,
    client: IpAddr,
    limits: Arc<ClientLimits>,
}

impl ClientLimits {
    /// Creates limits for all clients together and for each of them.
    pub fn new(all: usize, per_client: usize) -> Arc<Self> {
        Arc::new(Self { all: Arc::new(Semaphore::new(all)), per_client, clients: Mutex::default() })
    }

    fn semaphore(&self, client: IpAddr) -> Arc<Semaphore> {
        let mut clients = self.clients.lock();
        clients.entry(client).or_insert_with(|| Arc::new(Semaphore::new(self.per_client))).clone()
    }

    /// Returns `true` if all permits are taken.
    pub fn is_full(&self) -> bool {
        self.all.available_permits() == 0
    }

    /// Waits for a permit of the client, and then for one of the total.
    pub async fn enter(self: &Arc<Self>, client: IpAddr) -> ClientPermit {
        // Created first, so that dropping it also removes a client that stopped waiting.
        let mut permit = ClientPermit { permits: None, client, limits: self.clone() };
        let own = self.semaphore(client);
        permit.permits = both(own, self.all.clone()).await.ok();
        permit
    }

    /// Returns a permit if one is free.
    pub fn try_enter(self: &Arc<Self>, client: IpAddr) -> Option<ClientPermit> {
        let mut permit = ClientPermit { permits: None, client, limits: self.clone() };
        let own = self.semaphore(client).try_acquire_owned().ok()?;
        permit.permits = Some([own, self.all.clone().try_acquire_owned().ok()?]);
        Some(permit)
    }
}

async fn both(
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
) -> Result<[OwnedSemaphorePermit; 2], AcquireError> {
    Ok([own.acquire_owned().await?, all.acquire_owned().await?])
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        self.permits = None;
        let mut clients = self.limits.clients.lock();
        // No other permit and no waiting client uses the semaphore.
        if clients.get(&self.client).is_some_and(|own| Arc::strong_count(own) == 1) {
            clients.remove(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn limits_permits_of_one_client() {
        let limits = ClientLimits::new(4, 3);
        let [greedy, other, third] = [1, 2, 3].map(|n| IpAddr::from([10, 0, 0, n]));
        let mut permits = Vec::new();
        for _ in 0..3 {
            permits.push(limits.enter(greedy).now_or_never().unwrap());
        }
        assert!(limits.try_enter(greedy).is_none());
        assert!(limits.enter(greedy).now_or_never().is_none());
        let last = limits.enter(other).now_or_never().unwrap();
        // All permits are taken, and the waiting client gets the first one that is released.
        let mut waiting = Box::pin(limits.enter(third));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(limits.try_enter(IpAddr::from([10, 0, 0, 4])).is_none());
        permits.pop();
        let next = waiting.now_or_never().unwrap();
        drop((permits, last, next));
        assert!(limits.clients.lock().is_empty());
        assert_eq!(limits.all.available_permits(), 4);
    }
}

//! Places for what clients begin, of which no client has more than a part.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

pub(crate) struct Places {
    all: Arc<Semaphore>,
    of_one: usize,
    clients: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

/// Given back when it is dropped.
pub(crate) struct Place {
    held: Option<[OwnedSemaphorePermit; 2]>,
    client: IpAddr,
    places: Arc<Places>,
}

impl Places {
    pub(crate) fn new(all: usize, of_one: usize) -> Arc<Self> {
        Arc::new(Self { all: Arc::new(Semaphore::new(all)), of_one, clients: Mutex::default() })
    }

    fn of(&self, client: IpAddr) -> Arc<Semaphore> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.entry(client).or_insert_with(|| Arc::new(Semaphore::new(self.of_one))).clone()
    }

    /// Waits for one of the client's places, and then for one of all.
    pub(crate) async fn enter(self: &Arc<Self>, client: IpAddr) -> Place {
        // Made first, so that a client who leaves while he waits is forgotten too.
        let mut place = Place { held: None, client, places: self.clone() };
        let own = self.of(client);
        place.held = both(own, self.all.clone()).await.ok();
        place
    }

    /// A place, if one is free.
    pub(crate) fn try_enter(self: &Arc<Self>, client: IpAddr) -> Option<Place> {
        let mut place = Place { held: None, client, places: self.clone() };
        let own = self.of(client).try_acquire_owned().ok()?;
        place.held = Some([own, self.all.clone().try_acquire_owned().ok()?]);
        Some(place)
    }
}

async fn both(
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
) -> Result<[OwnedSemaphorePermit; 2], AcquireError> {
    Ok([own.acquire_owned().await?, all.acquire_owned().await?])
}

impl Drop for Place {
    fn drop(&mut self) {
        self.held = None;
        let mut clients = self.places.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody else has it: neither who is in one of these places nor who waits.
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
    async fn one_client_keeps_no_other_out() {
        let places = Places::new(4, 3);
        let [greedy, other, third] = [1, 2, 3].map(|n| IpAddr::from([10, 0, 0, n]));
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(places.enter(greedy).now_or_never().unwrap());
        }
        assert!(places.try_enter(greedy).is_none());
        assert!(places.enter(greedy).now_or_never().is_none());
        let last = places.enter(other).now_or_never().unwrap();
        // All are taken, and who waits gets the first that is given back.
        let mut waiting = Box::pin(places.enter(third));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(places.try_enter(IpAddr::from([10, 0, 0, 4])).is_none());
        held.pop();
        let next = waiting.now_or_never().unwrap();
        drop((held, last, next));
        assert!(places.clients.lock().unwrap().is_empty());
        assert_eq!(places.all.available_permits(), 4);
    }
}

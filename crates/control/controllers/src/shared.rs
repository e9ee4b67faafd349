//! The informers that controllers share.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::Arc,
};

use client::{Change, Client, Informer, ListOptions, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use crate::metrics::ControllerMetrics;

/// An informer that several controllers share.
pub(crate) struct Watched<P>(Informer<P>);

impl<P> Clone for Watched<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P> std::ops::Deref for Watched<P> {
    type Target = Informer<P>;
    fn deref(&self) -> &Informer<P> {
        &self.0
    }
}

impl<P: DeserializeOwned + Send + Sync + 'static> Watched<P> {
    /// Calls the handler for every existing object and for every later change. A concurrent change may be delivered
    /// twice. Handlers add keys to a queue, which deduplicates them.
    pub(crate) fn on(&self, handler: impl Fn(&Change<'_, P>) + Send + Sync + 'static) {
        self.0.on(move |change| handler(&change));
    }

    /// Adds the key of every changed object to the queue.
    pub(crate) fn on_key(&self, queue: &client::WorkQueue<String>) {
        self.on_key_if(queue, |_| true);
    }

    /// Adds the keys of the changes that `selects` accepts to the queue.
    pub(crate) fn on_key_if(
        &self,
        queue: &client::WorkQueue<String>,
        selects: impl Fn(&Change<'_, P>) -> bool + Send + Sync + 'static,
    ) {
        let queue = queue.clone();
        self.on(move |change| {
            if selects(change) {
                queue.add(change.key.to_owned());
            }
        });
    }
}

/// The metrics, and the informers by resource and decoded type. Two controllers that need the same share one cache.
pub(crate) struct Shared {
    client: Client,
    tasks: rt::Tasks,
    pub(crate) metrics: Arc<ControllerMetrics>,
    informers: Mutex<HashMap<(Resource, TypeId), Box<dyn Any + Send>>>,
}

impl Shared {
    pub(crate) fn new(client: Client, metrics: Arc<ControllerMetrics>, tasks: rt::Tasks) -> Self {
        Self { client, tasks, metrics, informers: Mutex::default() }
    }

    pub(crate) fn watch<P: DeserializeOwned + Send + Sync + 'static>(
        &self,
        resource: Resource,
    ) -> Watched<P> {
        let mut informers = self.informers.lock();
        let key = (resource.clone(), TypeId::of::<P>());
        if let Some(shared) = informers.get(&key).and_then(|any| any.downcast_ref::<Watched<P>>()) {
            return shared.clone();
        }
        let options = ListOptions::default();
        let informer = Informer::start(&self.client, resource, options, &self.tasks, |_| {});
        let watched = Watched(informer);
        informers.insert(key, Box::new(watched.clone()));
        watched
    }
}

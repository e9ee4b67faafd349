//! Dispatches an informer's changes to its handlers. A handler that panics is called again later with the object's
//! current state, so that it misses no object and does not affect other handlers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;

use super::{change::Change, objects::Cache};

type OnChange<P> = dyn Fn(Change<'_, P>) + Send + Sync;

pub(super) struct Dispatcher<P> {
    /// The informer's name in the log.
    name: String,
    handlers: RwLock<Vec<Arc<Handler<P>>>>,
    /// Notified when a handler panics.
    panicked: Notify,
}

pub(super) struct Handler<P> {
    on_change: Box<OnChange<P>>,
    /// The objects whose last change the handler missed, each with the state that the handler saw last. There are at
    /// most as many as objects in the cache, plus those deleted since.
    missed: Mutex<BTreeMap<String, Option<Arc<P>>>>,
}

impl<P> Handler<P> {
    fn missed(&self) -> MutexGuard<'_, BTreeMap<String, Option<Arc<P>>>> {
        self.missed.lock()
    }

    pub(super) fn dispatch(&self, change: Change<'_, P>, dispatcher: &Dispatcher<P>) {
        let missed = self.missed().remove(change.key);
        let old = missed.unwrap_or_else(|| change.old.cloned());
        let whole = Change { old: old.as_ref(), ..change };
        let name = format_args!("{} {}", dispatcher.name, change.key);
        if rt::catch_sync("informer", name, || (self.on_change)(whole)).is_err() {
            self.missed().insert(change.key.to_owned(), old);
            dispatcher.panicked.notify_one();
        }
    }
}

impl<P> Dispatcher<P> {
    pub(super) fn new(name: String) -> Self {
        Self { name, handlers: RwLock::default(), panicked: Notify::new() }
    }

    pub(super) fn add(&self, on_change: Box<OnChange<P>>) -> Arc<Handler<P>> {
        let handler = Arc::new(Handler { on_change, missed: Mutex::default() });
        let mut handlers = self.handlers.write();
        handlers.push(handler.clone());
        handler
    }

    fn handlers(&self) -> Vec<Arc<Handler<P>>> {
        self.handlers.read().clone()
    }

    pub(super) fn dispatch(&self, change: Change<'_, P>) {
        for handler in self.handlers.read().iter() {
            handler.dispatch(change, self);
        }
    }

    /// Calls handlers again for the objects that they missed, with a growing delay. Never returns.
    pub(super) async fn retry_missed(&self, cache: &Cache<P>) {
        let mut backoff = rt::Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        loop {
            let waits = self.handlers().iter().any(|handler| !handler.missed().is_empty());
            if !waits {
                backoff.reset();
                self.panicked.notified().await;
            }
            tokio::time::sleep(backoff.next(rt::random())).await;
            for handler in self.handlers() {
                let keys: Vec<String> = handler.missed().keys().cloned().collect();
                for key in keys {
                    let now = cache.get(&key);
                    handler.dispatch(Change { key: &key, old: None, new: now.as_ref() }, self);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    /// A handler's view of the objects. It must miss no change and see none twice, whenever the handler panics.
    type View = Arc<Mutex<BTreeMap<String, Arc<u32>>>>;

    fn follow(dispatcher: &Dispatcher<u32>, seed: u64, panics: u32) -> View {
        let view = View::default();
        let (own, left) = (view.clone(), Mutex::new((StdRng::seed_from_u64(seed), panics)));
        dispatcher.add(Box::new(move |change| {
            let mut left = left.lock();
            if left.1 > 0 && left.0.random_bool(0.5) {
                left.1 -= 1;
                panic!("at random");
            }
            let mut view = own.lock();
            assert_eq!(view.get(change.key), change.old, "{} as reported last", change.key);
            match change.new {
                Some(object) => drop(view.insert(change.key.to_owned(), object.clone())),
                None => drop(view.remove(change.key)),
            }
        }));
        view
    }

    #[tokio::test(start_paused = true)]
    async fn delivers_every_change_despite_a_thousand_panics() {
        let (dispatcher, cache) =
            (Dispatcher::new("informer of numbers".to_owned()), Cache::<u32>::default());
        let views =
            [follow(&dispatcher, 1, 600), follow(&dispatcher, 2, 400), follow(&dispatcher, 3, 0)];
        let mut random = StdRng::seed_from_u64(4);
        let changes = async {
            for number in 0..3000 {
                let key = random.random_range(0..50).to_string();
                let new = random.random_bool(0.7).then(|| Arc::new(number));
                let old = cache.write().set(&key, new.clone());
                dispatcher.dispatch(Change { key: &key, old: old.as_ref(), new: new.as_ref() });
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let missed =
                || dispatcher.handlers().iter().any(|handler| !handler.missed().is_empty());
            while missed() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            () = dispatcher.retry_missed(&cache) => unreachable!(),
            () = changes => {}
        }
        for view in views {
            let view = view.lock();
            let reported = view.iter().map(|(key, object)| (key.as_str(), object));
            assert!(reported.eq(cache.read().all().iter().map(|(key, object)| (&**key, object))));
        }
        assert!(rt::panics()["informer"] >= 1000);
    }
}

//! Who is told of an informer's changes. A handler that panics has not been told: it is again, later, of that object as
//! it is then, so that neither it nor the others miss anything.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use tokio::sync::Notify;

use super::{Change, objects::Cache};

type OnChange<P> = dyn Fn(Change<'_, P>) + Send + Sync;

pub(super) struct Told<P> {
    /// The informer, in logs.
    name: String,
    handlers: RwLock<Vec<Arc<Handler<P>>>>,
    /// A handler panicked.
    panicked: Notify,
}

pub(super) struct Handler<P> {
    on_change: Box<OnChange<P>>,
    /// The objects whose last change it was not told of, each as it was told of it last. They are no more than there
    /// are objects, and those that went away since.
    missed: Mutex<BTreeMap<String, Option<Arc<P>>>>,
}

impl<P> Handler<P> {
    fn missed(&self) -> MutexGuard<'_, BTreeMap<String, Option<Arc<P>>>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, change: Change<'_, P>, told: &Told<P>) {
        let missed = self.missed().remove(change.key);
        let old = missed.unwrap_or_else(|| change.old.cloned());
        let whole = Change { old: old.as_ref(), ..change };
        let name = format_args!("{} {}", told.name, change.key);
        if rt::catch_sync("informer", name, || (self.on_change)(whole)).is_err() {
            self.missed().insert(change.key.to_owned(), old);
            told.panicked.notify_one();
        }
    }
}

impl<P> Told<P> {
    pub(super) fn new(name: String) -> Self {
        Self { name, handlers: RwLock::default(), panicked: Notify::new() }
    }

    pub(super) fn add(&self, on_change: Box<OnChange<P>>) -> Arc<Handler<P>> {
        let handler = Arc::new(Handler { on_change, missed: Mutex::default() });
        let mut handlers = self.handlers.write().unwrap_or_else(PoisonError::into_inner);
        handlers.push(handler.clone());
        handler
    }

    fn handlers(&self) -> Vec<Arc<Handler<P>>> {
        self.handlers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn tell(&self, change: Change<'_, P>) {
        for handler in self.handlers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            handler.tell(change, self);
        }
    }

    /// Tells handlers again of what they missed, later each time, for ever.
    pub(super) async fn again(&self, cache: &Cache<P>) {
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
                    handler.tell(Change { key: &key, old: None, new: now.as_ref() }, self);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    /// A handler's view of the objects, which misses nothing and hears nothing twice, whenever it panics.
    type View = Arc<Mutex<BTreeMap<String, Arc<u32>>>>;

    fn follow(told: &Told<u32>, seed: u64, panics: u32) -> View {
        let view = View::default();
        let (own, left) = (view.clone(), Mutex::new((StdRng::seed_from_u64(seed), panics)));
        told.add(Box::new(move |change| {
            let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
            if left.1 > 0 && left.0.random_bool(0.5) {
                left.1 -= 1;
                panic!("at random");
            }
            let mut view = own.lock().unwrap_or_else(PoisonError::into_inner);
            assert_eq!(view.get(change.key), change.old, "{} as told last", change.key);
            match change.new {
                Some(object) => drop(view.insert(change.key.to_owned(), object.clone())),
                None => drop(view.remove(change.key)),
            }
        }));
        view
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_panics_have_no_handler_miss_a_change() {
        let (told, cache) = (Told::new("informer of numbers".to_owned()), Cache::<u32>::default());
        let views = [follow(&told, 1, 600), follow(&told, 2, 400), follow(&told, 3, 0)];
        let mut random = StdRng::seed_from_u64(4);
        let changes = async {
            for number in 0..3000 {
                let key = random.random_range(0..50).to_string();
                let new = random.random_bool(0.7).then(|| Arc::new(number));
                let old = cache.write().set(&key, new.clone());
                told.tell(Change { key: &key, old: old.as_ref(), new: new.as_ref() });
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let missed = || told.handlers().iter().any(|handler| !handler.missed().is_empty());
            while missed() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            () = told.again(&cache) => unreachable!(),
            () = changes => {}
        }
        for view in views {
            let view = view.lock().unwrap();
            let told = view.iter().map(|(key, object)| (key.as_str(), object));
            assert!(told.eq(cache.read().all().iter().map(|(key, object)| (&**key, object))));
        }
        assert!(rt::panics()["informer"] >= 1000);
    }
}

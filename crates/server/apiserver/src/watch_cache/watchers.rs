//! The watchers of a cache, indexed by scope, so that an event only costs work for watchers that it may match.

use std::{collections::HashMap, sync::Arc};

use super::{
    event::{Delivery, Event},
    filter::Filter,
    queue,
};

/// Returns the prefix that all keys of the same namespace share.
pub(crate) fn namespace_of(key: &str) -> &str {
    &key[..key.rfind('/').map_or(0, |slash| slash + 1)]
}

/// The events that a watcher must receive.
pub(crate) struct Interest {
    /// The key prefix: of the kind, of a namespace, or the whole key of one object.
    pub(crate) scope: String,
    /// The selectors of the watch. `None` if they can only be evaluated later.
    pub(crate) filter: Option<Arc<Filter>>,
}

struct Registration {
    filter: Option<Arc<Filter>>,
    sender: queue::Sender,
}

/// The watchers of one resource.
pub(crate) struct Watchers {
    by_scope: HashMap<Box<str>, Vec<Registration>>,
    count: usize,
    /// The number of watchers at which closed ones are removed, since a resource without events would keep them.
    sweep_at: usize,
}

impl Default for Watchers {
    fn default() -> Self {
        Self { by_scope: HashMap::new(), count: 0, sweep_at: SWEPT }
    }
}

/// The minimum of `sweep_at`.
const SWEPT: usize = 16;

impl Watchers {
    pub(crate) fn register(&mut self, of: Interest) -> queue::Receiver {
        if self.count >= self.sweep_at {
            self.by_scope.retain(|_, watching| {
                watching.retain(|w| !w.sender.is_closed());
                !watching.is_empty()
            });
            self.count = self.by_scope.values().map(Vec::len).sum();
            self.sweep_at = SWEPT.max(2 * self.count);
        }
        let (sender, receiver) = queue::queue();
        let watching = Registration { filter: of.filter, sender };
        self.by_scope.entry(of.scope.into()).or_default().push(watching);
        self.count += 1;
        receiver
    }

    /// Delivers an event to the watchers of its kind (whose keys begin with `kind`), its namespace and its object.
    pub(crate) fn deliver(&mut self, kind: &str, event: &Arc<Event>) {
        if self.count == 0 {
            return;
        }
        let key = &*event.object.key;
        let namespace = Some(namespace_of(key)).filter(|namespace| *namespace != kind);
        let mut delivery = None;
        for scope in [Some(kind), namespace, Some(key)].into_iter().flatten() {
            let Some(watching) = self.by_scope.get_mut(scope) else { continue };
            let before = watching.len();
            watching.retain(|w| {
                let concerns = w.filter.as_ref().is_none_or(|f| f.kind_of(event).is_some());
                if concerns {
                    let made = || Arc::new(Delivery::new(event.clone()));
                    w.sender.send(delivery.get_or_insert_with(made))
                } else {
                    !w.sender.is_closed()
                }
            });
            self.count -= before - watching.len();
            if watching.is_empty() {
                self.by_scope.remove(scope);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.by_scope.clear();
        self.count = 0;
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

//! The watch cache of one resource: its current objects, its recent events and its watchers.
//!
//! Invariant: a watcher receives every event after its revision exactly once and in order, or its stream ends. A
//! watcher is registered under the lock under which earlier events are read. A watcher with a full queue is closed.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use store::{Change, ChangeKind, Revision};

use super::{
    event::{Event, EventKind},
    queue,
    watchers::{self, Interest, namespace_of},
};
use crate::registry::{Definition, Object};

/// The size of the history, in bytes, for watches that resume.
const HISTORY_BYTES: usize = 8 << 20;
/// The size of an event without its object.
const EVENT_OVERHEAD: usize = 256;

/// A watch of one cache.
pub(crate) struct Watcher {
    /// Events from before the registration, oldest first.
    pub(crate) backlog: VecDeque<Arc<Event>>,
    pub(crate) queue: queue::Receiver,
    /// All events up to this revision are in the backlog or precede it.
    pub(crate) revision: Revision,
}

/// The cached objects of one resource.
pub(crate) struct Cache {
    pub(crate) definition: Arc<Definition>,
    inner: Mutex<Inner>,
    /// The number of changes received from the store.
    pub(crate) received: AtomicU64,
}

/// A page of a list.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) objects: Vec<Arc<Object>>,
    /// The number of objects after this page.
    pub(crate) behind: usize,
    /// The revision of the newest event in the cache.
    pub(crate) newest: Revision,
}

struct Inner {
    objects: BTreeMap<Arc<str>, Arc<Object>>,
    /// The sizes of the namespaces, by key prefix up to the last slash.
    sizes: BTreeMap<Box<str>, Size>,
    history: VecDeque<Arc<Event>>,
    history_bytes: usize,
    /// `true` if an object may be unreadable because its decryption failed.
    unreadable: bool,
    /// The history contains all events after this revision.
    oldest: Revision,
    /// The revision of the newest applied event, or the one at which the cache was loaded.
    newest: Revision,
    watchers: watchers::Watchers,
}

/// The number of objects below a prefix and the bytes that they take.
#[derive(Clone, Copy, Default)]
struct Size {
    objects: usize,
    bytes: usize,
}

/// The error for a revision that is no longer in the history.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooOld {
    pub(crate) oldest: Revision,
}

impl Cache {
    pub(crate) fn new(
        definition: Arc<Definition>,
        objects: Vec<Arc<Object>>,
        revision: Revision,
    ) -> Self {
        let unreadable = objects.iter().any(|o| o.unreadable.is_some());
        let objects: BTreeMap<_, _> = objects.into_iter().map(|o| (o.key.clone(), o)).collect();
        let mut sizes = BTreeMap::new();
        objects.values().for_each(|object| add_size(&mut sizes, object));
        let inner = Inner {
            objects,
            sizes,
            history: VecDeque::new(),
            history_bytes: 0,
            unreadable,
            oldest: revision,
            newest: revision,
            watchers: watchers::Watchers::default(),
        };
        Self { definition, inner: Mutex::new(inner), received: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.lock().objects.get(key).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().objects.len()
    }

    /// Returns the bytes that the objects of a namespace take, by the prefix of their keys.
    pub(crate) fn bytes_of_namespace(&self, prefix: &str) -> usize {
        self.lock().sizes.get(prefix).map_or(0, |size| size.bytes)
    }

    /// Returns the objects below a key prefix in key order, after `after` (empty: from the start).
    pub(crate) fn list(&self, prefix: &str, after: &str) -> Vec<Arc<Object>> {
        self.page(prefix, after, usize::MAX, None).objects
    }

    /// Like [`Self::list`], with at most `most` objects, and the number of objects after them. The cost does not depend
    /// on the size of the collection: `left` is the number of objects after `after`, if known, and the cache counts
    /// those of namespaces and whole collections.
    pub(crate) fn page(&self, prefix: &str, after: &str, most: usize, left: Option<usize>) -> Page {
        let inner = self.lock();
        // A position before the prefix would end the iteration at once.
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        // Prefixes end with a slash. The first key beyond has the next character, `0`, in its place.
        let end = format!("{}0", prefix.strip_suffix('/').unwrap_or(prefix));
        if after >= end.as_str() {
            return Page { newest: inner.newest, ..Page::default() };
        }
        let mut below = inner.objects.range::<str, _>((from, Bound::Excluded(end.as_str())));
        let objects: Vec<_> = below.by_ref().take(most).map(|(_, object)| object.clone()).collect();
        let left = if after < prefix { inner.count(prefix, &self.definition) } else { left };
        let behind = left.map_or_else(|| below.count(), |left| left.saturating_sub(objects.len()));
        Page { objects, behind, newest: inner.newest }
    }

    /// Starts a watch after `revision`.
    pub(crate) fn watch(&self, revision: Revision, of: Interest) -> Result<Watcher, TooOld> {
        let mut inner = self.lock();
        if revision < inner.oldest {
            return Err(TooOld { oldest: inner.oldest });
        }
        let start = inner.history.partition_point(|e| e.object.revision <= revision);
        let since = inner.history.range(start..);
        let backlog = since.filter(|e| e.object.key.starts_with(&of.scope)).cloned().collect();
        Ok(inner.register(backlog, of))
    }

    /// Starts a watch with the current objects, as if each had just been added.
    pub(crate) fn watch_from_now(&self, of: Interest) -> Watcher {
        let mut inner = self.lock();
        let backlog = inner
            .objects
            .range::<str, _>((Bound::Included(of.scope.as_str()), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(&of.scope))
            .map(|(_, object)| {
                Arc::new(Event { kind: EventKind::Added, object: object.clone(), previous: None })
            })
            .collect();
        inner.register(backlog, of)
    }

    pub(crate) fn newest(&self) -> Revision {
        self.lock().newest
    }

    /// Applies a change and delivers it to watchers. Returns the event, so that indexes (RBAC, the node graph) follow
    /// in the same order, and the projection of the new object.
    pub(crate) fn apply(&self, change: &Change) -> (Arc<Event>, Option<Value>) {
        self.received.fetch_add(1, Ordering::Relaxed);
        let put = (change.kind == ChangeKind::Put).then(|| self.definition.read(&change.kv));
        let (object, read) = put.unzip();
        let mut inner = self.lock();
        let previous = inner.objects.get(&change.kv.key).cloned();
        let event = match object {
            Some(object) => {
                let object = Arc::new(object);
                add_size(&mut inner.sizes, &object);
                inner.objects.insert(object.key.clone(), object.clone());
                inner.unreadable |= object.unreadable.is_some();
                let kind = if previous.is_some() { EventKind::Modified } else { EventKind::Added };
                Event { kind, object, previous }
            }
            None => {
                inner.objects.remove(&change.kv.key);
                let last = previous
                    .clone()
                    .unwrap_or_else(|| Arc::new(self.definition.object(&change.kv)));
                let object = Object { revision: change.kv.mod_revision, ..Object::clone(&last) };
                Event { kind: EventKind::Deleted, object: Arc::new(object), previous }
            }
        };
        if let Some(previous) = &event.previous {
            subtract_size(&mut inner.sizes, previous);
        }
        inner.newest = event.object.revision;
        let event = Arc::new(event);
        inner.remember(event.clone());
        // A watcher must not mistake the object for an empty one. The watches end, and new ones fail with the cause.
        if event.object.unreadable.is_some() {
            inner.watchers.clear();
        } else {
            inner.watchers.deliver(&self.definition.prefix, &event);
        }
        (event, read)
    }

    /// Returns the key of an object whose decryption failed, if there is one.
    pub(crate) fn unreadable(&self) -> Option<Arc<str>> {
        let mut inner = self.lock();
        if !inner.unreadable {
            return None;
        }
        let found = inner.objects.values().find(|object| object.unreadable.is_some());
        let found = found.map(|object| object.key.clone());
        inner.unreadable = found.is_some();
        found
    }

    /// Drops the history up to `revision`, as the store does.
    pub(crate) fn compact(&self, revision: Revision) {
        let mut inner = self.lock();
        while inner.history.front().is_some_and(|e| e.object.revision <= revision) {
            inner.forget_oldest();
        }
        inner.oldest = inner.oldest.max(revision);
    }

    /// Ends all watches: the definition is removed or changes its schema, or the server stops.
    pub(crate) fn end_watches(&self) {
        self.lock().watchers.clear();
    }
}

fn add_size(sizes: &mut BTreeMap<Box<str>, Size>, object: &Object) {
    let namespace = namespace_of(&object.key);
    if !sizes.contains_key(namespace) {
        sizes.insert(namespace.into(), Size::default());
    }
    if let Some(size) = sizes.get_mut(namespace) {
        size.objects += 1;
        size.bytes += object.bytes.len() + EVENT_OVERHEAD;
    }
}

fn subtract_size(sizes: &mut BTreeMap<Box<str>, Size>, object: &Object) {
    let namespace = namespace_of(&object.key);
    if let Some(size) = sizes.get_mut(namespace) {
        size.objects -= 1;
        size.bytes -= object.bytes.len() + EVENT_OVERHEAD;
        if size.objects == 0 {
            sizes.remove(namespace);
        }
    }
}

impl Inner {
    /// Returns the number of objects below a prefix, if it is that of a namespace or of the whole resource.
    fn count(&self, prefix: &str, definition: &Definition) -> Option<usize> {
        if *prefix == *definition.prefix {
            return Some(self.objects.len());
        }
        let of_namespace =
            prefix.ends_with('/').then(|| self.sizes.get(prefix).map(|size| size.objects));
        of_namespace.map(Option::unwrap_or_default)
    }

    fn register(&mut self, backlog: VecDeque<Arc<Event>>, of: Interest) -> Watcher {
        Watcher { backlog, queue: self.watchers.register(of), revision: self.newest }
    }

    fn remember(&mut self, event: Arc<Event>) {
        self.history_bytes += event.object.bytes.len() + EVENT_OVERHEAD;
        self.history.push_back(event);
        while self.history_bytes > HISTORY_BYTES {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(event) = self.history.pop_front() {
            self.history_bytes -= event.object.bytes.len() + EVENT_OVERHEAD;
            self.oldest = event.object.revision;
        }
    }
}

#[cfg(test)]
mod tests;

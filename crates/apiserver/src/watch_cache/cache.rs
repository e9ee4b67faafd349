//! The watch cache of one resource: its objects now, its recent changes, and who watches.
//!
//! Invariant: a watcher sees every change after its revision exactly once and in order, or its stream ends.
//! It never has a gap: it is registered under the same lock under which the changes before it are read, and
//! a watcher whose queue is full is cut off.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use store::{Change, ChangeKind, Revision};

use super::{
    event::{Event, EventKind},
    queue,
    watchers::{self, Interest, namespace_of},
};
use crate::registry::{Definition, Object};

/// How many bytes of changes are kept for watchers that resume.
const HISTORY_BYTES: usize = 8 << 20;
/// An event's own size, beside its object's.
const EVENT_OVERHEAD: usize = 256;

/// A watch of one cache.
pub(crate) struct Watcher {
    /// Changes from before the registration, oldest first.
    pub(crate) backlog: VecDeque<Arc<Event>>,
    pub(crate) queue: queue::Receiver,
    /// Everything up to here is in the backlog, or was there before it.
    pub(crate) revision: Revision,
}

pub(crate) struct Cache {
    pub(crate) definition: Arc<Definition>,
    inner: Mutex<Inner>,
}

/// A part of what a cache holds at one moment.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) objects: Vec<Arc<Object>>,
    /// How many objects of the list come behind these.
    pub(crate) behind: usize,
    /// The newest change that these objects can show.
    pub(crate) newest: Revision,
}

struct Inner {
    objects: BTreeMap<Arc<str>, Arc<Object>>,
    /// How many objects each namespace has, by the beginning of their keys up to the last slash.
    counts: BTreeMap<Box<str>, usize>,
    bytes: usize,
    history: VecDeque<Arc<Event>>,
    history_bytes: usize,
    /// Whether any object came that could not be decrypted.
    unreadable: bool,
    /// Changes after this revision are in the history.
    oldest: Revision,
    /// The newest change that this cache has applied, or the revision it was loaded at.
    newest: Revision,
    watchers: watchers::Watchers,
}

/// The revision asked for is no longer in the history.
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
        let bytes = objects.iter().map(|o| o.bytes.len()).sum();
        let unreadable = objects.iter().any(|o| o.unreadable.is_some());
        let objects: BTreeMap<_, _> = objects.into_iter().map(|o| (o.key.clone(), o)).collect();
        let mut counts = BTreeMap::new();
        objects.keys().for_each(|key| count_one_more(&mut counts, key));
        let inner = Inner {
            objects,
            counts,
            bytes,
            history: VecDeque::new(),
            history_bytes: 0,
            unreadable,
            oldest: revision,
            newest: revision,
            watchers: watchers::Watchers::default(),
        };
        Self { definition, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.lock().objects.get(key).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().objects.len()
    }

    /// The objects under a key prefix, in key order, after `after` (empty: from the start).
    pub(crate) fn list(&self, prefix: &str, after: &str) -> Vec<Arc<Object>> {
        self.page(prefix, after, usize::MAX, None).objects
    }

    /// As [`Self::list`], but no more than `most` objects, and how many come behind them. A page of a large
    /// collection costs no more than one of a small: `left` is how many come after `after`, where that is known, and for
    /// a whole collection it is kept.
    pub(crate) fn page(&self, prefix: &str, after: &str, most: usize, left: Option<usize>) -> Page {
        let inner = self.lock();
        // A place before the prefix would end the walk before it has begun.
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        // Prefixes end in a slash, and so the first key that is not below one has the next character there.
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

    /// Watches from after `revision`.
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

    /// Watches from the state now: the objects first, as if each had just been added.
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

    /// Applies one change and hands it to the watchers. Returns it, so that indexes built on top (RBAC, the
    /// node graph) follow in the same order, and what was read of a new state.
    pub(crate) fn apply(&self, change: &Change) -> (Arc<Event>, Option<Value>) {
        let put = (change.kind == ChangeKind::Put).then(|| self.definition.read(&change.kv));
        let (object, read) = put.unzip();
        let mut inner = self.lock();
        let previous = inner.objects.get(&change.kv.key).cloned();
        let event = match object {
            Some(object) => {
                let object = Arc::new(object);
                if previous.is_none() {
                    count_one_more(&mut inner.counts, &object.key);
                }
                inner.objects.insert(object.key.clone(), object.clone());
                inner.bytes += object.bytes.len();
                inner.unreadable |= object.unreadable.is_some();
                let kind = if previous.is_some() { EventKind::Modified } else { EventKind::Added };
                Event { kind, object, previous }
            }
            None => {
                if inner.objects.remove(&change.kv.key).is_some() {
                    count_one_less(&mut inner.counts, &change.kv.key);
                }
                let last = previous
                    .clone()
                    .unwrap_or_else(|| Arc::new(self.definition.object(&change.kv)));
                let object = Object { revision: change.kv.mod_revision, ..Object::clone(&last) };
                Event { kind: EventKind::Deleted, object: Arc::new(object), previous }
            }
        };
        inner.bytes -= event.previous.as_ref().map_or(0, |p| p.bytes.len());
        inner.newest = event.object.revision;
        let event = Arc::new(event);
        inner.remember(event.clone());
        // Who watches must not take an object for empty: the next watch learns why there is none.
        match event.object.unreadable.is_some() {
            true => inner.watchers.clear(),
            false => inner.watchers.deliver(&self.definition.prefix, &event),
        }
        (event, read)
    }

    /// The key of an object that could not be decrypted, if there is one.
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

    /// Forgets the history up to `revision`, as the store has.
    pub(crate) fn compact(&self, revision: Revision) {
        let mut inner = self.lock();
        while inner.history.front().is_some_and(|e| e.object.revision <= revision) {
            inner.forget_oldest();
        }
        inner.oldest = inner.oldest.max(revision);
    }

    /// Ends every watch, for a definition that goes away or changes its schema.
    pub(crate) fn end_watches(&self) {
        self.lock().watchers.clear();
    }
}

fn count_one_more(counts: &mut BTreeMap<Box<str>, usize>, key: &str) {
    let namespace = namespace_of(key);
    match counts.get_mut(namespace) {
        Some(count) => *count += 1,
        None => {
            counts.insert(namespace.into(), 1);
        }
    }
}

fn count_one_less(counts: &mut BTreeMap<Box<str>, usize>, key: &str) {
    let namespace = namespace_of(key);
    if let Some(count) = counts.get_mut(namespace) {
        *count -= 1;
        if *count == 0 {
            counts.remove(namespace);
        }
    }
}

impl Inner {
    /// How many objects there are below a prefix, if that is a namespace's or that of all.
    fn count(&self, prefix: &str, definition: &Definition) -> Option<usize> {
        if *prefix == *definition.prefix {
            return Some(self.objects.len());
        }
        let of_namespace = prefix.ends_with('/').then(|| self.counts.get(prefix).copied());
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

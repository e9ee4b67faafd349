//! The keys of a queue in the order of their processing: groups take turns, and a group's keys are in order.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// Keys in groups that take turns.
pub(super) struct Turns<K> {
    group: fn(&K) -> &str,
    keys: HashMap<Arc<str>, VecDeque<K>>,
    /// The groups with keys, the next one first.
    groups: VecDeque<Arc<str>>,
    len: usize,
}

impl<K> Turns<K> {
    /// Creates an empty queue. `group` returns the group of a key.
    pub(super) fn new(group: fn(&K) -> &str) -> Self {
        Self { group, keys: HashMap::new(), groups: VecDeque::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push_back(&mut self, key: K) {
        self.len += 1;
        let group = (self.group)(&key);
        if let Some(keys) = self.keys.get_mut(group) {
            return keys.push_back(key);
        }
        let group: Arc<str> = group.into();
        self.groups.push_back(group.clone());
        self.keys.insert(group, VecDeque::from([key]));
    }

    pub(super) fn pop_front(&mut self) -> Option<K> {
        let group = self.groups.pop_front()?;
        let keys = self.keys.get_mut(&group)?;
        let key = keys.pop_front()?;
        self.len -= 1;
        if keys.is_empty() {
            self.keys.remove(&group);
        } else {
            self.groups.push_back(group);
        }
        Some(key)
    }
}

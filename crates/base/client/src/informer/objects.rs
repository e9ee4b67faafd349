//! The informer's cache: the objects by key, and indexes that change together with them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Objects by `namespace/name`, or by `name` if they are cluster-scoped.
pub(super) type ByKey<P> = BTreeMap<Arc<str>, Arc<P>>;

pub(super) struct Objects<P> {
    all: ByKey<P>,
    indexes: Vec<ObjectIndex<P>>,
}

/// The objects under each value of one index.
struct ObjectIndex<P> {
    name: &'static str,
    values: fn(&P) -> Vec<String>,
    by_value: HashMap<String, ByKey<P>>,
}

impl<P> Default for Objects<P> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), indexes: Vec::new() }
    }
}

impl<P> Objects<P> {
    pub(super) fn all(&self) -> &ByKey<P> {
        &self.all
    }

    /// Inserts or replaces the object of a key, or removes it if `new` is `None`. Returns the previous object.
    pub(super) fn set(&mut self, key: &str, new: Option<Arc<P>>) -> Option<Arc<P>> {
        let existing = self.all.get_key_value(key).map(|(existing, _)| existing.clone());
        let key = existing.unwrap_or_else(|| key.into());
        let old = match &new {
            Some(object) => self.all.insert(key.clone(), object.clone()),
            None => self.all.remove(&key),
        };
        for index in &mut self.indexes {
            old.iter().for_each(|old| index.remove(&key, old));
            new.iter().for_each(|new| index.insert(&key, new));
        }
        old
    }

    /// Creates an index unless one of that name exists.
    fn index(&mut self, name: &'static str, values: fn(&P) -> Vec<String>) {
        if self.indexes.iter().any(|index| index.name == name) {
            return;
        }
        let mut index = ObjectIndex { name, values, by_value: HashMap::new() };
        self.all.iter().for_each(|(key, object)| index.insert(key, object));
        self.indexes.push(index);
    }

    fn under(&self, name: &str, value: &str) -> Option<&ByKey<P>> {
        self.indexes.iter().find(|index| index.name == name)?.by_value.get(value)
    }
}

impl<P> ObjectIndex<P> {
    /// Returns the index values of an object. If the function panics, the object is left out of the index.
    fn values(&self, key: &str, object: &P) -> Vec<String> {
        rt::catch_sync("informer", format_args!("index by {} of {key}", self.name), || {
            (self.values)(object)
        })
        .unwrap_or_default()
    }

    fn insert(&mut self, key: &Arc<str>, object: &Arc<P>) {
        for value in self.values(key, object) {
            self.by_value.entry(value).or_default().insert(key.clone(), object.clone());
        }
    }

    fn remove(&mut self, key: &str, object: &P) {
        for value in self.values(key, object) {
            if let Some(objects) = self.by_value.get_mut(&value) {
                objects.remove(key);
                if objects.is_empty() {
                    self.by_value.remove(&value);
                }
            }
        }
    }
}

/// The objects of one informer; clones share them.
pub(super) struct Cache<P>(Arc<RwLock<Objects<P>>>);

impl<P> Clone for Cache<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P> Default for Cache<P> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<P> Cache<P> {
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Objects<P>> {
        self.0.read()
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Objects<P>> {
        self.0.write()
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<P>> {
        self.read().all.get(key).cloned()
    }

    pub(super) fn index(&self, name: &'static str, values: fn(&P) -> Vec<String>) -> Index<P> {
        self.write().index(name, values);
        Index { cache: self.clone(), name }
    }
}

/// An index of an informer's objects. A lookup costs only the objects that it returns.
pub struct Index<P> {
    cache: Cache<P>,
    name: &'static str,
}

impl<P> Clone for Index<P> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), name: self.name }
    }
}

impl<P> Index<P> {
    /// Returns the objects under a value, in the order of their keys.
    pub fn get(&self, value: &str) -> Vec<Arc<P>> {
        let objects = self.cache.read();
        objects.under(self.name, value).map(|o| o.values().cloned().collect()).unwrap_or_default()
    }

    /// Returns the number of objects under a value.
    pub fn count(&self, value: &str) -> usize {
        self.cache.read().under(self.name, value).map_or(0, BTreeMap::len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use proptest::prelude::*;

    use super::*;

    fn digits(number: &u32) -> Vec<String> {
        assert_ne!(*number, 13, "hostile");
        number.to_string().chars().map(String::from).collect()
    }

    /// Finds the objects of a digit by scanning all objects.
    fn scanned(cache: &Cache<u32>, digit: &str) -> Vec<Arc<u32>> {
        let objects = cache.read();
        let has = |number: &&Arc<u32>| ***number != 13 && number.to_string().contains(digit);
        objects.all().values().filter(has).cloned().collect()
    }

    proptest! {
        #[test]
        fn finds_same_objects_by_index_as_by_scan(
            changes in prop::collection::vec((0..20u8, prop::option::of(0..1000u32)), 0..200),
            begun in 0..200usize,
        ) {
            let cache = Cache::default();
            let index = Index { cache: cache.clone(), name: "digit" };
            for (at, (key, new)) in changes.iter().enumerate() {
                if at == begun {
                    cache.index("digit", digits);
                }
                cache.write().set(&key.to_string(), new.map(Arc::new));
            }
            cache.index("digit", digits);
            for digit in "0123456789".chars().map(String::from) {
                prop_assert_eq!(index.get(&digit), scanned(&cache, &digit));
                prop_assert_eq!(index.count(&digit), scanned(&cache, &digit).len());
            }
        }
    }

    #[test]
    fn updates_index_from_changed_object_only() {
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        let cache = Cache::default();
        let index = cache.index("parity", |number: &u32| {
            LOOKS.fetch_add(1, Relaxed);
            vec![(number % 2).to_string()]
        });
        for number in 0..1000 {
            cache.write().set(&number.to_string(), Some(Arc::new(number)));
        }
        assert_eq!((LOOKS.swap(0, Relaxed), index.count("1")), (1000, 500));
        cache.write().set("7", Some(Arc::new(8)));
        assert_eq!((LOOKS.swap(0, Relaxed), index.count("1"), index.count("0")), (2, 499, 501));
        // A second request for the same index shares the first one.
        assert_eq!(cache.index("parity", |_| vec![]).count("0"), 501);
        for number in 0..1000 {
            cache.write().set(&number.to_string(), None);
        }
        assert!(cache.read().indexes[0].by_value.is_empty());
    }
}

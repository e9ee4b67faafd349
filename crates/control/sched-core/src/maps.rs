//! Maps of watched objects.

use std::{collections::HashMap, hash::Hash};

/// Sets or, with `None`, removes the entry of an object. Returns the old value.
pub(crate) fn set<K: Eq + Hash, V>(map: &mut HashMap<K, V>, key: K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}

//! Collects the warnings of one response, bounded in number and bytes.

use std::{collections::HashSet, hash::BuildHasher as _, hash::RandomState, ops::Deref};

/// The maximum number of warnings. A client is sent at most 4,096 characters of them.
const MAX_WARNINGS: usize = 1000;
/// The maximum size of the warnings, in bytes. The warning that exceeds it is still kept.
const MAX_WARNING_BYTES: usize = 256 << 10;

/// The warnings of one response in order, without duplicates.
///
/// Warnings beyond the bounds are dropped, because a client would not be sent them.
#[derive(Clone, Debug, Default)]
pub struct Warnings {
    list: Vec<String>,
    /// The hashes of the kept warnings.
    seen: HashSet<u64>,
    hasher: RandomState,
    bytes: usize,
}

impl Warnings {
    /// Returns an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a warning, unless the collection has the same one or is full.
    pub fn push(&mut self, warning: impl Into<String>) {
        if self.is_full() {
            return;
        }
        let warning = warning.into();
        if self.seen.insert(self.hasher.hash_one(&warning)) {
            self.bytes += warning.len();
            self.list.push(warning);
        }
    }

    /// Reports whether further warnings are dropped. Callers then stop looking for more.
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Returns the maximum number of warnings that can still be added.
    pub fn room(&self) -> usize {
        if self.bytes >= MAX_WARNING_BYTES { 0 } else { MAX_WARNINGS - self.list.len() }
    }

    /// Returns the warnings in the order in which they were added.
    pub fn into_vec(self) -> Vec<String> {
        self.list
    }
}

impl Deref for Warnings {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.list
    }
}

impl<S: Into<String>> Extend<S> for Warnings {
    fn extend<I: IntoIterator<Item = S>>(&mut self, warnings: I) {
        for warning in warnings {
            if self.is_full() {
                break;
            }
            self.push(warning);
        }
    }
}

impl<S: Into<String>> FromIterator<S> for Warnings {
    fn from_iter<I: IntoIterator<Item = S>>(warnings: I) -> Self {
        let mut collected = Self::new();
        collected.extend(warnings);
        collected
    }
}

impl IntoIterator for Warnings {
    type Item = String;
    type IntoIter = std::vec::IntoIter<String>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

impl PartialEq for Warnings {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl PartialEq<Vec<String>> for Warnings {
    fn eq(&self, other: &Vec<String>) -> bool {
        self.list == *other
    }
}

impl<const N: usize> PartialEq<[&str; N]> for Warnings {
    fn eq(&self, other: &[&str; N]) -> bool {
        self.list == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_each_warning_once_in_order() {
        let warnings: Warnings = ["b", "a", "b"].into_iter().collect();
        assert_eq!(warnings, ["b", "a"]);
    }

    #[test]
    fn drops_warnings_beyond_bounds() {
        let many: Warnings = (0..2 * MAX_WARNINGS).map(|i| i.to_string()).collect();
        assert_eq!((many.len(), many.room()), (MAX_WARNINGS, 0));
        let long: Warnings = (0..9).map(|i| i.to_string().repeat(MAX_WARNING_BYTES / 2)).collect();
        assert_eq!((long.len(), long.is_full()), (2, true));
    }
}

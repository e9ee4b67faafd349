//! An nftables table as a value, and the transaction that turns one value into another.
//!
//! Invariants:
//! - [`diff`] touches only the chains and elements that differ, and orders its steps as the kernel's
//!   reference counts ask: what is referred to exists before, and goes after, what refers to it.
//! - The elements of a dynamic set belong to the kernel (client affinity); no step here removes them while the
//!   set stays.
//! - A sealed table carries the digest of its content in a chain of its own ([`STATE_CHAIN`]), so that a
//!   restarted process sees that nothing changed, and then writes nothing.

mod ops;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::Family;
pub use ops::{Installed, Op, Transaction, create, diff, resync};

/// The chain whose only rule carries the table's digest as its comment.
pub const STATE_CHAIN: &str = "windlass-state";

/// A table as it should be in the kernel; [`diff`] says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub family: Family,
    pub name: String,
    pub chains: BTreeMap<String, Chain>,
    /// Sets and maps: they share one name space in the kernel.
    pub sets: BTreeMap<String, Set>,
}

/// The rules of one chain, each as nft's language has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// For a base chain, its type, hook and priority.
    pub hook: Option<&'static str>,
    pub rules: Vec<String>,
}

/// A set or a map with what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub is_map: bool,
    /// Type and flags as nft's declaration has them, each followed by a semicolon.
    pub spec: String,
    pub content: Content,
}

/// Who puts the elements in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Elements by key; a plain set's values are empty.
    Ours(BTreeMap<String, String>),
    /// The packet path adds elements, and they expire.
    Dynamic,
}

impl Table {
    /// A table with nothing in it.
    pub fn new(family: Family, name: &str) -> Self {
        Self { family, name: name.to_owned(), chains: BTreeMap::new(), sets: BTreeMap::new() }
    }

    /// Puts in a chain that the kernel calls at a hook, such as `type filter hook forward priority 0;`.
    pub fn base_chain(&mut self, name: &str, hook: &'static str, rules: &[&str]) {
        let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
        self.chains.insert(name.to_owned(), Chain { hook: Some(hook), rules });
    }

    /// Puts in a chain that others jump to.
    pub fn chain(&mut self, name: &str, rules: Vec<String>) {
        self.chains.insert(name.to_owned(), Chain { hook: None, rules });
    }

    /// Puts in an empty set; its elements come with the rules that use them.
    pub fn set(&mut self, name: &str, spec: impl Into<String>) {
        self.insert_set(name, false, spec.into(), Content::Ours(BTreeMap::new()));
    }

    /// Puts in an empty map.
    pub fn map(&mut self, name: &str, spec: impl Into<String>) {
        self.insert_set(name, true, spec.into(), Content::Ours(BTreeMap::new()));
    }

    /// Puts in a set that rules add to while packets pass.
    pub fn dynamic_set(&mut self, name: &str, spec: impl Into<String>) {
        self.insert_set(name, false, spec.into(), Content::Dynamic);
    }

    fn insert_set(&mut self, name: &str, is_map: bool, spec: String, content: Content) {
        self.sets.insert(name.to_owned(), Set { is_map, spec, content });
    }

    /// Adds an element to a set or map declared before; on equal keys the first stays.
    pub fn element(&mut self, set: &str, key: String, value: String) {
        if let Some(Set { content: Content::Ours(elements), .. }) = self.sets.get_mut(set) {
            elements.entry(key).or_insert(value);
        }
    }

    /// Whether `set` already has `key`: of two Services that claim one address, the first keeps it.
    pub(crate) fn has_element(&self, set: &str, key: &str) -> bool {
        matches!(self.sets.get(set), Some(Set { content: Content::Ours(elements), .. }) if elements.contains_key(key))
    }

    /// Writes the digest of everything else into [`STATE_CHAIN`].
    pub fn seal(&mut self) {
        self.seal_for("");
    }

    /// The same, and behind the digest whose the table is, if anybody's: where several may write one of that name, only
    /// its owner takes it away.
    pub fn seal_for(&mut self, owner: &str) {
        self.chains.remove(STATE_CHAIN);
        let mut digest = Sha256::new();
        let mut feed = |text: &str| {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        };
        for (name, chain) in &self.chains {
            feed(name);
            feed(chain.hook.unwrap_or_default());
            chain.rules.iter().for_each(|rule| feed(rule));
        }
        for (name, set) in &self.sets {
            feed(name);
            feed(&set.spec);
            if let Content::Ours(elements) = &set.content {
                elements.iter().for_each(|(key, value)| {
                    feed(key);
                    feed(value);
                });
            }
        }
        let hex = HEXLOWER.encode(&digest.finalize());
        let state = format!("sha256-{hex} {owner}");
        self.chain(STATE_CHAIN, vec![format!("return comment \"{}\"", state.trim_end())]);
    }

    /// What [`Table::seal`] wrote.
    pub fn digest(&self) -> Option<&str> {
        let rule = self.chains.get(STATE_CHAIN)?.rules.first()?;
        rule.split('"').nth(1)
    }
}

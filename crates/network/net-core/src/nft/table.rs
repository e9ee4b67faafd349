//! The desired state of a table.

use std::collections::BTreeMap;

use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};

use crate::{Family, seal::Seal};

/// The chain whose only rule carries the table's digest as its comment.
pub const STATE_CHAIN: &str = "windlass-state";

/// Returns the type of a family's addresses in sets.
pub(crate) fn address_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4_addr",
        Family::V6 => "ipv6_addr",
    }
}

/// The longest name of a chain or set without its suffixes. The kernel's limit is 255 bytes.
const MAX_NAME: usize = 236;

/// Shortens a name that the kernel would reject. Its end is replaced by a digest, so that names stay different.
pub(crate) fn bounded_name(mut name: String) -> String {
    if name.len() > MAX_NAME {
        let digest = digest::<16>(&name);
        name.truncate(name.floor_char_boundary(MAX_NAME - digest.len() - 1));
        name = format!("{name}-{digest}");
    }
    name
}

/// Returns the first characters of the text's SHA-256 in base 32, as in upstream's chain names.
pub(crate) fn digest<const LENGTH: usize>(text: &str) -> String {
    let mut digits = BASE32_NOPAD.encode(&Sha256::digest(text));
    digits.truncate(LENGTH);
    digits
}

/// The desired state of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The address family.
    pub family: Family,
    /// The table's name.
    pub name: String,
    /// The chains by name.
    pub chains: BTreeMap<String, Chain>,
    /// Sets and maps by name; they share one name space in the kernel.
    pub sets: BTreeMap<String, Set>,
}

/// A chain with its rules in nft syntax.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Type, hook and priority of a base chain; `None` for others.
    pub hook: Option<&'static str>,
    /// The rules, in order.
    pub rules: Vec<String>,
}

/// A set or a map with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// `true` for a map.
    pub is_map: bool,
    /// Type and flags in nft syntax, each followed by a semicolon.
    pub spec: String,
    /// The content.
    pub content: Content,
}

/// The elements of a set, by the side that adds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Elements by key, added by this program. The values of a plain set are empty.
    Ours(BTreeMap<String, String>),
    /// The kernel adds elements while packets pass, and they expire.
    Dynamic,
}

impl Table {
    /// Creates an empty table.
    pub fn new(family: Family, name: &str) -> Self {
        Self { family, name: name.to_owned(), chains: BTreeMap::new(), sets: BTreeMap::new() }
    }

    /// Adds a chain that the kernel calls at a hook, such as `type filter hook forward priority 0;`.
    pub fn base_chain(&mut self, name: &str, hook: &'static str, rules: &[&str]) {
        let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
        self.chains.insert(name.to_owned(), Chain { hook: Some(hook), rules });
    }

    /// Adds a chain that other chains jump to.
    pub fn chain(&mut self, name: &str, rules: Vec<String>) {
        self.chains.insert(name.to_owned(), Chain { hook: None, rules });
    }

    /// Adds an empty set. Its elements are added with the rules that use them.
    pub fn set(&mut self, name: &str, spec: impl Into<String>) {
        self.insert_set(name, false, spec.into(), Content::Ours(BTreeMap::new()));
    }

    /// Adds an empty map.
    pub fn map(&mut self, name: &str, spec: impl Into<String>) {
        self.insert_set(name, true, spec.into(), Content::Ours(BTreeMap::new()));
    }

    /// Adds a set that rules fill while packets pass.
    pub fn dynamic_set(&mut self, name: &str, spec: impl Into<String>) {
        self.insert_set(name, false, spec.into(), Content::Dynamic);
    }

    fn insert_set(&mut self, name: &str, is_map: bool, spec: String, content: Content) {
        self.sets.insert(name.to_owned(), Set { is_map, spec, content });
    }

    /// Adds an element to an existing set or map. An existing element with the same key stays.
    pub fn element(&mut self, set: &str, key: String, value: String) {
        if let Some(Set { content: Content::Ours(elements), .. }) = self.sets.get_mut(set) {
            elements.entry(key).or_insert(value);
        }
    }

    /// Reports whether the set has the key. Of two Services with the same address, the first keeps it.
    pub(crate) fn has_element(&self, set: &str, key: &str) -> bool {
        matches!(self.sets.get(set), Some(Set { content: Content::Ours(elements), .. }) if elements.contains_key(key))
    }

    /// Writes the digest of the table's other content into [`STATE_CHAIN`].
    pub fn seal(&mut self) {
        self.seal_for("");
    }

    /// Seals the table, and appends the owner to the digest. Of several programs that may write a table of this name,
    /// only its owner removes it. An empty owner stands for none.
    pub fn seal_for(&mut self, owner: &str) {
        self.chains.remove(STATE_CHAIN);
        let mut seal = Seal::default();
        for (name, chain) in &self.chains {
            seal.feed(name);
            seal.feed(chain.hook.unwrap_or_default());
            chain.rules.iter().for_each(|rule| seal.feed(rule));
        }
        for (name, set) in &self.sets {
            seal.feed(name);
            seal.feed(&set.spec);
            if let Content::Ours(elements) = &set.content {
                elements.iter().for_each(|(key, value)| {
                    seal.feed(key);
                    seal.feed(value);
                });
            }
        }
        let state = format!("{} {owner}", seal.finish());
        self.chain(STATE_CHAIN, vec![format!("return comment \"{}\"", state.trim_end())]);
    }

    /// Returns the digest that [`Table::seal`] wrote.
    pub fn digest(&self) -> Option<&str> {
        let rule = self.chains.get(STATE_CHAIN)?.rules.first()?;
        rule.split('"').nth(1)
    }
}

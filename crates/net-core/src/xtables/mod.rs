//! The chains of one address family's iptables as values, and the input of `iptables-restore` that turns one value into
//! another.
//!
//! Invariants:
//! - [`restore`] touches only chains that differ, and chains that have gone go last, when nothing leads to them any more.
//! - The jumps from the kernel's own chains are put first in them, and only where they are missing.
//! - A sealed value carries its digest in a chain of its own ([`STATE_CHAIN`]), so that a restarted process sees that
//!   nothing changed, and then writes nothing.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use crate::Family;

/// Its only rule carries the digest as its comment.
pub const STATE_CHAIN: &str = "WINDLASS-STATE";

/// A rule of one of the kernel's own chains that leads to one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    pub table: &'static str,
    pub from: &'static str,
    pub rule: &'static str,
}

/// By table and chain, the rules of each.
type Tables = BTreeMap<&'static str, BTreeMap<String, Vec<String>>>;

/// The chains of one family, in all of its tables (`filter`, `nat`), as they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chains {
    pub family: Family,
    pub jumps: &'static [Jump],
    /// What the names of chains begin with that come and go.
    pub prefixes: &'static [&'static str],
    tables: Tables,
}

/// What `iptables-save` shows of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    pub chains: BTreeSet<String>,
    /// The rules as they are shown.
    pub rules: BTreeSet<String>,
}

impl Chains {
    /// No chains yet. `jumps` lead to them from the kernel's own chains.
    pub fn new(family: Family, prefixes: &'static [&'static str], jumps: &'static [Jump]) -> Self {
        Self { family, jumps, prefixes, tables: BTreeMap::new() }
    }

    /// The rules of a chain, which is made if it is missing; each is what follows `-A CHAIN`.
    pub fn chain(&mut self, table: &'static str, name: &str) -> &mut Vec<String> {
        self.tables.entry(table).or_default().entry(name.to_owned()).or_default()
    }

    /// Whether the chain is to be there, be it without rules.
    pub fn has(&self, table: &str, name: &str) -> bool {
        self.tables.get(table).is_some_and(|chains| chains.contains_key(name))
    }

    /// The rules of a chain; none for one that is not to be there.
    pub fn rules(&self, table: &str, name: &str) -> &[String] {
        self.tables.get(table).and_then(|chains| chains.get(name)).map_or(&[], Vec::as_slice)
    }

    /// The tables that have chains.
    pub fn tables(&self) -> impl Iterator<Item = &'static str> {
        self.tables.keys().copied()
    }

    /// Writes the digest of everything else into [`STATE_CHAIN`] of every table.
    pub fn seal(&mut self) {
        let mut digest = Sha256::new();
        let mut feed = |text: &str| {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        };
        for (table, chains) in &self.tables {
            feed(table);
            for (name, rules) in chains.iter().filter(|(name, _)| *name != STATE_CHAIN) {
                feed(name);
                rules.iter().for_each(|rule| feed(rule));
            }
        }
        let hex = HEXLOWER.encode(&digest.finalize());
        for chains in self.tables.values_mut() {
            let rule = format!("-m comment --comment sha256-{hex}");
            chains.insert(STATE_CHAIN.to_owned(), vec![rule]);
        }
    }

    /// Whether this is what is installed, in every table, with what leads to it.
    pub fn is_installed(&self, installed: &BTreeMap<&'static str, Installed>) -> bool {
        self.tables.iter().all(|(table, chains)| {
            let rules = chains.get(STATE_CHAIN).into_iter().flatten();
            let mut wanted = rules.map(|rule| format!("-A {STATE_CHAIN} {rule}"));
            installed.get(table).is_some_and(|found| {
                wanted.all(|rule| found.rules.contains(&rule))
                    && self.missing(table, found).is_empty()
            })
        })
    }

    fn comes_and_goes(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    /// The jumps that a table lacks.
    fn missing(&self, table: &str, installed: &Installed) -> Vec<&'static Jump> {
        let there =
            |jump: &&Jump| installed.rules.contains(&format!("-A {} {}", jump.from, jump.rule));
        self.jumps.iter().filter(|jump| jump.table == table && !there(jump)).collect()
    }
}

impl Installed {
    /// From what `iptables-save -t TABLE` prints.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            if let Some(chain) = line.strip_prefix(':') {
                found.chains.extend(chain.split_whitespace().next().map(str::to_owned));
            } else if line.starts_with("-A ") {
                found.rules.insert(line.trim_end().to_owned());
            }
        }
        found
    }
}

/// One table's part of a change.
#[derive(Default)]
struct Part {
    declared: String,
    rules: String,
    removed: String,
    operations: usize,
}

impl Part {
    fn put(&mut self, name: &str, rules: &[String]) {
        // Declaring a chain empties it.
        let _ = writeln!(self.declared, ":{name} - [0:0]");
        for rule in rules {
            let _ = writeln!(self.rules, "-A {name} {rule}");
        }
        self.operations += 1 + rules.len();
    }

    fn remove(&mut self, name: &str) {
        let _ = writeln!(self.declared, ":{name} - [0:0]");
        let _ = writeln!(self.removed, "-X {name}");
        self.operations += 1;
    }

    fn add_to(self, table: &str, text: &mut String, operations: &mut usize) {
        if self.operations > 0 {
            let Self { declared, rules, removed, operations: own } = self;
            let _ = write!(text, "*{table}\n{declared}{rules}{removed}COMMIT\n");
            *operations += own;
        }
    }
}

/// The input that makes `new` of `old`, which is in place, and how many operations it has.
pub fn restore(old: &Chains, new: &Chains) -> (String, usize) {
    let (mut text, mut operations) = (String::new(), 0);
    let none = BTreeMap::new();
    for (table, chains) in &new.tables {
        let before = old.tables.get(table).unwrap_or(&none);
        let mut part = Part::default();
        for (name, rules) in chains.iter().filter(|(name, rules)| before.get(*name) != Some(rules))
        {
            part.put(name, rules);
        }
        before.keys().filter(|name| !chains.contains_key(*name)).for_each(|name| part.remove(name));
        part.add_to(table, &mut text, &mut operations);
    }
    (text, operations)
}

/// The input that makes `new` of whatever is there: all chains are written, those of an earlier proxy are removed.
pub fn resync(installed: &BTreeMap<&'static str, Installed>, new: &Chains) -> (String, usize) {
    let (mut text, mut operations) = (String::new(), 0);
    let none = Installed::default();
    for (table, chains) in &new.tables {
        let found = installed.get(table).unwrap_or(&none);
        let mut part = Part::default();
        chains.iter().for_each(|(name, rules)| part.put(name, rules));
        for jump in new.missing(table, found) {
            let _ = writeln!(part.rules, "-I {} {}", jump.from, jump.rule);
            part.operations += 1;
        }
        let ours = |name: &&String| new.comes_and_goes(name) && !chains.contains_key(*name);
        found.chains.iter().filter(ours).for_each(|name| part.remove(name));
        part.add_to(table, &mut text, &mut operations);
    }
    (text, operations)
}

/// The part of an input that takes the chains of one table away whose names `is_stale`, with the rules that lead to
/// them, and how many those chains are.
pub fn removal(
    table: &str,
    installed: &Installed,
    is_stale: &dyn Fn(&str) -> bool,
) -> (usize, String) {
    let mut part = Part::default();
    let stale = |name: Option<&str>| name.is_some_and(is_stale);
    for rule in installed.rules.iter().filter_map(|rule| rule.strip_prefix("-A ")) {
        let target = [" -j ", " -g "].iter().find_map(|verb| rule.rsplit_once(verb));
        let target = target.and_then(|(_, rest)| rest.split_whitespace().next());
        if stale(target) && !stale(rule.split_whitespace().next()) {
            let _ = writeln!(part.rules, "-D {rule}");
            part.operations += 1;
        }
    }
    let chains: Vec<_> = installed.chains.iter().filter(|name| is_stale(name)).collect();
    chains.iter().for_each(|name| part.remove(name));
    let (mut text, mut operations) = (String::new(), 0);
    part.add_to(table, &mut text, &mut operations);
    (chains.len(), text)
}

/// Whether an earlier run of ours left chains.
pub fn is_there(installed: &BTreeMap<&'static str, Installed>) -> bool {
    installed.values().any(|found| found.chains.contains(STATE_CHAIN))
}

//! The iptables chains of one address family, and the input of `iptables-restore` that changes them.
//!
//! Invariants:
//! - [`restore`] changes only chains that differ, and deletes chains last, when no rule refers to them any more.
//! - Jumps from built-in chains are inserted at their start, and only if they are missing.
//! - A sealed value carries its digest in a separate chain ([`STATE_CHAIN`]), so that a restarted process sees that
//!   nothing changed and writes nothing.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use crate::{Family, seal::Seal};

/// The chain whose only rule carries the digest as its comment.
pub const STATE_CHAIN: &str = "WINDLASS-STATE";

/// A rule of a built-in chain that jumps to a chain of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The iptables table.
    pub table: &'static str,
    /// The built-in chain.
    pub from: &'static str,
    /// The rule without `-A CHAIN`.
    pub rule: &'static str,
}

/// The rules by table and chain.
type Tables = BTreeMap<&'static str, BTreeMap<String, Vec<String>>>;

/// The desired chains of one family in all tables (`filter`, `nat`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chains {
    /// The address family.
    pub family: Family,
    /// The jumps from built-in chains.
    pub jumps: &'static [Jump],
    /// The name prefixes of chains that are created and deleted with Services.
    pub prefixes: &'static [&'static str],
    tables: Tables,
}

/// The chains and rules of one table, as `iptables-save` prints them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstalledTable {
    /// The names of the chains.
    pub chains: BTreeSet<String>,
    /// The rules as printed.
    pub rules: BTreeSet<String>,
}

impl Chains {
    /// Creates an empty value. `jumps` lead to its chains from built-in ones.
    pub fn new(family: Family, prefixes: &'static [&'static str], jumps: &'static [Jump]) -> Self {
        Self { family, jumps, prefixes, tables: BTreeMap::new() }
    }

    /// Returns the rules of a chain, which is created if it is missing. A rule is the text after `-A CHAIN`.
    pub fn chain(&mut self, table: &'static str, name: &str) -> &mut Vec<String> {
        self.tables.entry(table).or_default().entry(name.to_owned()).or_default()
    }

    /// Reports whether the chain exists, even without rules.
    pub fn has(&self, table: &str, name: &str) -> bool {
        self.tables.get(table).is_some_and(|chains| chains.contains_key(name))
    }

    /// Returns the rules of a chain; empty if the chain does not exist.
    pub fn rules(&self, table: &str, name: &str) -> &[String] {
        self.tables.get(table).and_then(|chains| chains.get(name)).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of rules of a table.
    pub fn rule_count(&self, table: &str) -> usize {
        self.tables.get(table).into_iter().flatten().map(|(_, rules)| rules.len()).sum()
    }

    /// Returns the tables that have chains.
    pub fn tables(&self) -> impl Iterator<Item = &'static str> {
        self.tables.keys().copied()
    }

    /// Writes the digest of the other content into [`STATE_CHAIN`] of every table.
    pub fn seal(&mut self) {
        let mut seal = Seal::default();
        for (table, chains) in &self.tables {
            seal.feed(table);
            for (name, rules) in chains.iter().filter(|(name, _)| *name != STATE_CHAIN) {
                seal.feed(name);
                rules.iter().for_each(|rule| seal.feed(rule));
            }
        }
        let digest = seal.finish();
        for chains in self.tables.values_mut() {
            let rule = format!("-m comment --comment {digest}");
            chains.insert(STATE_CHAIN.to_owned(), vec![rule]);
        }
    }

    /// Reports whether every table has this value installed, with its jumps.
    pub fn is_installed(&self, installed: &BTreeMap<&'static str, InstalledTable>) -> bool {
        self.tables.iter().all(|(table, chains)| {
            let rules = chains.get(STATE_CHAIN).into_iter().flatten();
            let mut lines = rules.map(|rule| format!("-A {STATE_CHAIN} {rule}"));
            installed.get(table).is_some_and(|current| {
                lines.all(|rule| current.rules.contains(&rule))
                    && self.missing(table, current).is_empty()
            })
        })
    }

    fn is_dynamic(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Returns the jumps that a table lacks.
    fn missing(&self, table: &str, installed: &InstalledTable) -> Vec<&'static Jump> {
        let there =
            |jump: &&Jump| installed.rules.contains(&format!("-A {} {}", jump.from, jump.rule));
        self.jumps.iter().filter(|jump| jump.table == table && !there(jump)).collect()
    }
}

impl InstalledTable {
    /// Parses the output of `iptables-save -t TABLE`.
    pub fn parse(text: &str) -> Self {
        let mut table = Self::default();
        for line in text.lines() {
            if let Some(chain) = line.strip_prefix(':') {
                table.chains.extend(chain.split_whitespace().next().map(str::to_owned));
            } else if line.starts_with("-A ") {
                table.rules.insert(line.trim_end().to_owned());
            }
        }
        table
    }
}

/// The change of one table.
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

/// Returns the input that changes the installed value `old` to `new`, and the number of its operations.
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

/// Returns the input that replaces any installed state by `new`: all chains are written, and those of an earlier proxy
/// are deleted. Also returns the number of operations.
pub fn resync(installed: &BTreeMap<&'static str, InstalledTable>, new: &Chains) -> (String, usize) {
    let (mut text, mut operations) = (String::new(), 0);
    let none = InstalledTable::default();
    for (table, chains) in &new.tables {
        let current = installed.get(table).unwrap_or(&none);
        let mut part = Part::default();
        chains.iter().for_each(|(name, rules)| part.put(name, rules));
        for jump in new.missing(table, current) {
            let _ = writeln!(part.rules, "-I {} {}", jump.from, jump.rule);
            part.operations += 1;
        }
        let ours = |name: &&String| new.is_dynamic(name) && !chains.contains_key(*name);
        current.chains.iter().filter(ours).for_each(|name| part.remove(name));
        part.add_to(table, &mut text, &mut operations);
    }
    (text, operations)
}

/// Returns the part of an input that deletes the chains of a table for which `is_stale` is `true`, with the rules that
/// jump to them, and the number of these chains.
pub fn removal(
    table: &str,
    installed: &InstalledTable,
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

/// Reports whether an earlier run of this program left chains.
pub fn is_there(installed: &BTreeMap<&'static str, InstalledTable>) -> bool {
    installed.values().any(|table| table.chains.contains(STATE_CHAIN))
}

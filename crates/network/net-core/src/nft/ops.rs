use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::table::{Content, Set, Table};
use crate::Family;

/// A step of a transaction. Names are borrowed from the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    AddTable,
    DeleteTable,
    AddChain { name: &'a str, hook: Option<&'static str> },
    FlushChain(&'a str),
    DeleteChain(&'a str),
    AddRule { chain: &'a str, rule: &'a str },
    AddSet { name: &'a str, is_map: bool, spec: &'a str },
    FlushSet { name: &'a str, is_map: bool },
    DeleteSet { name: &'a str, is_map: bool },
    AddElement { set: &'a str, key: &'a str, value: &'a str },
    DeleteElement { set: &'a str, key: &'a str },
}

/// Steps that the kernel applies atomically. `Display` formats the input of `nft -f -`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction<'a> {
    /// The address family of the table.
    pub family: Family,
    /// The name of the table.
    pub table: &'a str,
    /// The steps, in order.
    pub ops: Vec<Op<'a>>,
}

impl Transaction<'_> {
    /// Returns `true` if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

/// The parts of a listed table that are needed to bring it to a known state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstalledTable {
    /// The digest and the owner; `None` for a table that was not sealed.
    pub digest: Option<String>,
    /// The names of the chains.
    pub chains: BTreeSet<String>,
    /// The names of the sets, each with `true` for a map.
    pub sets: BTreeMap<String, bool>,
}

impl InstalledTable {
    /// Returns the owner of a sealed table; empty if it has none.
    pub fn owner(&self) -> Option<&str> {
        let digest = self.digest.as_deref()?;
        Some(digest.split_once(' ').map_or("", |(_, owner)| owner))
    }
}

/// Returns the steps that create `new` and replace an existing table. They discard client affinity, so they are used
/// only for a table that does not exist or for which [`resync`] fails.
pub fn create(new: &Table) -> Transaction<'_> {
    // Adding before deleting makes the deletion succeed whether or not the table exists.
    let mut ops = vec![Op::AddTable, Op::DeleteTable, Op::AddTable];
    ops.extend(additions(new));
    Transaction { family: new.family, table: &new.name, ops }
}

/// Returns the steps to `new` from a table whose rules are unknown. The elements of dynamic sets stay.
pub fn resync<'a>(installed: &'a InstalledTable, new: &'a Table) -> Transaction<'a> {
    let mut ops = vec![Op::AddTable];
    for (name, chain) in &new.chains {
        ops.push(Op::AddChain { name, hook: chain.hook });
    }
    // Empty all chains first, so that no rule refers to a set that is to be deleted.
    ops.extend(installed.chains.iter().map(|name| Op::FlushChain(name)));
    for (name, &is_map) in &installed.sets {
        match new.sets.get(name) {
            Some(Set { content: Content::Dynamic, .. }) => {}
            Some(_) => ops.push(Op::FlushSet { name, is_map }),
            None => ops.push(Op::DeleteSet { name, is_map }),
        }
    }
    let gone = installed.chains.iter().filter(|name| !new.chains.contains_key(*name));
    ops.extend(gone.map(|name| Op::DeleteChain(name)));
    ops.extend(sets_and_content(new));
    Transaction { family: new.family, table: &new.name, ops }
}

fn additions(new: &Table) -> Vec<Op<'_>> {
    let chains = new.chains.iter().map(|(name, chain)| Op::AddChain { name, hook: chain.hook });
    chains.chain(sets_and_content(new)).collect()
}

fn sets_and_content(new: &Table) -> Vec<Op<'_>> {
    let mut ops = Vec::new();
    for (name, set) in &new.sets {
        add_set(&mut ops, name, set);
    }
    for (name, chain) in &new.chains {
        ops.extend(chain.rules.iter().map(|rule| Op::AddRule { chain: name, rule }));
    }
    ops
}

fn add_set<'a>(ops: &mut Vec<Op<'a>>, name: &'a str, set: &'a Set) {
    ops.push(Op::AddSet { name, is_map: set.is_map, spec: &set.spec });
    if let Content::Ours(elements) = &set.content {
        ops.extend(elements.iter().map(|(key, value)| Op::AddElement { set: name, key, value }));
    }
}

/// Returns the steps from `old` to `new`; none if they are equal.
///
/// Both must describe the same table. Base chains keep their hooks during the life of a process. The kernel rejects a
/// change of a set's type; the caller then falls back to [`create`].
pub fn diff<'a>(old: &'a Table, new: &'a Table) -> Transaction<'a> {
    let mut ops = Vec::new();
    for (name, chain) in &new.chains {
        if !old.chains.contains_key(name) {
            ops.push(Op::AddChain { name, hook: chain.hook });
        }
    }
    for (name, set) in &new.sets {
        match old.sets.get(name) {
            None => add_set(&mut ops, name, set),
            Some(before) => change_elements(&mut ops, name, before, set),
        }
    }
    for (name, chain) in &new.chains {
        let before = old.chains.get(name).map_or(&[][..], |chain| &chain.rules[..]);
        if before != chain.rules {
            if !before.is_empty() {
                ops.push(Op::FlushChain(name));
            }
            ops.extend(chain.rules.iter().map(|rule| Op::AddRule { chain: name, rule }));
        }
    }
    let gone = || old.chains.iter().filter(|(name, _)| !new.chains.contains_key(*name));
    // Chains to be deleted may refer to each other, so all are emptied first.
    let filled = gone().filter(|(_, chain)| !chain.rules.is_empty());
    ops.extend(filled.map(|(name, _)| Op::FlushChain(name)));
    let gone_sets = old.sets.iter().filter(|(name, _)| !new.sets.contains_key(*name));
    ops.extend(gone_sets.map(|(name, set)| Op::DeleteSet { name, is_map: set.is_map }));
    ops.extend(gone().map(|(name, _)| Op::DeleteChain(name)));
    Transaction { family: new.family, table: &new.name, ops }
}

fn change_elements<'a>(ops: &mut Vec<Op<'a>>, set: &'a str, old: &'a Set, new: &'a Set) {
    let (Content::Ours(before), Content::Ours(after)) = (&old.content, &new.content) else {
        return;
    };
    for (key, value) in before {
        // The kernel cannot overwrite an element of a map: a changed value is a deletion and an addition.
        if after.get(key) != Some(value) {
            ops.push(Op::DeleteElement { set, key });
        }
    }
    for (key, value) in after {
        if before.get(key) != Some(value) {
            ops.push(Op::AddElement { set, key, value });
        }
    }
}

impl fmt::Display for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = format_args!("{} {}", self.family.nft(), self.table).to_string();
        for op in &self.ops {
            match op {
                Op::AddTable => writeln!(f, "add table {target}")?,
                Op::DeleteTable => writeln!(f, "delete table {target}")?,
                Op::AddChain { name, hook: None } => writeln!(f, "add chain {target} {name}")?,
                Op::AddChain { name, hook: Some(hook) } => {
                    writeln!(f, "add chain {target} {name} {{ {hook}; }}")?;
                }
                Op::FlushChain(name) => writeln!(f, "flush chain {target} {name}")?,
                Op::DeleteChain(name) => writeln!(f, "delete chain {target} {name}")?,
                Op::AddRule { chain, rule } => writeln!(f, "add rule {target} {chain} {rule}")?,
                Op::AddSet { name, is_map, spec } => {
                    writeln!(f, "add {} {target} {name} {{ {spec} }}", keyword(*is_map))?;
                }
                Op::FlushSet { name, is_map } => {
                    writeln!(f, "flush {} {target} {name}", keyword(*is_map))?
                }
                Op::DeleteSet { name, is_map } => {
                    writeln!(f, "delete {} {target} {name}", keyword(*is_map))?
                }
                Op::AddElement { set, key, value: "" } => {
                    writeln!(f, "add element {target} {set} {{ {key} }}")?;
                }
                Op::AddElement { set, key, value } => {
                    writeln!(f, "add element {target} {set} {{ {key} : {value} }}")?;
                }
                Op::DeleteElement { set, key } => {
                    writeln!(f, "delete element {target} {set} {{ {key} }}")?;
                }
            }
        }
        Ok(())
    }
}

fn keyword(is_map: bool) -> &'static str {
    if is_map { "map" } else { "set" }
}

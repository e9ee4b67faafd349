use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{Content, Set, Table};
use crate::Family;

/// One step of a transaction. Names are borrowed from the tables that it was made from.
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

/// Steps that the kernel takes together or not at all. Its `Display` is what `nft -f -` reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction<'a> {
    pub family: Family,
    pub table: &'a str,
    pub ops: Vec<Op<'a>>,
}

impl Transaction<'_> {
    /// The kernel has what it should have, and is left alone.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

/// What a listing of the kernel's table shows: enough to bring it to a known state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    pub digest: Option<String>,
    pub chains: BTreeSet<String>,
    /// Name, and whether it is a map.
    pub sets: BTreeMap<String, bool>,
}

impl Installed {
    /// Whose the table is, of those that one of us wrote; empty where it is nobody's in particular.
    pub fn owner(&self) -> Option<&str> {
        let digest = self.digest.as_deref()?;
        Some(digest.split_once(' ').map_or("", |(_, owner)| owner))
    }
}

/// The steps from nothing, or from whatever the table holds, to `new`. Forgets client affinity; used for a
/// table that is not there or cannot be brought over by [`resync`].
pub fn create(new: &Table) -> Transaction<'_> {
    // Adding before deleting makes the deletion succeed whether or not the table exists.
    let mut ops = vec![Op::AddTable, Op::DeleteTable, Op::AddTable];
    ops.extend(additions(new));
    Transaction { family: new.family, table: &new.name, ops }
}

/// The steps from a table of which only names are known to `new`; the elements of dynamic sets stay.
pub fn resync<'a>(installed: &'a Installed, new: &'a Table) -> Transaction<'a> {
    let mut ops = vec![Op::AddTable];
    for (name, chain) in &new.chains {
        ops.push(Op::AddChain { name, hook: chain.hook });
    }
    // Every chain is emptied first, so that no rule refers to a set that is about to go.
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

/// The steps from `old` to `new`, none where they are equal.
///
/// Both must be the same table. Base chains keep their hooks for a program's life; a set whose type changes is
/// taken for a programming error by the kernel, and the caller falls back to [`create`].
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
    // Chains that go may refer to each other, so all are emptied before any is deleted.
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
        // A map's element cannot be overwritten: a changed value is a deletion and an addition.
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
                    writeln!(f, "add {} {target} {name} {{ {spec} }}", noun(*is_map))?;
                }
                Op::FlushSet { name, is_map } => {
                    writeln!(f, "flush {} {target} {name}", noun(*is_map))?
                }
                Op::DeleteSet { name, is_map } => {
                    writeln!(f, "delete {} {target} {name}", noun(*is_map))?
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

fn noun(is_map: bool) -> &'static str {
    if is_map { "map" } else { "set" }
}

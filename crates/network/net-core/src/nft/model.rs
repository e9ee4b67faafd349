//! A model of the kernel: applies steps one by one and rejects what the kernel rejects, in particular the removal of
//! objects that are still referenced.

use std::collections::{BTreeMap, BTreeSet};

use super::{Chain, Content, Op, Set, Table, Transaction};

/// Applies the transaction to the table, or returns the step that the kernel would reject.
pub(super) fn apply(
    table: &mut Option<Table>,
    transaction: &Transaction<'_>,
) -> Result<(), String> {
    for op in &transaction.ops {
        step(table, transaction, op).map_err(|reason| format!("{op:?}: {reason}"))?;
    }
    Ok(())
}

fn step(
    table: &mut Option<Table>,
    transaction: &Transaction<'_>,
    op: &Op<'_>,
) -> Result<(), String> {
    if *op == Op::AddTable {
        table.get_or_insert_with(|| Table::new(transaction.family, transaction.table));
        return Ok(());
    }
    if *op == Op::DeleteTable {
        return table.take().map(drop).ok_or("no such table".into());
    }
    let table = table.as_mut().ok_or("no such table")?;
    let used = references(table);
    match *op {
        Op::AddTable | Op::DeleteTable => unreachable!(),
        Op::AddChain { name, hook } => {
            let chain = table.chains.entry(name.into()).or_insert(Chain { hook, rules: vec![] });
            if chain.hook != hook { Err("another hook".into()) } else { Ok(()) }
        }
        Op::FlushChain(name) => chain(table, name).map(|chain| chain.rules.clear()),
        Op::DeleteChain(name) => {
            if !chain(table, name)?.rules.is_empty() || used.contains(name) {
                return Err("in use".into());
            }
            table.chains.remove(name);
            Ok(())
        }
        Op::AddRule { chain: name, rule } => {
            for word in references_in(rule) {
                if !table.chains.contains_key(&word) && !table.sets.contains_key(&word) {
                    return Err(format!("no such chain or set {word}"));
                }
            }
            chain(table, name).map(|chain| chain.rules.push(rule.into()))
        }
        Op::AddSet { name, is_map, spec } => {
            let content = if spec.contains("dynamic") {
                Content::Dynamic
            } else {
                Content::Ours(BTreeMap::new())
            };
            let set = Set { is_map, spec: spec.into(), content };
            let existing = table.sets.entry(name.into()).or_insert(set);
            if existing.spec != spec { Err("another type".into()) } else { Ok(()) }
        }
        Op::FlushSet { name, .. } => elements(table, name).map(BTreeMap::clear),
        Op::DeleteSet { name, .. } => {
            if used.contains(name) {
                return Err("in use".into());
            }
            table.sets.remove(name).map(drop).ok_or("no such set".into())
        }
        Op::AddElement { set, key, value } => {
            if let Some(target) = target(value).filter(|target| !table.chains.contains_key(*target))
            {
                return Err(format!("no such chain {target}"));
            }
            let entry = elements(table, set)?.entry(key.into()).or_insert_with(|| value.into());
            if entry != value { Err("exists with another value".into()) } else { Ok(()) }
        }
        Op::DeleteElement { set, key } => {
            elements(table, set)?.remove(key).map(drop).ok_or("no such element".into())
        }
    }
}

fn chain<'t>(table: &'t mut Table, name: &str) -> Result<&'t mut Chain, String> {
    table.chains.get_mut(name).ok_or("no such chain".into())
}

fn elements<'t>(
    table: &'t mut Table,
    name: &str,
) -> Result<&'t mut BTreeMap<String, String>, String> {
    match &mut table.sets.get_mut(name).ok_or("no such set")?.content {
        Content::Ours(elements) => Ok(elements),
        Content::Dynamic => Err("the elements are the kernel's".into()),
    }
}

fn target(value: &str) -> Option<&str> {
    value.strip_prefix("goto ").or(value.strip_prefix("jump "))
}

/// Returns the chains and sets that a rule refers to.
fn references_in(rule: &str) -> Vec<String> {
    let words: Vec<&str> = rule.split_whitespace().collect();
    let jumps =
        words.windows(2).filter(|pair| ["goto", "jump"].contains(&pair[0])).map(|pair| pair[1]);
    let sets = words.iter().filter_map(|word| word.strip_prefix('@'));
    jumps.chain(sets).map(|word| word.trim_end_matches(',').to_owned()).collect()
}

fn references(table: &Table) -> BTreeSet<String> {
    let rules =
        table.chains.values().flat_map(|chain| &chain.rules).flat_map(|rule| references_in(rule));
    let values = table.sets.values().filter_map(|set| match &set.content {
        Content::Ours(elements) => Some(elements.values()),
        Content::Dynamic => None,
    });
    let values = values.flatten().filter_map(|value| target(value)).map(str::to_owned);
    rules.chain(values).collect()
}

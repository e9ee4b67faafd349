use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{model::apply, *};
use crate::Family;

/// Tables like the planner's: maps dispatch to chains, which lead to other chains and to dynamic sets.
fn table() -> impl Strategy<Value = Table> {
    let endpoints = prop::collection::btree_set(0u8..6, 0..4);
    let service = (endpoints, any::<bool>(), 0u8..2);
    prop::collection::btree_map(0u8..6, service, 0..6).prop_map(build)
}

fn build(services: BTreeMap<u8, (std::collections::BTreeSet<u8>, bool, u8)>) -> Table {
    let mut table = Table::new(Family::V4, "t");
    table.map("ips", "type ipv4_addr : verdict;");
    table.set("all", "type ipv4_addr;");
    table.base_chain("nat", "type nat hook prerouting priority -100", &["ip daddr vmap @ips"]);
    for (service, (endpoints, sticky, variant)) in services {
        table.element("all", format!("10.0.0.{service}"), String::new());
        let chain = format!("service-{service}");
        let mut rules = vec![format!("variant {variant}")];
        for endpoint in endpoints {
            let target = format!("endpoint-{service}-{endpoint}");
            rules.push(format!("numgen goto {target}"));
            let mut body = vec![format!("dnat to 10.1.0.{endpoint}")];
            if sticky {
                table.dynamic_set(
                    &format!("affinity-{service}-{endpoint}"),
                    "flags dynamic,timeout;",
                );
                body.insert(0, format!("update @affinity-{service}-{endpoint} {{ ip saddr }}"));
            }
            table.chain(&target, body);
        }
        // A second rule set, so that a key's value changes while the key stays.
        if variant == 1 {
            table.chain(&format!("external-{service}"), vec![format!("goto {chain}")]);
            table.element("ips", format!("10.0.0.{service}"), format!("goto external-{service}"));
        } else {
            table.element("ips", format!("10.0.0.{service}"), format!("goto {chain}"));
        }
        table.chain(&chain, rules);
    }
    table.seal();
    table
}

fn names(table: &Table) -> InstalledTable {
    InstalledTable {
        digest: table.digest().map(str::to_owned),
        chains: table.chains.keys().cloned().collect(),
        sets: table.sets.iter().map(|(name, set)| (name.clone(), set.is_map)).collect(),
    }
}

proptest! {
    #[test]
    fn diff_turns_old_table_into_new(old in table(), new in table()) {
        let mut kernel = Some(old.clone());
        apply(&mut kernel, &diff(&old, &new)).map_err(TestCaseError::fail)?;
        prop_assert_eq!(kernel.unwrap(), new);
    }

    #[test]
    fn diff_of_equal_tables_is_empty(table in table()) {
        prop_assert!(diff(&table, &table.clone()).is_empty());
    }

    #[test]
    fn resync_turns_any_table_into_new(old in table(), new in table()) {
        let mut kernel = Some(old.clone());
        apply(&mut kernel, &resync(&names(&old), &new)).map_err(TestCaseError::fail)?;
        prop_assert_eq!(kernel.unwrap(), new);
    }

    #[test]
    fn create_replaces_any_table(old in prop::option::of(table()), new in table()) {
        let mut kernel = old;
        apply(&mut kernel, &create(&new)).map_err(TestCaseError::fail)?;
        prop_assert_eq!(kernel.unwrap(), new);
    }

    #[test]
    fn diff_keeps_unchanged_chains_and_elements(old in table(), new in table()) {
        for op in diff(&old, &new).ops {
            match op {
                Op::FlushChain(name) | Op::DeleteChain(name) => prop_assert_ne!(old.chains.get(name), new.chains.get(name)),
                Op::DeleteTable | Op::FlushSet { .. } => prop_assert!(false, "{op:?}"),
                Op::DeleteSet { name, .. } => prop_assert!(!new.sets.contains_key(name)),
                _ => {}
            }
        }
    }

    #[test]
    fn digest_distinguishes_tables(old in table(), new in table()) {
        prop_assert_eq!(old == new, old.digest() == new.digest());
    }
}

#[test]
fn model_rejects_invalid_steps() {
    let mut kernel = None;
    let transaction = |ops| Transaction { family: Family::V4, table: "t", ops };
    let add = |name| Op::AddChain { name, hook: None };
    apply(
        &mut kernel,
        &transaction(vec![
            Op::AddTable,
            add("a"),
            add("b"),
            Op::AddRule { chain: "a", rule: "goto b" },
        ]),
    )
    .unwrap();
    for refused in [
        Op::DeleteChain("b"),
        Op::DeleteChain("a"),
        Op::AddRule { chain: "a", rule: "goto c" },
        Op::FlushChain("c"),
    ] {
        assert!(
            apply(&mut kernel.clone(), &transaction(vec![refused.clone()])).is_err(),
            "{refused:?}"
        );
    }
}

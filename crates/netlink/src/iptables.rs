//! Chains that iptables made through nftables, as another proxy does; taken away without iptables.

use net_core::Family;
use serde::Deserialize;
use serde_json::Value;

use crate::nft::{self, NftError};

/// The tables in which iptables keeps what proxies write.
pub(crate) const TABLES: [&str; 3] = ["nat", "filter", "mangle"];

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Object>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    chain: Option<Chain>,
    rule: Option<Rule>,
}

#[derive(Deserialize)]
struct Chain {
    name: String,
}

#[derive(Deserialize)]
struct Rule {
    chain: String,
    handle: u64,
    #[serde(default)]
    expr: Vec<Value>,
}

/// The commands that take the chains away for which `is_stale` holds, and how many those are.
pub(crate) fn removal(
    family: Family,
    table: &str,
    is_stale: &dyn Fn(&str) -> bool,
) -> Result<(usize, String), NftError> {
    let listing = nft::listing("-a", family, table)?;
    Ok(commands(&listing, &format!("{} {table}", family.nft()), is_stale))
}

/// A chain goes only when it is empty and no rule leads to it.
fn commands(listing: &Listing, table: &str, is_stale: &dyn Fn(&str) -> bool) -> (usize, String) {
    let chains = listing.nftables.iter().filter_map(|object| object.chain.as_ref());
    let stale: Vec<&str> =
        chains.map(|chain| chain.name.as_str()).filter(|name| is_stale(name)).collect();
    let rules = listing.nftables.iter().filter_map(|object| object.rule.as_ref());
    let leading = rules.filter(|rule| !is_stale(&rule.chain) && leads(rule, is_stale));
    let mut text = String::new();
    for rule in leading {
        text.push_str(&format!("delete rule {table} {} handle {}\n", rule.chain, rule.handle));
    }
    for verb in ["flush", "delete"] {
        for name in &stale {
            text.push_str(&format!("{verb} chain {table} {name}\n"));
        }
    }
    (stale.len(), text)
}

fn leads(rule: &Rule, is_stale: &dyn Fn(&str) -> bool) -> bool {
    rule.expr.iter().any(|statement| {
        let target = ["jump", "goto"].iter().find_map(|verb| statement[verb]["target"].as_str());
        target.is_some_and(is_stale)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stale_chains_go_with_the_rules_that_lead_to_them_and_others_stay() {
        let rule = |chain: &str, handle: u64, target: &str| {
            json!({"rule": {"family": "ip", "table": "nat", "chain": chain, "handle": handle, "expr": [
                {"xt": {"type": "match", "name": "comment"}}, {"jump": {"target": target}}]}})
        };
        let listing = json!({"nftables": [
            {"metainfo": {"json_schema_version": 1}},
            {"table": {"family": "ip", "name": "nat", "handle": 1}},
            {"chain": {"name": "OUTPUT", "type": "nat"}},
            {"chain": {"name": "KUBE-SERVICES"}},
            {"chain": {"name": "KUBE-SVC-A"}},
            {"chain": {"name": "MINE"}},
            rule("OUTPUT", 7, "KUBE-SERVICES"), rule("OUTPUT", 8, "MINE"), rule("KUBE-SERVICES", 9, "KUBE-SVC-A"),
        ]});
        let listing: Listing = serde_json::from_value(listing).unwrap();
        let (count, text) = commands(&listing, "ip nat", &|name| name.starts_with("KUBE-S"));
        assert_eq!(count, 2);
        assert_eq!(
            text,
            "delete rule ip nat OUTPUT handle 7\nflush chain ip nat KUBE-SERVICES\nflush chain ip nat KUBE-SVC-A\n\
             delete chain ip nat KUBE-SERVICES\ndelete chain ip nat KUBE-SVC-A\n"
        );
        assert_eq!(commands(&listing, "ip nat", &|_| false), (0, String::new()));
    }
}

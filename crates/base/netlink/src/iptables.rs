//! Removes chains that iptables created through nftables, such as another proxy's, without the iptables program.

use net_core::Family;
use serde::Deserialize;
use serde_json::Value;

use crate::{error::NftError, nft};

/// The tables with the chains of proxies.
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

/// Returns the commands that remove the chains for which `is_stale` is true, and the number of these chains.
pub(crate) fn removal(
    family: Family,
    table: &str,
    is_stale: &dyn Fn(&str) -> bool,
) -> Result<(usize, String), NftError> {
    let listing = nft::listing("-a", family, table)?;
    Ok(commands(&listing, &format!("{} {table}", family.nft()), is_stale))
}

/// A chain can only be deleted when it is empty and no rule refers to it.
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
    fn removes_stale_chains_with_their_references() {
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

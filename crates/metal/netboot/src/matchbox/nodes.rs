//! Maps machines to nodes of a cluster.
//!
//! An enrolled group gives each of its MAC addresses one node name, so that a wiped machine becomes the same node
//! again.

use serde_json::Value;

use super::store::{Group, Pattern, Store};

/// The key in a group's metadata that names the cluster to join.
pub const CLUSTER: &str = "cluster";
/// The key for node names by MAC address, which replace the default names of group and address.
pub const NAMES: &str = "names";

/// Returns the node name of the machine with this MAC address; `None` if the group joins no cluster.
pub fn node_name(group: &Group, mac: &str) -> Option<String> {
    let metadata = group.metadata.as_ref()?;
    metadata.get(CLUSTER).filter(|cluster| cluster.is_object())?;
    let name = metadata.get(NAMES).and_then(|names| names.get(mac)).and_then(Value::as_str);
    Some(match name {
        Some(name) => name.to_owned(),
        None => format!("{}-{}", group.id, mac.replace(':', "")),
    })
}

/// Returns `true` if a `mac` selector of the group matches this address. A group without selectors names no machine.
fn selects_mac(group: &Group, mac: &str) -> bool {
    let mut of_mac = group.selector.iter().filter(|(key, _)| key.eq_ignore_ascii_case("mac"));
    of_mac.any(|(_, pattern)| pattern.matches(mac))
}

impl Store {
    /// Returns the MAC address of the machine with this node name.
    pub fn machine_of(&self, node: &str) -> Option<String> {
        let (groups, _) = self.groups();
        groups.iter().find_map(|group| machine_in(group, node))
    }
}

fn machine_in(group: &Group, node: &str) -> Option<String> {
    let is_node =
        |mac: &String| selects_mac(group, mac) && node_name(group, mac).as_deref() == Some(node);
    let names = group.metadata.as_ref()?.get(NAMES).and_then(Value::as_object);
    let named = names.and_then(|names| names.keys().find(|mac| is_node(mac)).cloned());
    named.or_else(|| {
        let hex = node.strip_prefix(&group.id)?.strip_prefix('-')?;
        if hex.len() != 12 || !hex.bytes().all(|byte| b"0123456789abcdef".contains(&byte)) {
            return None;
        }
        let bytes: Vec<&str> = (0..12).step_by(2).map(|i| &hex[i..i + 2]).collect();
        Some(bytes.join(":")).filter(is_node)
    })
}

impl Group {
    /// Adds a machine to the MAC addresses that the group selects.
    pub fn add_mac(&mut self, mac: &str) {
        let old = self.selector.remove("mac");
        let pattern = match old {
            None => Pattern::Any(vec![mac.to_owned()]),
            Some(old) if old.matches(mac) => old,
            Some(Pattern::Exact(first)) => Pattern::Any(vec![first, mac.to_owned()]),
            Some(Pattern::Any(mut all)) => {
                all.push(mac.to_owned());
                Pattern::Any(all)
            }
            Some(prefix @ Pattern::Prefix { .. }) => prefix,
        };
        self.selector.insert("mac".to_owned(), pattern);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(text: &str) -> Group {
        Group::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn maps_node_names_to_machines_and_back() {
        let rack = group(
            r#"{"id":"rack1","profile":"p","selector":{"mac":["52:54:00:00:00:0a","52:54:00:00:00:0b"]},
            "metadata":{"cluster":{},"names":{"52:54:00:00:00:0b":"big","52:54:00:00:00:0c":"other"}}}"#,
        );
        for (mac, node) in
            [("52:54:00:00:00:0a", "rack1-52540000000a"), ("52:54:00:00:00:0b", "big")]
        {
            assert_eq!(node_name(&rack, mac).as_deref(), Some(node));
            assert_eq!(machine_in(&rack, node).as_deref(), Some(mac));
        }
        // Names of another machine, of one with a name of its own, and of no machine.
        for node in
            ["rack1-52540000000d", "other", "rack1-52540000000b", "rack1-x", "rack1-ééé000000", ""]
        {
            assert_eq!(machine_in(&rack, node), None, "{node}");
        }
        let prefix = group(
            r#"{"id":"r","profile":"p","selector":{"mac":{"prefix":"52-54-00"}},"metadata":{"cluster":{}}}"#,
        );
        assert!(machine_in(&prefix, "r-52540000000d").is_some());
        for open in [
            r#"{"id":"r","profile":"p","metadata":{"cluster":{}}}"#,
            r#"{"id":"r","profile":"p","selector":{"mac":"52:54:00:00:00:0d"}}"#,
        ] {
            assert_eq!(machine_in(&group(open), "r-52540000000d"), None);
        }
    }

    #[test]
    fn adds_mac_once() {
        let mut rack = group(r#"{"id":"r","profile":"p","selector":{"mac":"52:54:00:00:00:01"}}"#);
        for mac in ["52:54:00:00:00:02", "52:54:00:00:00:01", "52:54:00:00:00:02"] {
            rack.add_mac(mac);
        }
        let want = ["52:54:00:00:00:01", "52:54:00:00:00:02"].map(str::to_owned).to_vec();
        assert_eq!(rack.selector["mac"], Pattern::Any(want));
    }
}

//! What components leave in the kernel when they end, for `reset` to take away.

use bootstrap::host::Host;
use netlink::{Kernel, Net};
use serde_json::Value;

/// Removes the service proxy's rules, and the bridge, rules and configuration of our Pod network. Another network's
/// are left to it. Returns what could not be removed.
pub(crate) fn remove(host: &Host) -> Vec<String> {
    // A root that is not the machine's has no kernel.
    if *host != Host::default() {
        return Vec::new();
    }
    let net = match Kernel::open() {
        Ok(net) => net,
        Err(error) => return vec![error.to_string()],
    };
    let mut left: Vec<String> =
        proxy::clean_up(&net).err().map(|e| e.to_string()).into_iter().collect();
    let mut bridges = Vec::new();
    let entries = std::fs::read_dir(host.path(CNI_CONFIGURATION)).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let ours = bridges_in(&serde_json::from_str(&text).unwrap_or_default());
        if !ours.is_empty()
            && let Err(error) = std::fs::remove_file(&path)
        {
            left.push(format!("cannot remove {}: {error}", path.display()));
        }
        bridges.extend(ours);
    }
    for bridge in bridges {
        cni::disallow_forwarding(&bridge);
        left.extend(remove_bridge(&net, &bridge).err().map(|e| e.to_string()));
    }
    left
}

const CNI_CONFIGURATION: &str = "/etc/cni/net.d";

/// The bridges that a network's configuration has our plugin make.
fn bridges_in(configuration: &Value) -> Vec<String> {
    let plugins = configuration["plugins"].as_array().into_iter().flatten();
    let ours = plugins.filter(|plugin| plugin["type"] == cni::PLUGIN);
    ours.filter_map(|plugin| plugin["bridge"].as_str()).map(str::to_owned).collect()
}

fn remove_bridge(net: &dyn Net, bridge: &str) -> Result<(), netlink::Error> {
    let table = format!("windlass-cni-{bridge}");
    for family in net_core::Family::ALL {
        if net.has_table(family, &table)? {
            net.nft(&format!("delete table {} {table}\n", family.nft()))?;
        }
    }
    match net.link(bridge)? {
        Some(link) => net.delete_link(link.index),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_our_networks_bridges_go() {
        let ours = json!({"name": "windlass", "plugins": [{"type": cni::PLUGIN, "bridge": "wl0"}, {"type": "portmap"}]});
        assert_eq!(bridges_in(&ours), ["wl0"]);
        assert!(
            bridges_in(&json!({"plugins": [{"type": "flannel", "bridge": "cni0"}]})).is_empty()
        );
        assert!(bridges_in(&json!({"type": "bridge"})).is_empty());
    }
}

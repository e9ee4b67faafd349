//! Removes what components leave in the kernel, for `reset`.

use std::path::PathBuf;

use api_meta::Tree as _;
use bootstrap::host::Host;
use netlink::{Kernel, Net};
use serde_json::Value;

/// Removes the service proxy's rules, the bridge, tunnel, routes, rules and configuration of Windlass's Pod network,
/// and announced addresses. Other networks are not touched. Returns the errors.
pub(crate) fn remove(host: &Host) -> Vec<String> {
    // Another root than `/` has no kernel state.
    if *host != Host::default() {
        return Vec::new();
    }
    let net = match Kernel::open() {
        Ok(net) => net,
        Err(error) => return vec![error.to_string()],
    };
    // Excludes the tables of a cluster of `up`, which name their owner, and those of other proxies, which have none.
    let is_ours = |table: &net_core::nft::InstalledTable| table.owner() == Some("");
    if proxy::guards_loopback(&net, is_ours).is_ok_and(|guards| guards) {
        proxy::unroute_localhost();
    }
    let rules = proxy::remove_tables(&net, is_ours).and_then(|()| proxy::remove_chains(&net));
    let mut left: Vec<String> = rules.err().map(|e| e.to_string()).into_iter().collect();
    left.extend(podnet::remove(&net, podnet::ADDON_DEVICE).err().map(|e| e.to_string()));
    left.extend(remove_plugin(host));
    left.extend(local::remove_load_balancer().err().map(|e| e.to_string()));
    left.extend(crate::address::release(host).map(|e| e.to_string()));
    let mut networks = Vec::new();
    let entries = std::fs::read_dir(host.path(CNI_CONFIGURATION)).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let ours = networks_in(&serde_json::from_str(&text).unwrap_or_default());
        if !ours.is_empty()
            && let Err(error) = std::fs::remove_file(&path)
        {
            left.push(format!("cannot remove {}: {error}", path.display()));
        }
        networks.extend(ours);
    }
    for (bridge, leases) in networks {
        cni::disallow_forwarding(&bridge);
        left.extend(remove_bridge(&net, &bridge).err().map(|e| e.to_string()));
        match std::fs::remove_dir_all(&leases) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                left.push(format!("cannot remove {}: {error}", leases.display()));
            }
            _ => drop(leases.parent().map(std::fs::remove_dir)),
        }
    }
    left
}

const CNI_CONFIGURATION: &str = "/etc/cni/net.d";
/// The directories in which container runtimes look for CNI plugins.
const CNI_PLUGINS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

/// Removes the links through which container runtimes call this binary as a plugin.
fn remove_plugin(host: &Host) -> Vec<String> {
    let Ok(binary) = std::env::current_exe() else { return Vec::new() };
    let remove = |directory: &str| {
        let removed = cni::uninstall(&host.path(CNI_CONFIGURATION), &host.path(directory), &binary);
        removed.err().map(|e| e.to_string())
    };
    CNI_PLUGINS.into_iter().filter_map(remove).collect()
}

/// Returns the bridges of a network configuration's own plugins, and the directory of each bridge's address leases.
fn networks_in(configuration: &Value) -> Vec<(String, PathBuf)> {
    configuration
        .items("plugins")
        .iter()
        .filter(|plugin| plugin["type"] == cni::PLUGIN)
        .filter_map(|plugin| {
            let leases =
                PathBuf::from(plugin["dataDir"].as_str()?).join(configuration["name"].as_str()?);
            Some((plugin["bridge"].as_str()?.to_owned(), leases))
        })
        .collect()
}

fn remove_bridge(net: &dyn Net, bridge: &str) -> Result<(), netlink::Error> {
    let table = cni::table_name(bridge);
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
    fn finds_bridges_of_own_networks_only() {
        let ours = json!({"name": "pods", "plugins": [
            {"type": cni::PLUGIN, "bridge": "wl0", "dataDir": "/var/lib/windlass/cni"},
            {"type": "portmap"},
        ]});
        assert_eq!(
            networks_in(&ours),
            [("wl0".to_owned(), PathBuf::from("/var/lib/windlass/cni/pods"))]
        );
        assert!(
            networks_in(&json!({"plugins": [{"type": "flannel", "bridge": "cni0"}]})).is_empty()
        );
        assert!(networks_in(&json!({"type": "bridge"})).is_empty());
    }
}

//! The boot configuration of a machine: the server of its node configuration, and that configuration's hash.

use std::net::IpAddr;

use api_meta::{Cidr, Tree as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kops_api::{Object, yaml};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::{
    cluster::{CloudName, Cluster, Dns},
    node_inputs::NodeInputs,
};

/// The port of kops-controller.
const PORT: u16 = 3988;

/// Returns the SHA-256 sum, in base64, by which a configuration names a node configuration or a secret.
pub fn content_hash(content: &[u8]) -> String {
    STANDARD.encode(Sha256::digest(content))
}

/// Returns the document `kube_env.yaml` of a machine's user data. `config` is the group's node configuration. A machine
/// that receives another configuration does not start, because the hash differs.
pub fn boot_config(cluster: &Object, group: &Object, inputs: &NodeInputs, config: &str) -> String {
    let role = group.spec.text("role");
    let mut boot = json!({
        "CloudProvider": cluster.cloud().word(),
        "ClusterName": cluster.name(),
        "InstanceGroupName": group.name(),
        "InstanceGroupRole": role,
        "NodeupConfigHash": content_hash(config.as_bytes()),
    });
    let addresses = addresses(cluster, group, inputs);
    if serves(group) || !asks_kops_controller(cluster) {
        boot.put("ConfigBase", cluster.spec.text("configStore.base"));
    } else {
        let name = format!("kops-controller.internal.{}", cluster.name());
        let authority = inputs.keysets.get("kubernetes-ca").filter(|_| role != "Bastion");
        boot.put(
            "ConfigServer.CACertificates",
            authority.map_or("", |keyset| &keyset.certificates),
        );
        let hosts = if addresses.is_empty() {
            vec![name]
        } else {
            boot.put("ConfigServer.tlsServerName", name);
            addresses.clone()
        };
        let servers = hosts.iter().map(|host| {
            if host.contains(':') {
                format!("https://[{host}]:{PORT}/")
            } else {
                format!("https://{host}:{PORT}/")
            }
        });
        boot.put("ConfigServer.servers", servers.collect::<Vec<_>>());
    }
    if !addresses.is_empty() {
        boot.put("APIServerIPs", addresses);
    }
    yaml::to_string(&boot)
}

fn serves(group: &Object) -> bool {
    ["ControlPlane", "APIServer"].contains(&group.spec.text("role"))
}

/// Reports whether workers can find kops-controller: by DNS, by the hosts file or, with gossip, by a load balancer that
/// forwards to it.
pub(crate) fn asks_kops_controller(cluster: &Object) -> bool {
    cluster.dns() != Dns::Gossip || is_balanced(cluster)
}

/// Reports whether the API's load balancer forwards to kops-controller.
pub(crate) fn is_balanced(cluster: &Object) -> bool {
    let balancer = cluster.spec.opt_at("api.loadBalancer");
    let aws = cluster.cloud() == CloudName::Aws;
    match cluster.dns() {
        Dns::None => true,
        Dns::Gossip => balancer.is_some_and(|balancer| !aws || balancer.text("class") == "Network"),
        Dns::Public | Dns::Private => false,
    }
}

/// Returns the API addresses for a machine's hosts file: only those that it can reach from inside.
pub(crate) fn addresses(cluster: &Object, group: &Object, inputs: &NodeInputs) -> Vec<String> {
    let cloud = cluster.cloud();
    if !(is_balanced(cluster) && !serves(group) || cloud.is_bare()) {
        return Vec::new();
    }
    let spec = &cluster.spec;
    let inside: Vec<&str> = match cloud {
        CloudName::Gce => {
            spec.items("networking.subnets").iter().map(|subnet| subnet.text("cidr")).collect()
        }
        _ => {
            let additional = spec.texts("networking.additionalNetworkCIDRs");
            additional.chain([spec.text("networking.networkCIDR")]).collect()
        }
    };
    let ranges: Vec<Cidr> = inside.into_iter().filter_map(|range| range.parse().ok()).collect();
    let reached = |text: &&String| match text.parse::<IpAddr>() {
        _ if cloud.is_bare() => true,
        Ok(ip) => {
            ranges.iter().any(|range| range.contains(ip))
                || (cloud == CloudName::Aws && ip.is_ipv6())
        }
        Err(_) => false,
    };
    inputs.api_addresses.iter().filter(reached).cloned().collect()
}

#[cfg(test)]
mod tests {
    use kops_api::Kind;

    use super::*;

    #[test]
    fn lists_only_reachable_api_addresses() {
        let mut cluster = Object::new(Kind::Cluster, "a.example.com");
        cluster.spec = json!({
            "cloudProvider": {"aws": {}}, "networking": {"networkCIDR": "10.0.0.0/8", "topology": {"dns": "None"}},
        });
        let mut group = Object::new(Kind::InstanceGroup, "nodes");
        group.spec = json!({"role": "Node"});
        let inputs = NodeInputs {
            api_addresses: ["10.1.2.3", "203.0.113.9", "lb.example.com", "fd00::1"]
                .map(str::to_owned)
                .into(),
            ..NodeInputs::default()
        };
        assert_eq!(addresses(&cluster, &group, &inputs), ["10.1.2.3", "fd00::1"]);
        let boot = boot_config(&cluster, &group, &inputs, "");
        for part in [
            "- https://10.1.2.3:3988/",
            "- https://[fd00::1]:3988/",
            "tlsServerName: kops-controller.internal.a.example.com",
        ] {
            assert!(boot.contains(part), "{boot}");
        }
        // The hash of the empty string.
        assert!(
            boot.contains("NodeupConfigHash: 47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="),
            "{boot}"
        );
        group.spec = json!({"role": "ControlPlane"});
        assert!(addresses(&cluster, &group, &inputs).is_empty());
        cluster.spec.put("networking.topology.dns", "Public");
        group.spec = json!({"role": "Node"});
        assert!(addresses(&cluster, &group, &inputs).is_empty());
    }
}

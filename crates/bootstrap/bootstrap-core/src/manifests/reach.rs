//! The static Pods for access to the API: the node's load balancer, and the holder of the virtual IP address.

use std::path::Path;

use api_config::kubeadm::{ApiEndpoint, ClusterConfiguration, NodeBalancer, VirtualAddress};
use serde_json::{Value, json};

use crate::{Layout, endpoint, images};

const BINARY: &str = "/usr/local/bin/windlass";
/// The name of the load balancer's Pod and file.
pub const BALANCER: &str = "windlass-balancer";
/// The file with the API servers that a node knows.
pub const BALANCER_SERVERS: &str = "/var/lib/windlass/balancer/servers";

/// Returns the static Pod of a node's load balancer. It uses the kubelet's credentials, which are created later, so the
/// directories of the files are mounted and not the files.
pub fn balancer(cluster: &ClusterConfiguration, of: &NodeBalancer, layout: &Layout) -> Value {
    let servers = Path::new(BALANCER_SERVERS);
    let kubelet_pki = layout.kubelet.join("pki");
    let mut places = vec![
        Mount::new("kubernetes", &layout.kubernetes),
        Mount::new("kubelet-pki", &kubelet_pki),
        Mount { read_only: false, ..Mount::new("servers", servers.parent().unwrap_or(servers)) },
    ];
    if !layout.certificates.starts_with(&layout.kubernetes) {
        places.push(Mount::new("certificates", &layout.certificates));
    }
    let command = vec![
        BINARY.to_owned(),
        "balancer".to_owned(),
        format!("--certificate-authority={}/ca.crt", layout.certificates.display()),
        format!("--kubeconfig={}/kubelet.conf", layout.kubernetes.display()),
        format!("--listen=127.0.0.1:{}", of.port),
        format!("--servers={BALANCER_SERVERS}"),
    ];
    pod(cluster, &Program { name: BALANCER, tier: "node", command, capabilities: &[], places })
}

/// The name of the Pod that holds the cluster's virtual IP address, and of its file.
pub const VIRTUAL_ADDRESS: &str = "windlass-virtual-address";

/// Returns the static Pod with which a control plane contends for the virtual IP address.
pub fn virtual_address(
    cluster: &ClusterConfiguration,
    of: &VirtualAddress,
    local: &ApiEndpoint,
    node_name: &str,
    layout: &Layout,
) -> Value {
    let admin = layout.kubeconfig("admin.conf").to_string_lossy().into_owned();
    let mut command = vec![
        BINARY.to_owned(),
        "virtual-address".to_owned(),
        format!("--address={}", of.address),
        format!("--identity={node_name}"),
        format!("--kubeconfig={admin}"),
        format!("--server={}", endpoint::local_url(local)),
    ];
    if !of.interface.is_empty() {
        command.push(format!("--interface={}", of.interface));
    }
    // A renewal replaces the file, which a mount of the file itself would not follow.
    let places = vec![Mount::new("kubernetes", &layout.kubernetes)];
    let capabilities = &["NET_ADMIN", "NET_RAW"];
    let tier = "control-plane";
    pod(cluster, &Program { name: VIRTUAL_ADDRESS, tier, command, capabilities, places })
}

/// A command of this binary that a static Pod runs.
struct Program<'a> {
    name: &'a str,
    tier: &'a str,
    command: Vec<String>,
    capabilities: &'a [&'a str],
    places: Vec<Mount<'a>>,
}

/// A directory of the host, mounted at its own path.
struct Mount<'a> {
    name: &'a str,
    path: &'a Path,
    read_only: bool,
}

impl<'a> Mount<'a> {
    fn new(name: &'a str, path: &'a Path) -> Self {
        Self { name, path, read_only: true }
    }
}

/// Returns a Pod that runs this binary in the host network.
fn pod(cluster: &ClusterConfiguration, program: &Program<'_>) -> Value {
    let Program { name, tier, command, capabilities, places } = program;
    let volume = |place: &Mount<'_>| json!({"name": place.name, "hostPath": {"path": place.path, "type": "DirectoryOrCreate"}});
    let mount = |place: &Mount<'_>| json!({"name": place.name, "mountPath": place.path, "readOnly": place.read_only});
    let mut container = json!({
        "name": name,
        "image": images::windlass(cluster),
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "resources": {"requests": {"cpu": "10m"}},
        "volumeMounts": places.iter().map(mount).collect::<Vec<_>>(),
    });
    if !capabilities.is_empty() {
        container["securityContext"] = json!({"capabilities": {"add": capabilities}});
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "kube-system",
            "labels": {"component": name, "tier": tier},
        },
        "spec": {
            "containers": [container],
            "hostNetwork": true,
            "priority": 2_000_001_000,
            "priorityClassName": "system-node-critical",
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": places.iter().map(volume).collect::<Vec<_>>(),
        },
        "status": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mount_has_a_volume() {
        let of = NodeBalancer { port: 7445 };
        let mut layout = Layout::under(Path::new("/"));
        layout.certificates = "/srv/pki".into();
        let pod = balancer(&ClusterConfiguration::default(), &of, &layout);
        let names = |value: &Value| {
            let all = value.as_array().unwrap();
            all.iter().map(|v| v["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let volumes = names(&pod["spec"]["volumes"]);
        assert_eq!(volumes, names(&pod["spec"]["containers"][0]["volumeMounts"]));
        assert_eq!(volumes, ["kubernetes", "kubelet-pki", "servers", "certificates"]);
        let command = pod["spec"]["containers"][0]["command"].to_string();
        assert!(command.contains("--certificate-authority=/srv/pki/ca.crt"), "{command}");
    }
}

//! kube-proxy: a static Pod of every machine, as on the machines of upstream's kOps.

use std::path::Path;

use api_config::Kubeconfig;
use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    context::NodeContext,
    manifest::{make_parent, write_pod},
};
use crate::error::Error;

/// The label of Nodes whose machines run kube-proxy as a static Pod. The DaemonSet of earlier versions excludes them.
pub const PROXY_LABEL: &str = "kops.windlass.local/kube-proxy";
/// The value of [`PROXY_LABEL`].
pub(super) const STATIC: &str = "static";
/// The file of the static Pod on a machine.
pub const PROXY_MANIFEST: &str = "/etc/kubernetes/manifests/kube-proxy.manifest";
/// The directory is on the machine's own disk.
const KUBECONFIG: &str = "/var/lib/kube-proxy/kubeconfig";

/// Writes kube-proxy's credentials.
pub(super) fn write_kubeconfig(kubeconfig: &Kubeconfig) -> Result<(), Error> {
    let path = Path::new(KUBECONFIG);
    make_parent(path)?;
    Ok(kubeconfig.write(path)?)
}

/// Reports whether this machine has credentials for kube-proxy. A worker receives none from control planes of earlier
/// versions, and runs the Pod of their DaemonSet.
pub(super) fn has_credentials() -> bool {
    Path::new(KUBECONFIG).exists()
}

/// Writes the static Pod.
pub(super) fn write_proxy_pod(context: &NodeContext, image: &str) -> Result<(), Error> {
    write_pod("kube-proxy", &proxy_pod(&context.config, &context.machine.name, image))
}

/// Returns the static Pod from the `KubeProxy` of a node configuration.
fn proxy_pod(config: &Value, node_name: &str, image: &str) -> Value {
    let proxy = config.at("KubeProxy").clone();
    let mut command = vec![
        "/usr/local/bin/kube-proxy".to_owned(),
        format!("--kubeconfig={KUBECONFIG}"),
        format!("--hostname-override={node_name}"),
    ];
    for (flag, field) in [("cluster-cidr", "clusterCIDR"), ("proxy-mode", "proxyMode")] {
        match proxy.text(field) {
            "" => {}
            value => command.push(format!("--{flag}={value}")),
        }
    }
    let mut resources = json!({});
    for (place, field) in [
        ("requests.cpu", "cpuRequest"),
        ("requests.memory", "memoryRequest"),
        ("limits.cpu", "cpuLimit"),
        ("limits.memory", "memoryLimit"),
    ] {
        resources.put_some(place, proxy.opt_at(field));
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "kube-proxy", "namespace": "kube-system",
            "labels": {"k8s-app": "kube-proxy", "tier": "node"},
        },
        "spec": {
            "containers": [{
                "name": "kube-proxy", "image": image, "imagePullPolicy": "IfNotPresent", "command": command,
                "resources": resources, "securityContext": {"privileged": true},
                "volumeMounts": [
                    {"mountPath": KUBECONFIG, "name": "kubeconfig", "readOnly": true},
                    {"mountPath": "/run/xtables.lock", "name": "xtables-lock", "readOnly": false},
                    {"mountPath": "/lib/modules", "name": "lib-modules", "readOnly": true},
                ],
            }],
            "hostNetwork": true, "priorityClassName": "system-node-critical",
            "tolerations": [{"operator": "Exists"}],
            "volumes": [
                {"name": "kubeconfig", "hostPath": {"path": KUBECONFIG, "type": "File"}},
                {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
                {"name": "lib-modules", "hostPath": {"path": "/lib/modules"}},
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_has_the_settings_of_the_spec() {
        let proxy = json!({
            "clusterCIDR": "100.96.0.0/11", "cpuRequest": "50m", "memoryLimit": "200Mi", "memoryRequest": null,
            "proxyMode": "nftables",
        });
        let pod = proxy_pod(&json!({"KubeProxy": proxy}), "nodes-1", "i");
        let container = &pod["spec"]["containers"][0];
        let resources = json!({"requests": {"cpu": "50m"}, "limits": {"memory": "200Mi"}});
        assert_eq!(container["resources"], resources);
        let command = container["command"].to_string();
        for flag in ["--cluster-cidr=100.96.0.0/11\"", "--proxy-mode=nftables", "=nodes-1"] {
            assert!(command.contains(flag), "{command}");
        }
        let empty = proxy_pod(&json!({}), "nodes-1", "i").to_string();
        assert!(!empty.contains("--cluster-cidr") && !empty.contains("--proxy-mode"), "{empty}");
    }
}

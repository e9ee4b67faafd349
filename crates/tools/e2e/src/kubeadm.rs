//! Helpers that create clusters with kubeadm's commands.

use std::fs;

use crate::{machines::Host, process::until};

/// Returns a kubeadm configuration. `more` is added to the ClusterConfiguration.
pub fn configuration(more: &str) -> String {
    format!(
        "
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: 192.0.2.1}}
nodeRegistration: {{ignorePreflightErrors: [SystemVerification]}}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
{more}
encryptionAlgorithm: ECDSA-P256
networking: {{podSubnet: 10.244.0.0/16}}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
# The machine may be nearly full, which is not what is tested.
evictionHard: {{nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%, imagefs.inodesFree: 0%}}
# Images that no registry has would not come back.
imageGCHighThresholdPercent: 100
"
    )
}

/// The command lines with which other machines join the cluster.
pub struct Join {
    /// The arguments of `windlass` on a worker.
    pub worker: String,
    /// The arguments of `windlass` on another control plane.
    pub control_plane: String,
}

/// Runs `init` on the first machine of a cluster.
#[track_caller]
pub fn init(first: &Host<'_>, more: &str) -> Join {
    let file = first.write("kubeadm.yaml", &configuration(more));
    let output = first.windlass(&format!("init --config {file} --upload-certs")).ok();
    join_commands(first, &output)
}

/// Creates a token on a control plane and returns the join commands. `init_output` contains the certificate key.
#[track_caller]
pub fn join_commands(host: &Host<'_>, init_output: &str) -> Join {
    let line = host.windlass("token create --print-join-command").ok();
    let line = line.trim().strip_prefix("windlass ").expect("a windlass command");
    let worker = format!("{line} --ignore-preflight-errors=SystemVerification");
    let key =
        init_output.lines().find(|l| l.len() == 64 && l.bytes().all(|b| b.is_ascii_hexdigit()));
    let key = key.expect("a certificate key");
    Join { control_plane: format!("{worker} --control-plane --certificate-key {key}"), worker }
}

/// Reports whether etcd is installed, and prints a message if not.
pub fn is_etcd_installed() -> bool {
    let installed = ["/usr/local/bin/etcd", "/usr/bin/etcd"]
        .iter()
        .any(|path| fs::exists(path).unwrap_or(false));
    if !installed {
        eprintln!("skipped: no etcd is installed (Debian: apt-get install etcd-server)");
    }
    installed
}

/// Configures the Pod network as an administrator would: our CNI plugin with the node's range, and a route to the Pod
/// range of every other host.
#[track_caller]
pub fn connect(admin: &Host<'_>, hosts: &[&Host<'_>]) {
    let range = |host: &Host<'_>| {
        until("the node's Pod range", || {
            let ran =
                admin.kubectl(&format!("get node {} -o jsonpath={{.spec.podCIDR}}", host.name));
            ran.ok_if(|range| !range.is_empty())
        })
    };
    for host in hosts {
        let configuration = format!(
            r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[{{"type":"windlass-cni","bridge":"wl0","mtu":0,"subnets":["{}"],"clusterCIDRs":["10.244.0.0/16"],"dataDir":"/var/lib/windlass/cni","capabilities":{{"portMappings":true,"bandwidth":true}}}}]}}"#,
            range(host)
        );
        install_network(host, &configuration);
        for other in hosts.iter().filter(|other| other.name != host.name) {
            host.run("ip", &["route", "replace", &range(other), "via", &other.address]).ok();
        }
    }
}

/// Installs the CNI plugin with a configuration on a host.
pub fn install_network(host: &Host<'_>, configuration: &str) {
    let file = host.write(&format!("{}.conflist", host.name), configuration);
    let script = "mkdir -p /opt/cni/bin /etc/cni/net.d && ln -sf \"$0\" /opt/cni/bin/windlass-cni && \
                  ln -sf \"$0\" /opt/cni/bin/loopback && cp \"$1\" /etc/cni/net.d/10-pods.conflist";
    host.run("sh", &["-c", script, &host.binary(), &file]).ok();
}

/// Waits until these nodes are Ready.
#[track_caller]
pub fn ready(admin: &Host<'_>, hosts: &[&Host<'_>]) {
    for host in hosts {
        admin.kubectl(&format!("wait node/{} --for=condition=Ready --timeout=60s", host.name)).ok();
    }
}

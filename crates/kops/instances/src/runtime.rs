//! The configuration of a machine's container runtime, containerd.

use std::{collections::BTreeMap, path::Path};

/// The paths of a container runtime, and its sandbox image.
#[derive(Clone, Copy, Debug)]
pub struct Paths<'a> {
    /// The persistent data.
    pub root: &'a Path,
    /// The state that is lost at a reboot.
    pub state: &'a Path,
    /// The CRI socket.
    pub socket: &'a Path,
    /// The state of runc. It differs for each cluster on a host, so that leftover containers can be told apart.
    pub runc: &'a Path,
    /// The directory of CNI plugins.
    pub plugins: &'a Path,
    /// The directory of CNI configurations.
    pub networks: &'a Path,
    /// The sandbox (pause) image.
    pub sandbox: &'a str,
    /// The credentials of registries, base64 of `user:password`, by host.
    pub credentials: &'a BTreeMap<String, String>,
    /// The directory of `hosts.toml` files, which name the mirrors of registries.
    pub registry_hosts: Option<&'a Path>,
}

/// Returns the configuration file.
pub fn config(paths: &Paths<'_>) -> String {
    let text = |path: &Path| path.display().to_string();
    // Hosts and base64 contain no character that TOML would have to escape.
    let auth = |(host, auth): (&String, &String)| {
        format!(
            "\n[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"{host}\".auth]\n  auth = \"{auth}\"\n"
        )
    };
    let credentials: String = paths.credentials.iter().map(auth).collect();
    let hosts = paths.registry_hosts.map(|directory| {
        let directory = text(directory);
        format!(
            "\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"{directory}\"\n"
        )
    });
    let hosts = hosts.unwrap_or_default();
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
  address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox}"
  restrict_oom_score_adj = {restrict}
  netns_mounts_under_state_dir = true
  disable_hugetlb_controller = false
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{bin}"
    conf_dir = "{conf}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{runc}"
{hosts}{credentials}"#,
        root = text(paths.root),
        state = text(paths.state),
        socket = text(paths.socket),
        runc = text(paths.runc),
        sandbox = paths.sandbox,
        restrict = !may_lower_oom_score(),
        bin = text(paths.plugins),
        conf = text(paths.networks),
    )
}

/// Returns `true` if this process may set a negative oom_score_adj, as runc does for system Pods. In containers and
/// some virtual machines CAP_SYS_RESOURCE is missing, and runc then fails without a message.
fn may_lower_oom_score() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|capabilities| capabilities & CAP_SYS_RESOURCE != 0)
}

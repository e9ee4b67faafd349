//! The settings of a machine's container runtime, containerd.

use std::path::Path;

/// Where a runtime has what.
#[derive(Clone, Copy, Debug)]
pub struct Paths<'a> {
    /// What it keeps from one start to the next.
    pub root: &'a Path,
    pub state: &'a Path,
    pub socket: &'a Path,
    /// What runc knows of containers: where several clusters share a machine, what each left must be known as its own.
    pub runc: &'a Path,
    /// The network plugins.
    pub plugins: &'a Path,
    /// Their settings.
    pub networks: &'a Path,
    /// The image that holds a Pod together.
    pub sandbox: &'a str,
}

/// The settings as a file.
pub fn config(paths: &Paths<'_>) -> String {
    let shown = |path: &Path| path.display().to_string();
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
"#,
        root = shown(paths.root),
        state = shown(paths.state),
        socket = shown(paths.socket),
        runc = shown(paths.runc),
        sandbox = paths.sandbox,
        restrict = !may_lower_oom_score(),
        bin = shown(paths.plugins),
        conf = shown(paths.networks),
    )
}

/// Whether this process may give others a negative oom_score_adj, which runc does for system Pods. In
/// containers and some virtual machines CAP_SYS_RESOURCE is missing, and runc dies without saying so.
fn may_lower_oom_score() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|capabilities| capabilities & CAP_SYS_RESOURCE != 0)
}

//! The cluster's own containerd.

use std::path::Path;

use crate::{Cluster, Error};

/// The sandbox image: our own binary, which waits as PID 1 of every Pod.
pub(crate) const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10.2";
/// Cluster DNS runs from our own image under upstream's name.
pub(crate) const WINDLASS_IMAGE: &str = "docker.io/library/windlass:latest";

/// Writes containerd's configuration; returns its path.
pub(crate) fn configure(cluster: &Cluster) -> Result<std::path::PathBuf, Error> {
    let directory = cluster.root.join("etc/containerd");
    std::fs::create_dir_all(&directory).map_err(Error::file("creating", &directory))?;
    let path = directory.join("config.toml");
    pki::write_file(&path, text(cluster).as_bytes(), 0o644)?;
    Ok(path)
}

fn text(cluster: &Cluster) -> String {
    let shown = |path: &Path| path.display().to_string();
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
  address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = {restrict}
  netns_mounts_under_state_dir = true
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
        root = shown(&cluster.root.join("var/lib/containerd")),
        state = shown(&cluster.run().join("containerd")),
        socket = shown(&cluster.containerd_socket()),
        // Where several clusters share a machine, what each left must be known as its own.
        runc = shown(&cluster.run().join("runc")),
        restrict = !may_lower_oom_score(),
        bin = shown(&cluster.cni_bin()),
        conf = shown(&cluster.cni_conf()),
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

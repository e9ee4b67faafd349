//! The names of a Pod's files and directories on the node. They are those of upstream's kubelet, so that each kubelet
//! can take over the other's Pods.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

/// The mode of the kubelet's own directories, as upstream. Other users of the machine must not read volumes.
pub const DIRECTORY_MODE: u32 = 0o750;

/// Returns the directory of a Pod's files below the kubelet's directory `root`.
pub fn pod_dir(root: &Path, uid: &str) -> PathBuf {
    root.join("pods").join(uid)
}

/// Returns the path of the record of a Pod's user and group IDs.
pub fn user_namespace_file(pod_dir: &Path) -> PathBuf {
    pod_dir.join("userns")
}

/// Returns the directory of a Pod's logs below the directory `logs`.
pub fn log_dir(logs: &Path, pod: &Pod) -> PathBuf {
    let meta = &pod.metadata;
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    logs.join(format!("{}_{}_{}", part(&meta.namespace), part(&meta.name), part(&meta.uid)))
}

/// Returns the path of the file that a Pod's containers see as `/etc/hosts`.
pub fn hosts_file(pod_dir: &Path) -> PathBuf {
    pod_dir.join("etc-hosts")
}

/// Returns the directory of a container's termination logs.
pub fn termination_log_dir(pod_dir: &Path, container: &str) -> PathBuf {
    pod_dir.join("containers").join(container)
}

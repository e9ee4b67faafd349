//! The directories of a node that Pods mount by their usual paths: those of the kubelet, the logs, the runtime and CNI.
//!
//! Several nodes share this host, and the host may have a kubelet of its own. So the processes of each node run in a
//! mount namespace in which the node's own directories are mounted at these paths. The holder of a further node makes
//! it ([`crate::nodes::space`]). The first node has no holder: its supervisor makes the namespace, and its other
//! processes inherit it. Containers keep the namespace while no other process runs.

use std::{
    fs, io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use sys::mount::{HostMounts, Mounts as _, namespace};

use crate::{cluster::Cluster, error::Error};

/// The kubelet's directory on every node, as its drivers and plugins see it.
pub(crate) const KUBELET: &str = "/var/lib/kubelet";
const RUNTIME: &str = "/run/containerd";
/// containerd's directory of the shims' sockets. It has the same path for every containerd of a host.
const SHIMS: &str = "/run/containerd/s";
/// The paths at which a node's own directories are mounted. A node keeps them at the same paths below its root.
const PATHS: [&str; 6] =
    [KUBELET, "/var/log/pods", "/var/log/containers", RUNTIME, "/etc/cni/net.d", "/opt/cni/bin"];
/// The file below `run` with the directories of the host that were created as mount points.
const CREATED: &str = "mount-points";

/// Returns the mounts of a node, as sources and targets, and creates the sources.
pub(crate) fn mounts(node: &Cluster) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
    let mounts = PATHS.map(|path| (own(node, path), PathBuf::from(path)));
    for (source, _) in &mounts {
        fs::create_dir_all(source).map_err(Error::file("creating", source))?;
    }
    Ok(mounts.into())
}

fn own(node: &Cluster, path: &str) -> PathBuf {
    node.root.join(path.trim_start_matches('/'))
}

/// Returns `true` if this process is in the node's mount namespace.
pub(crate) fn are_mounted(node: &Cluster) -> bool {
    is_inside(node, Path::new("/"))
}

/// Returns `true` if the directory at the kubelet's usual path below `root` is the node's.
fn is_inside(node: &Cluster, root: &Path) -> bool {
    sys::is_same_file(&root.join(KUBELET.trim_start_matches('/')), &own(node, KUBELET))
}

/// Enters the mount namespace of the first node, which has the processes and containers of the cluster. Creates it if
/// there are none. The calling process must have one thread.
pub fn enter(cluster: &Cluster) -> Result<(), Error> {
    if cluster.is_member() || are_mounted(cluster) {
        return Ok(());
    }
    let running = cluster.roles().iter().filter_map(|role| role.running(cluster));
    let mut known = running.chain(shims(cluster));
    match known.find(|pid| is_inside(cluster, Path::new(&format!("/proc/{pid}/root")))) {
        Some(pid) => Ok(namespace::enter(pid)?),
        None => make(cluster),
    }
}

fn make(cluster: &Cluster) -> Result<(), Error> {
    let mounts = mounts(cluster)?;
    create_mount_points(cluster)?;
    let inside = own(cluster, SHIMS);
    fs::create_dir_all(&inside).map_err(Error::file("creating", &inside))?;
    // `down`, and a kubelet of upstream that takes over, see the volumes of Pods.
    namespace::make_common(&own(cluster, KUBELET))?;
    namespace::leave_host(&PATHS.map(Path::new))?;
    // Shims that already run have their sockets in the host's directory.
    let shims = fs::File::open(SHIMS).map_err(Error::file("opening", SHIMS))?;
    for (source, target) in &mounts {
        HostMounts.bind(source, target)?;
    }
    let source = PathBuf::from(format!("/proc/self/fd/{}", shims.as_raw_fd()));
    Ok(HostMounts.bind(&source, Path::new(SHIMS))?)
}

/// Creates missing mount points, and records them for [`remove_mount_points`].
fn create_mount_points(cluster: &Cluster) -> Result<(), Error> {
    let mut created = recorded(cluster);
    for path in PATHS.into_iter().chain([SHIMS]) {
        let missing = Path::new(path).ancestors().take_while(|at| !at.exists());
        let mut missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
        missing.retain(|at| !created.contains(at));
        created.extend(missing.into_iter().rev());
    }
    let text: String = created.iter().map(|path| format!("{}\n", path.display())).collect();
    let record = cluster.run().join(CREATED);
    pki::write_file(&record, text.as_bytes(), 0o644)?;
    for path in PATHS.into_iter().chain([SHIMS]) {
        fs::create_dir_all(path).map_err(Error::file("creating", path))?;
    }
    Ok(())
}

fn recorded(cluster: &Cluster) -> Vec<PathBuf> {
    let text = fs::read_to_string(cluster.run().join(CREATED)).unwrap_or_default();
    text.lines().map(PathBuf::from).collect()
}

/// Removes the mount points that the cluster created, if they are empty and no other cluster uses them.
pub(crate) fn remove_mount_points(cluster: &Cluster) {
    for path in recorded(cluster).iter().rev() {
        if !namespace::is_mount_point_of_any_process(path) {
            match fs::remove_dir(path) {
                Err(error)
                    if ![io::ErrorKind::NotFound, io::ErrorKind::DirectoryNotEmpty]
                        .contains(&error.kind()) =>
                {
                    tracing::warn!(path = %path.display(), %error, "cannot remove a directory");
                }
                _ => {}
            }
        }
    }
}

/// Returns the shims of the first node, which outlive their containerd.
pub(crate) fn shims(cluster: &Cluster) -> Vec<i32> {
    let own = std::process::id().cast_signed();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            is_shim_under(&cluster.root, &String::from_utf8_lossy(&line))
        })
        .collect()
}

/// Returns `true` for the command line of a shim with a path under `root`. Compares path components, because another
/// root may start with the same letters.
fn is_shim_under(root: &Path, line: &str) -> bool {
    let mut words = line.split('\0');
    let program = words.next().unwrap_or_default();
    program.ends_with("containerd-shim-runc-v2")
        && words.any(|word| Path::new(word).starts_with(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_only_shims_of_the_cluster() {
        let shim = |root: &str| {
            let address = format!("{root}/run/containerd.sock");
            format!("/usr/bin/containerd-shim-runc-v2\0-namespace\0k8s.io\0-address\0{address}\0")
        };
        let root = Path::new("/var/lib/windlass/dev");
        for (line, ours) in [
            (shim("/var/lib/windlass/dev"), true),
            (shim("/var/lib/windlass/dev2"), false),
            (shim("/run/containerd"), false),
            ("vi\0/var/lib/windlass/dev/cluster.json".to_owned(), false),
        ] {
            assert_eq!(is_shim_under(root, &line), ours, "{line:?}");
        }
    }
}

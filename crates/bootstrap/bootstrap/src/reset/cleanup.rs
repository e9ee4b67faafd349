//! The phase `cleanup-node` of `reset`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use api_meta::Tree as _;
use bootstrap_core::manifests::BALANCER_SERVERS;
use nix::mount::{MntFlags, umount2};
use sys::mount::{HostMounts, Mounts};

use super::context::Ctx;
use crate::{
    host::{Host, TIMELINE_ROOT},
    phase::{Outcome, Phase},
};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "cleanup-node",
    about: "Stop the kubelet, remove its containers, mounts and files",
    run: |ctx| {
        Box::pin(async {
            if ctx.node.dry_run {
                print_dry_run(ctx);
                return Ok(Outcome::skipped("dry run"));
            }
            ctx.snapshots = data_directory(
                &ctx.node.layout.manifests().join("kube-apiserver.yaml"),
                "snapshots",
            );
            let mut left = stop(ctx).await;
            left.extend((ctx.clean_up)(&ctx.node.host));
            left.extend(remove_cgroups(ctx));
            left.extend(remove_files(ctx));
            left.extend(unshare(&ctx.node.host, &kubelet_root(ctx)));
            ctx.snapshots = ctx.snapshots.take().filter(|directory| {
                let directory = ctx.node.host.path(directory);
                directory.exists() && fs::remove_dir(directory).is_err()
            });
            for problem in &left {
                tracing::warn!("{problem}");
            }
            Ok(Outcome::done())
        })
    },
};

fn kubelet_root(ctx: &Ctx) -> PathBuf {
    let root = &ctx.node.layout.kubelet;
    fs::canonicalize(root).unwrap_or_else(|_| root.clone())
}

/// Stops the kubelet first, because it would restart the rest, and then the containers.
async fn stop(ctx: &Ctx) -> Vec<String> {
    let node = &ctx.node;
    let mut left: Vec<String> =
        node.service.stop().await.err().map(|e| e.to_string()).into_iter().collect();
    left.extend(node.service.uninstall().await);
    left.extend(unmount_below(&node.host, &kubelet_root(ctx), flags(&ctx.reset.unmount_flags)));
    match node.containers.remove_pods().await {
        Ok(_) => {}
        Err(e) => left.push(format!("containers may still run: {e}")),
    }
    let devices = kubelet_volumes::detach_block_volumes(&kubelet_root(ctx)).await;
    left.extend(devices.iter().map(|e| format!("cannot detach a block volume: {e}")));
    left
}

/// Removes the cgroups of the kubelet's Pods, which are empty now. A cgroup with processes stays. systemd removes its
/// own.
fn remove_cgroups(ctx: &Ctx) -> Option<String> {
    let config = fs::read_to_string(ctx.node.layout.kubelet_config()).unwrap_or_default();
    let config = api_config::yaml::parse(&config).unwrap_or_default();
    // Without a configuration, our kubelet has not run here.
    if !config.is_object()
        || config["cgroupDriver"] == "systemd"
        || ctx.node.host != Host::default()
    {
        return None;
    }
    let root = config.text("cgroupRoot").trim_end_matches('/');
    sys::cgroup::detect().remove(&format!("{root}/kubepods")).err().map(|e| e.to_string())
}

/// Prints the changes of a dry run.
fn print_dry_run(ctx: &Ctx) {
    let existing = |paths: Vec<PathBuf>| {
        let there = paths.into_iter().filter(|path| path.exists());
        there.map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
    };
    println!("[dryrun] Would stop the kubelet");
    println!("[dryrun] Would unmount what is mounted below {}", kubelet_root(ctx).display());
    println!("[dryrun] Would remove Kubernetes-managed containers");
    let named = configured_directories(ctx).into_iter().map(|(directory, _)| directory);
    let emptied = directories(ctx).into_iter().chain(named).collect();
    println!("[dryrun] Would delete contents of directories: [{}]", existing(emptied));
    println!("[dryrun] Would delete files: [{}]", existing(files(ctx)));
}

/// Returns `true` for a directory entry that belongs to a cluster.
type EntryFilter = fn(&str) -> bool;

/// Returns the directories that are only emptied of a cluster's own entries, because flags or manifests can name any
/// directory.
fn configured_directories(ctx: &Ctx) -> Vec<(PathBuf, EntryFilter)> {
    let node = &ctx.node;
    let is_key: EntryFilter = |name| {
        name == "etcd" || [".crt", ".key", ".pub", ".csr"].iter().any(|end| name.ends_with(end))
    };
    let is_etcds: EntryFilter = |name| name == "member";
    let is_stores: EntryFilter =
        |name| name == "LOCK" || ["log-", "snapshot-"].iter().any(|start| name.starts_with(start));
    // Static Pods name the data directory: etcd's, or the API server's own store.
    let data = |file: &str, volume, is_own| {
        let directory = data_directory(&node.layout.manifests().join(file), volume)?;
        Some((node.host.path(&directory), is_own))
    };
    let data =
        [data("etcd.yaml", "etcd-data", is_etcds), data("kube-apiserver.yaml", "store", is_stores)];
    let keys = &node.layout.certificates;
    let keys = (*keys != kubeadms_certificates(ctx)).then(|| (keys.clone(), is_key));
    data.into_iter().flatten().chain(keys).collect()
}

fn kubeadms_certificates(ctx: &Ctx) -> PathBuf {
    ctx.node.layout.kubernetes.join("pki")
}

/// Returns the directories that kubeadm empties completely.
fn directories(ctx: &Ctx) -> Vec<PathBuf> {
    let node = &ctx.node;
    let mut directories = vec![node.layout.manifests(), kubelet_root(ctx)];
    if node.layout.certificates == kubeadms_certificates(ctx) {
        directories.push(node.layout.certificates.clone());
    }
    if ctx.reset.cleanup_tmp_dir {
        directories.push(node.layout.kubernetes.join("tmp"));
    }
    // Logs of removed Pods, the links to them, and the timeline.
    directories.extend(["/var/log/pods", "/var/log/containers"].map(|d| node.host.path(d)));
    directories.extend([timeline(&node.host), balancer(&node.host)]);
    directories
}

fn timeline(host: &Host) -> PathBuf {
    host.path(TIMELINE_ROOT).join("timeline")
}

fn balancer(host: &Host) -> PathBuf {
    let servers = host.path(BALANCER_SERVERS);
    servers.parent().unwrap_or(&servers).to_owned()
}

fn files(ctx: &Ctx) -> Vec<PathBuf> {
    let names = [
        "admin.conf",
        "super-admin.conf",
        "kubelet.conf",
        "bootstrap-kubelet.conf",
        "controller-manager.conf",
        "scheduler.conf",
    ];
    // The requests are from `certs generate-csr`, which would refuse to run again beside them.
    let both = |name: &&str| [(*name).to_owned(), format!("{name}.csr")];
    names.iter().flat_map(both).map(|name| ctx.node.layout.kubeconfig(&name)).collect()
}

fn remove_files(ctx: &Ctx) -> Vec<String> {
    let node = &ctx.node;
    // Read the manifests, which name directories, before they are removed.
    let mut left: Vec<String> = configured_directories(ctx)
        .iter()
        .flat_map(|(directory, is_own)| empty(directory, *is_own))
        .collect();
    left.extend(directories(ctx).iter().flat_map(|d| empty(d, |_| true)));
    let timeline = timeline(&node.host);
    let own_directories =
        [&node.layout.manifests(), &node.layout.certificates, &balancer(&node.host), &timeline];
    for own in own_directories.into_iter().map(PathBuf::as_path).chain(timeline.parent()) {
        // Directories with other entries stay.
        let _ = fs::remove_dir(own);
    }
    for path in files(ctx) {
        left.extend(tolerate(&path, fs::remove_file(&path)));
    }
    left
}

fn data_directory(manifest: &Path, volume: &str) -> Option<String> {
    let pod = api_config::yaml::parse(&fs::read_to_string(manifest).ok()?).ok()?;
    let data = pod["spec"]["volumes"].as_array()?.iter().find(|v| v["name"] == volume)?;
    data["hostPath"]["path"].as_str().map(str::to_owned)
}

fn flags(names: &[String]) -> MntFlags {
    names.iter().fold(MntFlags::empty(), |flags, name| {
        flags
            | match name.as_str() {
                "MNT_FORCE" => MntFlags::MNT_FORCE,
                "MNT_DETACH" => MntFlags::MNT_DETACH,
                "MNT_EXPIRE" => MntFlags::MNT_EXPIRE,
                "UMOUNT_NOFOLLOW" => MntFlags::UMOUNT_NOFOLLOW,
                _ => MntFlags::empty(),
            }
    })
}

/// Unmounts everything below `dir`, the deepest mounts first. Returns the errors.
fn unmount_below(host: &Host, dir: &Path, flags: MntFlags) -> Vec<String> {
    let mounts = host.read("/proc/mounts").unwrap_or_default();
    let mut below = mounts_below(&mounts, dir);
    below.sort_by_key(|path| std::cmp::Reverse(path.len()));
    below
        .into_iter()
        .filter_map(|path| {
            umount2(path.as_str(), flags)
                .err()
                .map(|e| format!("cannot unmount {path}: {e}; end what uses it (fuser -m {path})"))
        })
        .collect()
}

/// Removes the bind mount with which a kubelet made its directory shared.
fn unshare(host: &Host, dir: &Path) -> Option<String> {
    let mounts = host.read("/proc/self/mountinfo").unwrap_or_default();
    if !sys::mount::is_over_itself(&mounts, dir) {
        return None;
    }
    HostMounts.unmount(dir).err().map(|e| e.to_string())
}

fn mounts_below(mounts: &str, dir: &Path) -> Vec<String> {
    let targets = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    // The kernel escapes special characters in octal.
    let plain =
        |text: &str| text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
    targets
        .map(plain)
        .filter(|path| Path::new(path) != dir && Path::new(path).starts_with(dir))
        .collect()
}

/// Removes a cluster's entries from a directory, not the directory itself, which may be a mount or a link.
fn empty(directory: &Path, is_own: EntryFilter) -> Vec<String> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) => return tolerate(directory, Err(e)),
    };
    entries
        .filter_map(Result::ok)
        .flat_map(|entry| {
            let path = entry.path();
            if !entry.file_name().to_str().is_some_and(is_own) {
                return vec![format!(
                    "{} does not belong to the cluster, and is kept",
                    path.display()
                )];
            }
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            tolerate(&path, if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) })
        })
        .collect()
}

fn tolerate(path: &Path, result: io::Result<()>) -> Vec<String> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            vec![format!("cannot remove {}: {e}", path.display())]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_mounts_below_directory() {
        let mounts = "proc /proc proc rw 0 0\ntmpfs /var/lib/kubelet/pods/a/b\\040c tmpfs rw 0 0\n\
                      x /var/lib/kubelet ext4 rw 0 0\ny /var/lib/kubelet2/z ext4 rw 0 0\n";
        assert_eq!(
            mounts_below(mounts, Path::new("/var/lib/kubelet")),
            ["/var/lib/kubelet/pods/a/b c"]
        );
    }

    #[test]
    fn empties_directories_and_keeps_them() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("c"), "").unwrap();
        let left = empty(dir.path(), |name| name == "a");
        assert_eq!(
            left,
            [format!("{}/c does not belong to the cluster, and is kept", dir.path().display())]
        );
        assert!(!dir.path().join("a").exists());
        assert_eq!(empty(dir.path(), |_| true), Vec::<String>::new());
        assert!(dir.path().exists() && fs::read_dir(dir.path()).unwrap().next().is_none());
        assert_eq!(empty(Path::new("/nonexistent"), |_| true), Vec::<String>::new());
    }
}

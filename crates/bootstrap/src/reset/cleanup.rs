use std::{fs, io, path::Path};

use nix::mount::{MntFlags, umount2};

use super::Ctx;
use crate::{
    host::Host,
    phase::{Outcome, Phase},
};

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "cleanup-node",
    about: "Stop the kubelet, remove its containers, mounts and files",
    run: |ctx| {
        Box::pin(async {
            let (node, mut left) = (&ctx.node, Vec::new());
            if node.dry_run {
                return Ok(Outcome::skipped("dry run"));
            }
            if let Err(e) = node.service.stop().await {
                left.push(e.to_string());
            }
            left.extend(node.service.uninstall().await);
            let kubelet = fs::canonicalize(&node.layout.kubelet)
                .unwrap_or_else(|_| node.layout.kubelet.clone());
            left.extend(unmount_below(&node.host, &kubelet, flags(&ctx.reset.unmount_flags)));
            match node.containers.remove_pods().await {
                Ok(_) => {}
                Err(e) => left.push(format!("containers may still run: {e}")),
            }
            let mut directories =
                vec![node.layout.manifests(), node.layout.certificates.clone(), kubelet];
            if let Some(data) = etcd_data(&ctx.node.layout.manifests().join("etcd.yaml")) {
                directories.push(node.host.path(&data));
            }
            if ctx.reset.cleanup_tmp_dir {
                directories.push(node.layout.kubernetes.join("tmp"));
            }
            for directory in directories {
                left.extend(empty(&directory));
            }
            let files = [
                "admin.conf",
                "super-admin.conf",
                "kubelet.conf",
                "bootstrap-kubelet.conf",
                "controller-manager.conf",
                "scheduler.conf",
            ];
            for path in files.map(|f| node.layout.kubeconfig(f)) {
                left.extend(tolerate(&path, fs::remove_file(&path)));
            }
            for problem in &left {
                tracing::warn!("{problem}");
            }
            Ok(Outcome::done())
        })
    },
};

/// Where the static Pod of etcd keeps its data, read before the Pod's file goes.
fn etcd_data(manifest: &Path) -> Option<String> {
    let pod = api_config::yaml::parse(&fs::read_to_string(manifest).ok()?).ok()?;
    let volumes = pod["spec"]["volumes"].as_array()?;
    let data = volumes.iter().find(|v| v["name"] == "etcd-data")?;
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

/// Unmounts everything below `dir`, the deepest first; what stays is told.
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

fn mounts_below(mounts: &str, dir: &Path) -> Vec<String> {
    let targets = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    // The kernel writes odd characters in octal.
    let plain =
        |text: &str| text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
    targets
        .map(plain)
        .filter(|path| Path::new(path) != dir && Path::new(path).starts_with(dir))
        .collect()
}

/// Removes what is in a directory, not the directory: it may be a mount or a link of the administrator's.
fn empty(directory: &Path) -> Vec<String> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) => return tolerate(directory, Err(e)),
    };
    entries
        .filter_map(Result::ok)
        .flat_map(|entry| {
            let path = entry.path();
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
    fn mounts_are_found_below_and_not_beside() {
        let mounts = "proc /proc proc rw 0 0\ntmpfs /var/lib/kubelet/pods/a/b\\040c tmpfs rw 0 0\n\
                      x /var/lib/kubelet ext4 rw 0 0\ny /var/lib/kubelet2/z ext4 rw 0 0\n";
        assert_eq!(
            mounts_below(mounts, Path::new("/var/lib/kubelet")),
            ["/var/lib/kubelet/pods/a/b c"]
        );
    }

    #[test]
    fn directories_are_emptied_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("c"), "").unwrap();
        assert_eq!(empty(dir.path()), Vec::<String>::new());
        assert!(dir.path().exists() && fs::read_dir(dir.path()).unwrap().next().is_none());
        assert_eq!(empty(Path::new("/nonexistent")), Vec::<String>::new());
    }
}

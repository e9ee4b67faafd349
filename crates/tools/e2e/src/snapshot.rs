//! Finds files, processes and network objects that a cluster leaves behind on the machine.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    cluster::{Cluster, processes},
    process::run,
    procfs,
};

/// The directories in which a cluster could leave files, besides its root.
const PLACES: &[&str] = &[
    "/etc",
    "/var/lib",
    "/var/log",
    "/run",
    "/opt/cni",
    "/usr/local/bin",
    "/usr/libexec/kubernetes",
    "/root/.kube",
];

/// Subtrees that other programs write to all the time.
const OTHERS: &[&str] = &[
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/run/udev",
    "/run/systemd",
    "/run/user",
    "/var/log/journal",
];

/// A snapshot of the machine. Each line names one object: a file, mount, cgroup, process, or network object.
///
/// Several clusters may run on the machine. Objects of the cluster (its network, its processes, and files that contain
/// its name) are always compared. Other objects are compared only if no other cluster runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSnapshot {
    /// The cluster's name, which is part of the names of its objects.
    name: String,
    own: BTreeSet<String>,
    /// Objects that may belong to another cluster.
    unattributed: BTreeSet<String>,
    /// `true` if processes of another cluster run on the machine.
    shared: bool,
}

/// Programs of a cluster, which create and remove files, mounts and cgroups.
const PROGRAMS: [&str; 7] = [
    "windlass",
    "containerd",
    "containerd-shim-runc-v2",
    "runc",
    "kubelet",
    "kube-proxy",
    "kubeadm",
];
/// The prefix of lines that name files.
const FILE: &str = "file ";
/// The size limit of files that are searched for the cluster's name. Records of networks and Pods are smaller.
const MAX_FILE_SIZE: u64 = 64 << 10;

impl MachineSnapshot {
    /// Takes a snapshot. Network objects are those of the cluster's namespace.
    pub fn take(cluster: &Cluster) -> Self {
        let mut machine = Self {
            name: cluster.name.clone(),
            own: network(cluster),
            unattributed: BTreeSet::new(),
            shared: is_machine_shared(cluster),
        };
        let mut add = |line: String| {
            let is_own = line.contains(&machine.name);
            let lines = if is_own { &mut machine.own } else { &mut machine.unattributed };
            lines.insert(line);
        };
        for name in names("/run/netns") {
            add(format!("network namespace {name}"));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for mount in mounts.lines() {
            add(format!("mount {}", mount.split_whitespace().nth(4).unwrap_or_default()));
        }
        walk(Path::new("/sys/fs/cgroup"), &mut |path, is_directory| {
            if is_directory {
                add(format!("cgroup {}", path.display()));
            }
        });
        for place in PLACES {
            walk(Path::new(place), &mut |path, _| add(format!("{FILE}{}", path.display())));
        }
        let running = processes(cluster).into_iter();
        machine.own.extend(running.map(|(pid, line)| format!("process {pid}: {line}")));
        machine
    }

    /// Returns the lines that are new since `before`.
    pub fn since(&self, before: &Self) -> Vec<String> {
        let alone = !self.shared && !before.shared;
        let is_relevant = |line: &&String| {
            let names_cluster = |path: &str| text_of(Path::new(path)).contains(&self.name);
            alone || line.strip_prefix(FILE).is_some_and(names_cluster)
        };
        let unattributed = self.unattributed.difference(&before.unattributed).filter(is_relevant);
        self.own.difference(&before.own).chain(unattributed).cloned().collect()
    }
}

/// Lists links, addresses, routes and rules of the cluster's network namespace.
fn network(cluster: &Cluster) -> BTreeSet<String> {
    let commands: [(&str, &[&str]); 5] = [
        ("ip", &["-o", "link"]),
        ("ip", &["-o", "address"]),
        ("ip", &["route", "show", "table", "all"]),
        ("nft", &["list", "ruleset"]),
        ("ip", &["rule"]),
    ];
    let mut lines = BTreeSet::new();
    for (program, args) in commands {
        let output = run(cluster.namespace.command(program, args), b"").ok();
        let arguments = args.join(" ");
        lines.extend(output.lines().map(|line| format!("{program} {arguments}: {}", line.trim())));
    }
    lines
}

/// Reports whether a program of [`PROGRAMS`] runs that does not belong to this cluster.
fn is_machine_shared(cluster: &Cluster) -> bool {
    let own: BTreeSet<u32> = processes(cluster).into_iter().map(|(pid, _)| pid).collect();
    procfs::pids().filter(|pid| !own.contains(pid)).any(|pid| {
        let line = procfs::read(pid, "cmdline");
        let program = Path::new(line.split('\0').next().unwrap_or_default());
        program
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| PROGRAMS.contains(&name))
    })
}

/// Returns the text of a small file, the target of a link, or an empty string for other types of files.
fn text_of(path: &Path) -> String {
    let Ok(meta) = fs::symlink_metadata(path) else { return String::new() };
    if meta.is_symlink() {
        return fs::read_link(path).map(|to| to.display().to_string()).unwrap_or_default();
    }
    if !meta.is_file() || meta.len() > MAX_FILE_SIZE {
        return String::new();
    }
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn names(directory: &str) -> impl Iterator<Item = String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
}

/// Calls `each` with every entry below a directory. Entries that vanish during the walk are skipped.
fn walk(directory: &Path, each: &mut dyn FnMut(&Path, bool)) {
    if OTHERS.iter().any(|other| directory == Path::new(other)) {
        return;
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path: PathBuf = entry.path();
        let is_directory = entry.file_type().is_ok_and(|t| t.is_dir());
        each(&path, is_directory);
        if is_directory {
            walk(&path, each);
        }
    }
}

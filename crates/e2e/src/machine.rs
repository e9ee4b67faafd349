//! What a cluster could leave behind on a machine.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{Cluster, process::run};

/// Where a cluster's files could be, besides its root.
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

/// Subtrees that others write to all the time.
const OTHERS: &[&str] = &[
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/run/udev",
    "/run/systemd",
    "/run/user",
    "/var/log/journal",
];

/// A picture of the machine, as lines, each naming one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    seen: BTreeSet<String>,
    /// Containers of other clusters on this machine, and the directories that hold them.
    foreign: BTreeSet<String>,
}

impl Machine {
    /// The machine as a cluster sees it: its network is the namespace's.
    pub fn look(cluster: &Cluster) -> Self {
        let mut seen = BTreeSet::new();
        let commands: [(&str, &[&str]); 5] = [
            ("ip", &["-o", "link"]),
            ("ip", &["-o", "address"]),
            ("ip", &["route", "show", "table", "all"]),
            ("nft", &["list", "ruleset"]),
            ("ip", &["rule"]),
        ];
        for (program, args) in commands {
            let output = run(cluster.namespace.command(program, args), b"").ok();
            // The lifetime of an address counts down.
            seen.extend(
                output.lines().map(|line| format!("{program} {}: {}", args.join(" "), line.trim())),
            );
        }
        seen.extend(names("/run/netns").map(|name| format!("network namespace {name}")));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points: Vec<&str> =
            mounts.lines().filter_map(|line| line.split_whitespace().nth(4)).collect();
        seen.extend(points.iter().map(|point| format!("mount {point}")));
        let ours = cluster.directory.display().to_string();
        let others = points.iter().filter(|point| !point.starts_with(&ours));
        let others = others.filter_map(|point| {
            let (place, containers) =
                point.split_once("/sandboxes/").or(point.split_once("/k8s.io/"))?;
            let container = containers.split('/').next()?;
            Some([container.to_owned(), place.split("/run/").next()?.to_owned()])
        });
        let mut foreign: BTreeSet<String> =
            others.flatten().filter(|word| word.len() > 4).collect();
        let ours = format!("windlass-{}", cluster.name);
        walk(Path::new("/sys/fs/cgroup"), &mut |path, is_directory| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if is_directory && name.starts_with("windlass-") && *name != *ours {
                foreign.insert(format!("/{name}"));
            }
            if is_directory {
                seen.insert(format!("cgroup {}", path.display()));
            }
        });
        for place in PLACES {
            walk(Path::new(place), &mut |path, _| {
                seen.insert(format!("file {}", path.display()));
            });
        }
        seen.extend(
            processes(cluster).into_iter().map(|(pid, line)| format!("process {pid}: {line}")),
        );
        Self { seen, foreign }
    }

    /// What is here and was not there before, but for what is plainly another cluster's.
    pub fn since(&self, before: &Self) -> Vec<String> {
        let others = |line: &&String| !self.foreign.iter().any(|id| line.contains(id));
        self.seen.difference(&before.seen).filter(others).cloned().collect()
    }
}

fn names(directory: &str) -> impl Iterator<Item = String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
}

/// Calls `each` with everything below a directory. What vanishes meanwhile is not there.
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

/// The cluster's processes, and what each was started with: by its directory in their command line, its namespace, or
/// its control group.
pub(crate) fn processes(cluster: &Cluster) -> Vec<(u32, String)> {
    let directory = cluster.directory.display().to_string();
    let namespace = fs::metadata(cluster.namespace.path()).map(|m| m.ino()).ok();
    let pids = names("/proc").filter_map(|name| name.parse::<u32>().ok());
    let own = |pid: u32| {
        let inside = fs::metadata(format!("/proc/{pid}/ns/net")).map(|m| m.ino()).ok();
        let line = about(pid, "cmdline").replace('\0', " ");
        // The process that takes the cluster down at the end is the tests' own.
        let taker = line.starts_with("sh -c") && line.contains("trap '' INT");
        let ours = line.contains(&directory)
            || about(pid, "cgroup").contains(&cluster.name)
            || (namespace.is_some() && inside == namespace);
        (ours && !taker).then_some((pid, line))
    };
    pids.filter_map(own).collect()
}

/// A file of a process; empty for one that is gone.
pub(crate) fn about(pid: u32, file: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

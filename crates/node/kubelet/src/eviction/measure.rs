//! Measures free resources of the node and their usage by Pods.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use cri::labels;
use k8s_openapi::api::core::v1::Pod;
use kubelet_stats::{disk_usage, file_usage};
use pod_core::{
    evict::{ContainerUse, PodUse, Reading, Signal, Storage},
    members, paths,
};

use crate::context::Context;

type Readings = BTreeMap<Signal, Reading>;

pub(super) async fn readings(ctx: &Context) -> Readings {
    let mut readings = Readings::from_iter([(Signal::Memory, memory())]);
    readings.extend(pids().map(|reading| (Signal::Pids, reading)));
    disk(&ctx.settings.root, [Signal::NodeFs, Signal::NodeFsInodes], &mut readings);
    if let Ok(info) = ctx.cri.image_fs_info().await
        && let Some(place) = info.image_filesystems.into_iter().find_map(|fs| fs.fs_id)
    {
        let place = Path::new(&place.mountpoint);
        disk(place, [Signal::ImageFs, Signal::ImageFsInodes], &mut readings);
    }
    readings
}

fn disk(place: &Path, [bytes, inodes]: [Signal; 2], readings: &mut Readings) {
    let Ok(disk) = sys::disk_use(place) else { return };
    let reading = |available, capacity| Reading { available, capacity };
    readings.insert(bytes, reading(disk.available, disk.capacity));
    readings.insert(inodes, reading(disk.inodes_free, disk.inodes));
}

/// Returns the available memory: free memory and the inactive file cache, which the kernel can reclaim.
fn memory() -> Reading {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let amount = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    Reading {
        available: amount("MemFree:") + amount("Inactive(file):"),
        capacity: amount("MemTotal:"),
    }
}

fn pids() -> Option<Reading> {
    let capacity = fs::read_to_string("/proc/sys/kernel/pid_max").ok()?.trim().parse().ok()?;
    // The fourth field of loadavg is running/all.
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let all: u64 = text.split_whitespace().nth(3)?.split('/').nth(1)?.parse().ok()?;
    Some(Reading { available: u64::saturating_sub(capacity, all), capacity })
}

/// Returns each Pod's usage of the resource that is short. For inodes and processes usage is unknown, and Pods are
/// ranked by priority alone.
pub(super) async fn usage<'a>(
    ctx: &Context,
    signal: Signal,
    pods: &'a [Arc<Pod>],
) -> Vec<PodUse<'a>> {
    let by_container: HashMap<(String, String), u64> = match signal {
        Signal::Memory => memory_of_containers(ctx).await,
        Signal::NodeFs | Signal::ImageFs => {
            let storage = storage(ctx, pods).await;
            let uses = storage.into_iter().flat_map(|(uid, storage)| {
                // Shared files count for the Pod and for no container.
                let shared = storage.empty_dirs.values().sum::<u64>() + storage.hosts;
                let own = storage.containers.into_iter().chain([(String::new(), shared)]);
                own.map(move |(name, used)| ((uid.clone(), name), used)).collect::<Vec<_>>()
            });
            uses.collect()
        }
        _ => HashMap::new(),
    };
    let use_of = |pod: &'a Arc<Pod>| {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let used = |name: &str| by_container.get(&(uid.clone(), name.to_owned())).copied();
        let containers: Vec<ContainerUse> = members(pod)
            .iter()
            .filter_map(|m| {
                let name = m.container.name.clone();
                used(&name).map(|used| ContainerUse { name, used })
            })
            .collect();
        let total = containers.iter().map(|c| c.used).sum::<u64>() + used("").unwrap_or(0);
        PodUse { pod: pod.as_ref(), used: total, containers }
    };
    pods.iter().map(use_of).collect()
}

/// A Pod's UID and a container's name.
type Name = (String, String);

fn name(attributes: &cri::v1::ContainerAttributes) -> Name {
    let of = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
    (of(labels::POD_UID), of(labels::CONTAINER))
}

async fn memory_of_containers(ctx: &Context) -> HashMap<Name, u64> {
    let stats = ctx.cri.list_container_stats().await.unwrap_or_default();
    let used = |stats: cri::v1::ContainerStats| {
        let used = stats.memory.and_then(|m| m.working_set_bytes).map_or(0, |bytes| bytes.value);
        Some((name(&stats.attributes?), used))
    };
    stats.into_iter().filter_map(used).collect()
}

/// Returns the bytes that Pods have written to the node's disk, by Pod UID.
pub(super) async fn storage(ctx: &Context, pods: &[Arc<Pod>]) -> BTreeMap<String, Storage> {
    let stats = ctx.cri.list_container_stats().await.unwrap_or_default();
    let layer = |stats: cri::v1::ContainerStats| {
        let used = stats.writable_layer.and_then(|l| l.used_bytes).map_or(0, |bytes| bytes.value);
        Some((name(&stats.attributes?), used))
    };
    let layers: HashMap<Name, u64> = stats.into_iter().filter_map(layer).collect();
    let mut places = Vec::new();
    for pod in pods {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let pod_dir = ctx.settings.pod_dir(&uid);
        let empty_dirs = pod_dir.join("volumes/kubernetes.io~empty-dir");
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let on_disk = volumes.filter(|v| {
            // Volumes in memory are limited by their file system.
            v.empty_dir.as_ref().is_some_and(|e| e.medium.as_deref() != Some("Memory"))
        });
        let volumes = on_disk.map(|v| (v.name.clone(), empty_dirs.join(&v.name))).collect();
        let logs = paths::log_dir(&ctx.settings.logs, pod);
        let containers = members(pod)
            .into_iter()
            .map(|m| {
                let name = m.container.name.clone();
                let layer = layers.get(&(uid.clone(), name.clone())).copied().unwrap_or(0);
                let messages = paths::termination_log_dir(&pod_dir, &name);
                (name.clone(), layer, [logs.join(name), messages])
            })
            .collect();
        let hosts = paths::hosts_file(&pod_dir);
        places.push(PodPaths { uid, volumes, containers, hosts });
    }
    tokio::task::spawn_blocking(move || places.into_iter().map(PodPaths::measure).collect())
        .await
        .unwrap_or_default()
}

/// The paths that a Pod writes to.
struct PodPaths {
    uid: String,
    volumes: Vec<(String, PathBuf)>,
    /// Containers: name, size of the writable layer, and the directories of logs and of termination logs.
    containers: Vec<(String, u64, [PathBuf; 2])>,
    hosts: PathBuf,
}

impl PodPaths {
    fn measure(self) -> (String, Storage) {
        let volumes = self.volumes.into_iter().map(|(name, path)| (name, disk_usage(&path).bytes));
        let containers = self.containers.into_iter().map(|(name, layer, directories)| {
            (name, layer + directories.iter().map(|path| disk_usage(path).bytes).sum::<u64>())
        });
        let storage = Storage {
            empty_dirs: volumes.collect(),
            containers: containers.collect(),
            hosts: file_usage(&self.hosts).bytes,
        };
        (self.uid, storage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2020-8557: a container filled the disk through its `/etc/hosts`, which did not count as its usage.
    #[test]
    fn counts_hosts_file_and_termination_logs() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = paths::hosts_file(dir.path());
        let messages = paths::termination_log_dir(dir.path(), "app");
        fs::create_dir_all(&messages).unwrap();
        fs::write(&hosts, vec![1; 100_000]).unwrap();
        fs::write(messages.join("0"), vec![1; 200_000]).unwrap();
        let places = PodPaths {
            uid: "u".to_owned(),
            volumes: Vec::new(),
            containers: vec![("app".to_owned(), 10, [dir.path().join("no-logs"), messages])],
            hosts,
        };
        let (_, storage) = places.measure();
        assert!((100_000..150_000).contains(&storage.hosts), "{storage:?}");
        assert!((200_000..250_000).contains(&storage.containers["app"]), "{storage:?}");
        assert_eq!(storage.total(), storage.hosts + storage.containers["app"]);
    }
}

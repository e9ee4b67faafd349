//! Measures the disk usage of volumes and logs. That visits every file, so it is done at most once a minute, as
//! upstream. The work runs among the operations on volumes; if a volume's server hangs, its last values are reported.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api_meta::Tree as _;
use client::Resource;
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Volume};
use kubelet_volumes::{
    Drivers, EarlierResult, NFS_IN_POD, Operations, PublishedVolume, StatsResponse, VOLUMES_IN_POD,
    published_volumes, query_usage,
};
use pod_core::{PodRegistry, Timestamp, members, paths};
use telemetry::exposition::{Exposition, Labels, gauge};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    disk::{FileUsage, disk_usage, file_usage},
    servers::query_servers,
    sources::StatsSources,
};

const MAX_AGE: Duration = Duration::from_secs(60);
/// The number of Pods that are measured concurrently.
const CONCURRENCY: usize = 8;
/// The name of the work among the operations on a Pod's volumes. No volume can have this name.
const WORK: &str = "what volumes hold";

/// The disk usage of files and the file system that they are on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) at: Timestamp,
    pub(crate) system: sys::DiskUse,
    pub(crate) used: u64,
    pub(crate) inodes: u64,
}

impl Stored {
    /// Returns the usage of a whole file system.
    fn of_system(system: sys::DiskUse, at: Timestamp) -> Self {
        let used = system.capacity.saturating_sub(system.available);
        Self { at, system, used, inodes: system.inodes.saturating_sub(system.inodes_free) }
    }

    fn of_driver(stats: csi::VolumeStats, at: Timestamp) -> Self {
        let csi::VolumeStats { bytes, inodes } = stats;
        let system = sys::DiskUse {
            capacity: bytes.total,
            available: bytes.available,
            inodes: inodes.total,
            inodes_free: inodes.available,
        };
        Self { at, system, used: bytes.used, inodes: inodes.used }
    }
}

/// The disk usage of one volume of a Pod.
#[derive(Clone, Debug)]
pub(crate) struct StoredVolume {
    pub(crate) info: VolumeInfo,
    pub(crate) stored: Stored,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct StoredPod {
    pub(crate) volumes: Vec<StoredVolume>,
    /// The disk usage of logs by container.
    pub(crate) logs: BTreeMap<String, Stored>,
    /// The files of the kubelet that containers write to: `/etc/hosts` and termination logs.
    pub(crate) files: FileUsage,
    /// The NFS volumes, whose server may not answer.
    of_servers: Vec<(PathBuf, VolumeInfo)>,
    /// The volumes whose usage CSI drivers report.
    of_drivers: Vec<(PublishedVolume, VolumeInfo)>,
}

/// The measured Pods by UID.
pub(crate) type All = BTreeMap<String, StoredPod>;

#[derive(Default)]
struct StorageCache {
    last: Option<(Instant, Arc<All>)>,
    /// The names of claims' volumes by Pod UID and claim name.
    claims: HashMap<(String, String), String>,
}

#[derive(Default)]
pub(crate) struct Storage(Mutex<StorageCache>);

impl Storage {
    /// Measures the disk usage, or returns values that are at most a minute old.
    pub(crate) async fn measure(&self, sources: &StatsSources, pods: &dyn PodRegistry) -> Arc<All> {
        let mut cache = self.0.lock().await;
        let StorageCache { last, claims } = &mut *cache;
        if let Some((at, all)) = &*last
            && at.elapsed() < MAX_AGE
        {
            return all.clone();
        }
        let active = pods.active();
        let uids: Vec<&str> = active.iter().filter_map(|p| p.metadata.uid.as_deref()).collect();
        claims.retain(|(uid, _), _| uids.contains(&uid.as_str()));
        let mut places = Vec::new();
        for pod in &active {
            places.push(PodPaths::of(sources, pod, claims).await);
        }
        let looks = places.into_iter().map(|places| async {
            let (uid, now) = (places.uid.clone(), sources.now());
            let work = move || places.measure(now);
            let operations = &sources.volumes.operations;
            let done = operations.run((&uid, WORK), EarlierResult::Reuse, work).await;
            (uid, done.ok())
        });
        let looked: Vec<_> = stream::iter(looks).buffer_unordered(CONCURRENCY).collect().await;
        let before = last.take().map(|(_, all)| all).unwrap_or_default();
        let all = looked.into_iter().filter_map(|(uid, pod)| {
            let pod = pod.or_else(|| before.get(&uid).cloned())?;
            Some((uid, pod))
        });
        let mut all = all.collect();
        query_drivers(&sources.volumes.drivers, &mut all, &before, || sources.now()).await;
        add_servers(&sources.volumes.operations, &mut all, &before, sources.now()).await;
        let all = Arc::new(all);
        *last = Some((Instant::now(), Arc::clone(&all)));
        all
    }
}

/// Adds the statistics that CSI drivers report of their volumes. Keeps the last values if a driver does not answer.
async fn query_drivers(
    drivers: &Drivers,
    all: &mut All,
    before: &All,
    now: impl Fn() -> Timestamp,
) {
    let queried: Vec<(String, PublishedVolume, VolumeInfo)> = all
        .iter_mut()
        .flat_map(|(uid, pod)| {
            let of_drivers = std::mem::take(&mut pod.of_drivers).into_iter();
            of_drivers.map(move |(volume, named)| (uid.clone(), volume, named))
        })
        .collect();
    let volumes: Vec<&PublishedVolume> = queried.iter().map(|(_, volume, _)| volume).collect();
    let responses = query_usage(drivers, &volumes).await;
    let at = now();
    for ((uid, _, info), response) in queried.into_iter().zip(responses) {
        let Some(pod) = all.get_mut(&uid) else { continue };
        let volume_of =
            |pod: &StoredPod| pod.volumes.iter().find(|v| v.info.name == info.name).cloned();
        let volume = match response {
            StatsResponse::Figures(stats) => {
                Some(StoredVolume { info, stored: Stored::of_driver(stats, at) })
            }
            StatsResponse::Nothing => None,
            // If measuring the Pod failed, its last values include this volume.
            StatsResponse::NotAnswered if volume_of(pod).is_some() => None,
            StatsResponse::NotAnswered => before.get(&uid).and_then(volume_of),
        };
        if let Some(volume) = volume {
            pod.volumes.retain(|other| other.info.name != volume.info.name);
            pod.volumes.push(volume);
        }
    }
}

/// Adds the usage of NFS volumes. Keeps the last values of a volume whose server does not answer.
async fn add_servers(operations: &Operations, all: &mut All, before: &All, at: Timestamp) {
    let queried: Vec<(String, PathBuf, VolumeInfo)> = all
        .iter_mut()
        .flat_map(|(uid, pod)| {
            let of_servers = std::mem::take(&mut pod.of_servers).into_iter();
            of_servers.map(move |(path, info)| (uid.clone(), path, info))
        })
        .collect();
    let paths = queried.iter().map(|(_, path, _)| path.clone()).collect();
    let answers = query_servers(operations, paths).await;
    for ((uid, _, info), system) in queried.into_iter().zip(answers) {
        let last = || {
            let volumes = &before.get(&uid)?.volumes;
            volumes.iter().find(|volume| volume.info.name == info.name).map(|v| v.stored)
        };
        let stored = system.map(|system| Stored::of_system(system, at)).or_else(last);
        if let (Some(stored), Some(pod)) = (stored, all.get_mut(&uid)) {
            // The values of a Pod that could not be measured include this volume.
            pod.volumes.retain(|other| other.info.name != info.name);
            pod.volumes.push(StoredVolume { info, stored });
        }
    }
}

/// A volume in the Pod's spec.
#[derive(Clone, Debug)]
pub(crate) struct VolumeInfo {
    pub(crate) name: String,
    /// The namespace and name of the claim, if the volume has one.
    pub(crate) claim: Option<(String, String)>,
    /// `true` if the volume counts as the Pod's ephemeral storage.
    pub(crate) ephemeral: bool,
}

/// The paths of a Pod's files.
struct PodPaths {
    /// The kubelet's root directory.
    root: PathBuf,
    uid: String,
    directory: PathBuf,
    /// The volumes by the names of their directories.
    volumes: BTreeMap<String, VolumeInfo>,
    logs: Vec<(String, PathBuf)>,
}

impl PodPaths {
    async fn of(
        sources: &StatsSources,
        pod: &Arc<Pod>,
        claims: &mut HashMap<(String, String), String>,
    ) -> Self {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let mut volumes = BTreeMap::new();
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let claim = claim(pod, volume);
            let directory = match &claim {
                None => Some(volume.name.clone()),
                Some(claim) => volume_of(sources, claims, &uid, &namespace, claim).await,
            };
            let claim = claim.map(|claim| (namespace.clone(), claim));
            if let Some(directory) = directory {
                let (name, ephemeral) = (volume.name.clone(), is_ephemeral(volume));
                volumes.insert(directory, VolumeInfo { name, claim, ephemeral });
            }
        }
        let logs = paths::log_dir(&sources.logs, pod);
        let containers = members(pod).into_iter().map(|m| m.container.name.clone());
        let logs = containers.map(|name| (name.clone(), logs.join(name))).collect();
        let directory = paths::pod_dir(&sources.root, &uid);
        Self { root: sources.root.clone(), uid, directory, volumes, logs }
    }

    fn measure(&self, at: Timestamp) -> StoredPod {
        let below = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        let device = self.directory.metadata().map(|meta| meta.dev()).ok();
        let mut pod = StoredPod::default();
        let named = |volume: PublishedVolume| {
            let named = self.volumes.get(&volume.name).cloned();
            Some((volume, named?))
        };
        pod.of_drivers =
            published_volumes(&self.root, &self.uid).into_iter().filter_map(named).collect();
        // Volumes of CSI drivers are not visited, because that may hang. The drivers report their usage instead.
        let own =
            below(&self.directory.join("volumes")).filter(|e| e.file_name() != VOLUMES_IN_POD);
        for entry in own.flat_map(|plugin| below(&plugin.path())) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(info) = self.volumes.get(&name).cloned() else { continue };
            if entry.path().parent().is_some_and(|plugin| plugin.ends_with(NFS_IN_POD)) {
                pod.of_servers.push((entry.path(), info));
                continue;
            }
            let stored = measure_path(&entry.path(), device, at);
            pod.volumes.push(StoredVolume { info, stored });
        }
        let logs =
            self.logs.iter().map(|(name, path)| (name.clone(), measure_path(path, None, at)));
        pod.logs = logs.collect();
        pod.files = file_usage(&paths::hosts_file(&self.directory));
        for (container, _) in &self.logs {
            let messages = disk_usage(&paths::termination_log_dir(&self.directory, container));
            pod.files.bytes += messages.bytes;
            pod.files.inodes += messages.inodes;
        }
        pod
    }
}

/// Returns the usage of a mounted file system from its statistics, and else that of all files below the path.
fn measure_path(path: &Path, device: Option<u64>, at: Timestamp) -> Stored {
    let system = sys::disk_use(path).unwrap_or_default();
    let mounted = device.is_some_and(|device| path.metadata().is_ok_and(|m| m.dev() != device));
    if mounted {
        return Stored::of_system(system, at);
    }
    let FileUsage { bytes, inodes } = disk_usage(path);
    Stored { at, system, used: bytes, inodes }
}

/// Returns the name of a volume's claim.
fn claim(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
    let own = || {
        volume
            .ephemeral
            .as_ref()
            .map(|_| pod.metadata.name.clone().unwrap_or_default() + "-" + &volume.name)
    };
    named.or_else(own)
}

async fn volume_of(
    sources: &StatsSources,
    volume_names: &mut HashMap<(String, String), String>,
    uid: &str,
    namespace: &str,
    claim: &str,
) -> Option<String> {
    let key = (uid.to_owned(), claim.to_owned());
    if let Some(volume) = volume_names.get(&key) {
        return Some(volume.clone());
    }
    let client = sources.volumes.objects.client()?;
    let object: serde_json::Value =
        client.get(&Resource::PERSISTENT_VOLUME_CLAIMS, namespace, claim).await.ok()?;
    let volume = object.text("spec.volumeName").to_owned();
    if volume.is_empty() {
        return None;
    }
    volume_names.insert(key, volume.clone());
    Some(volume)
}

/// Reports whether a volume counts as ephemeral storage, as upstream. Volumes in memory do not.
fn is_ephemeral(volume: &Volume) -> bool {
    let on_disk = |medium: &Option<String>| medium.as_deref().unwrap_or_default().is_empty();
    volume.config_map.is_some() || volume.empty_dir.as_ref().is_some_and(|e| on_disk(&e.medium))
}

type Getter = fn(&Stored) -> u64;

/// The metrics of claims' volumes.
const METRICS: [(&str, &str, Getter); 6] = [
    (
        "kubelet_volume_stats_available_bytes",
        "[ALPHA] Number of available bytes in the volume",
        |s| s.system.available,
    ),
    ("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume", |s| {
        s.system.capacity
    }),
    ("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume", |s| {
        s.system.inodes
    }),
    ("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume", |s| {
        s.system.inodes_free
    }),
    ("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume", |s| {
        s.inodes
    }),
    ("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume", |s| s.used),
];

/// Returns the exposition of claims' volumes. A claim that several Pods use occurs once.
pub(crate) fn text(all: &All) -> String {
    let mut out = Exposition::default();
    let volumes = all.values().flat_map(|pod| &pod.volumes);
    let claims: BTreeMap<_, _> =
        volumes.filter_map(|v| Some((v.info.claim.as_ref()?, &v.stored))).collect();
    for ((namespace, name), stored) in claims {
        let labels = Labels::of(&[("namespace", namespace), ("persistentvolumeclaim", name)]);
        for (metric, help, of) in METRICS {
            out.add(gauge(metric, help), &labels, of(stored) as f64, None);
        }
    }
    out.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str, claim: Option<(String, String)>, ephemeral: bool) -> VolumeInfo {
        VolumeInfo { name: name.to_owned(), claim, ephemeral }
    }

    #[test]
    fn reports_volumes_by_their_names_in_the_pod() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = dir.path().join("volumes");
        for (place, bytes) in [
            ("kubernetes.io~empty-dir/scratch", 100_000),
            ("kubernetes.io~local-volume/pv-1", 5),
            ("kubernetes.io~secret/not-the-pods", 5),
        ] {
            fs::create_dir_all(volumes.join(place)).unwrap();
            fs::write(volumes.join(place).join("file"), vec![1; bytes]).unwrap();
        }
        let claim = ("default".to_owned(), "data".to_owned());
        let places = PodPaths {
            root: dir.path().to_owned(),
            uid: "u".to_owned(),
            directory: dir.path().to_owned(),
            volumes: BTreeMap::from([
                ("scratch".to_owned(), volume("scratch", None, true)),
                ("pv-1".to_owned(), volume("store", Some(claim.clone()), false)),
            ]),
            logs: vec![("app".to_owned(), dir.path().join("no-logs"))],
        };
        let mut pod = places.measure(Timestamp::UNIX_EPOCH);
        pod.volumes.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        let [scratch, store] = &pod.volumes[..] else { panic!("{:?}", pod.volumes) };
        assert!(scratch.stored.used >= 100_000 && scratch.stored.inodes == 1, "{scratch:?}");
        assert!(scratch.info.ephemeral && scratch.stored.system.capacity > 0);
        assert_eq!((store.info.name.as_str(), &store.info.claim), ("store", &Some(claim)));
        assert_eq!(pod.logs["app"].used, 0);
        let text = text(&All::from([("u".to_owned(), pod)]));
        let line = "kubelet_volume_stats_inodes_used{namespace=\"default\",persistentvolumeclaim=\"data\"} 1";
        assert!(text.lines().any(|l| l == line) && !text.contains("scratch"), "{text}");
    }

    #[tokio::test]
    async fn asks_servers_apart_from_other_volumes_and_keeps_last_values() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = dir.path().join("volumes");
        for place in ["kubernetes.io~nfs/shared", "kubernetes.io~empty-dir/scratch"] {
            fs::create_dir_all(volumes.join(place)).unwrap();
        }
        let info = volume("shared", None, false);
        let places = PodPaths {
            root: dir.path().to_owned(),
            uid: "u".to_owned(),
            directory: dir.path().to_owned(),
            volumes: BTreeMap::from([
                ("shared".to_owned(), info.clone()),
                ("scratch".to_owned(), volume("scratch", None, true)),
            ]),
            logs: Vec::new(),
        };
        let look = || All::from([("u".to_owned(), places.measure(Timestamp::UNIX_EPOCH))]);
        let names = |all: &All| {
            let mut names: Vec<_> = all["u"].volumes.iter().map(|v| v.info.name.clone()).collect();
            names.sort();
            names
        };
        let mut all = look();
        assert_eq!(names(&all), ["scratch"], "measuring does not touch the server's files");
        let operations = Operations::default();
        add_servers(&operations, &mut all, &All::new(), Timestamp::UNIX_EPOCH).await;
        assert_eq!(names(&all), ["scratch", "shared"]);
        // A volume that has gone fails as one whose server does not answer.
        let stored = Stored { used: 60, ..Stored::default() };
        let last =
            StoredPod { volumes: vec![StoredVolume { info, stored }], ..StoredPod::default() };
        let mut all = look();
        fs::remove_dir_all(volumes.join("kubernetes.io~nfs")).unwrap();
        add_servers(
            &operations,
            &mut all,
            &All::from([("u".to_owned(), last)]),
            Timestamp::UNIX_EPOCH,
        )
        .await;
        assert_eq!(all["u"].volumes.iter().filter(|v| v.stored.used == 60).count(), 1);
    }

    #[tokio::test]
    async fn keeps_last_values_while_driver_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let held = root.join("pods/u/volumes").join(VOLUMES_IN_POD).join("pv-1");
        fs::create_dir_all(held.join("mount")).unwrap();
        let record = r#"{"driverName":"disks","volumeHandle":"h","specVolID":"pv-1"}"#;
        fs::write(held.join("vol_data.json"), record).unwrap();
        let claim = Some(("default".to_owned(), "data".to_owned()));
        let info = volume("store", claim, false);
        let places = PodPaths {
            root: root.to_owned(),
            uid: "u".to_owned(),
            directory: root.join("pods/u"),
            volumes: BTreeMap::from([("pv-1".to_owned(), info.clone())]),
            logs: Vec::new(),
        };
        let look = || All::from([("u".to_owned(), places.measure(Timestamp::UNIX_EPOCH))]);
        let stored = Stored { used: 60, ..Stored::default() };
        let before =
            StoredPod { volumes: vec![StoredVolume { info, stored }], ..StoredPod::default() };
        for (before, used) in [(All::new(), vec![]), ([("u".to_owned(), before)].into(), vec![60])]
        {
            let mut all = look();
            assert!(all["u"].volumes.is_empty(), "what is on it is the driver's to tell");
            query_drivers(&Drivers::default(), &mut all, &before, || Timestamp::UNIX_EPOCH).await;
            assert_eq!(all["u"].volumes.iter().map(|v| v.stored.used).collect::<Vec<_>>(), used);
        }
    }
}

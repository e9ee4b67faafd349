//! Samples of what the processes of a cluster and the cluster as a whole hold of the machine.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use e2e::{Cluster, proportional_size};
use parking_lot::Mutex;

use super::ROLES;

/// The interval between samples.
const INTERVAL: Duration = Duration::from_secs(5);
/// The time after a round in which deletions end.
const SETTLING: Duration = Duration::from_secs(3);

/// The kind of a quantity, which decides its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Megabytes of memory.
    Memory,
    Descriptors,
    Threads,
    /// Megabytes on disk.
    Disk,
    Rules,
    Mounts,
    Cgroups,
}

/// A quantity over time.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) points: Vec<Point>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) at: Duration,
    pub(crate) value: f64,
    /// `true` if the objects of the last round were deleted, so that the value can be compared with others.
    pub(crate) settled: bool,
}

/// Takes samples in a thread.
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    cluster: Arc<Cluster>,
    begun: Instant,
    series: Mutex<Vec<Series>>,
    stopped: AtomicBool,
}

impl Sampler {
    pub(crate) fn start(cluster: Arc<Cluster>) -> Self {
        let shared = Arc::new(Shared {
            cluster,
            begun: Instant::now(),
            series: Mutex::default(),
            stopped: AtomicBool::default(),
        });
        let own = shared.clone();
        let thread = std::thread::spawn(move || {
            while !own.stopped.load(Ordering::Relaxed) {
                own.sample(false);
                std::thread::sleep(INTERVAL);
            }
        });
        Self { shared, thread }
    }

    /// Takes a sample between two rounds, when the deleted objects are gone. After a kill the processes have only begun
    /// to fill their caches, so that round is not compared.
    pub(crate) fn end_round(&self, killed: bool) {
        std::thread::sleep(SETTLING);
        self.shared.sample(!killed);
    }

    pub(crate) fn stop(self) -> Vec<Series> {
        self.shared.stopped.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        std::mem::take(&mut self.shared.series.lock())
    }
}

impl Shared {
    fn sample(&self, settled: bool) {
        let at = self.begun.elapsed();
        let mut values: Vec<(String, Kind, Option<f64>)> = Vec::new();
        for role in ROLES {
            let pid = self.cluster.find_pid(role);
            let count =
                |of: &str| pid.and_then(|pid| entries(Path::new(&format!("/proc/{pid}/{of}"))));
            let memory =
                pid.map(|pid| proportional_size(pid) as f64 / 1e6).filter(|size| *size > 0.0);
            values.push((format!("{role}: memory, MB"), Kind::Memory, memory));
            values.push((format!("{role}: descriptors"), Kind::Descriptors, count("fd")));
            values.push((format!("{role}: threads"), Kind::Threads, count("task")));
        }
        let agent = self.cluster.find_pid("agent");
        let mounts = agent.and_then(|pid| lines(&format!("/proc/{pid}/mountinfo")));
        let rules = self.cluster.run("nft", &["list", "ruleset"]);
        let rules = (rules.code == Some(0)).then(|| rules.stdout.lines().count() as f64);
        let disk = size(&self.cluster.root()) as f64 / 1e6;
        let cgroups = cgroups(Path::new("/sys/fs/cgroup"), &self.cluster.name) as f64;
        values.push(("mounts".to_owned(), Kind::Mounts, mounts));
        values.push(("lines of nftables rules".to_owned(), Kind::Rules, rules));
        values.push(("disk, MB".to_owned(), Kind::Disk, Some(disk)));
        values.push(("cgroups".to_owned(), Kind::Cgroups, Some(cgroups)));
        let mut series = self.series.lock();
        for (name, kind, value) in values {
            let point = value.map(|value| Point { at, value, settled });
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.extend(point),
                // A quantity that is never measured also has a verdict.
                None => series.push(Series { name, kind, points: point.into_iter().collect() }),
            }
        }
    }
}

fn entries(directory: &Path) -> Option<f64> {
    Some(fs::read_dir(directory).ok()?.count() as f64)
}

fn lines(file: &str) -> Option<f64> {
    Some(fs::read_to_string(file).ok()?.lines().count() as f64)
}

/// Returns the bytes of the files below a directory, without other mounted file systems' contents counted twice.
fn size(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(own) = fs::metadata(directory).map(|meta| meta.dev()) else { return 0 };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() && meta.dev() == own => size(&entry.path()),
        Ok(meta) if meta.is_file() => meta.blocks() * 512,
        _ => 0,
    };
    entries.map(of).sum()
}

/// Counts the cgroups below a directory whose path contains the cluster's name.
fn cgroups(directory: &Path, name: &str) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories
        .map(|entry| {
            let path = entry.path();
            usize::from(path.to_string_lossy().contains(name)) + cgroups(&path, name)
        })
        .sum()
}

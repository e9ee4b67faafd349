//! Cgroups of version 1 and 2.

mod usage;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;

use crate::{error::Error, huge_pages::huge_page_unit};

pub use usage::{CgroupLimits, Cpu, Disk, Memory, Pressure, Stall, Usage};

/// The version of the mounted cgroup interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The limits of a cgroup, in the units of version 1. Zero removes a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The CPU shares; 1,024 for one CPU.
    pub cpu_shares: i64,
    /// The CPU quota, in microseconds per period.
    pub cpu_quota: i64,
    /// The period of the CPU quota in microseconds; zero for 100 ms.
    pub cpu_period: i64,
    /// The memory in bytes that the kernel never reclaims. Version 2 only.
    pub memory_min: i64,
    /// The memory in bytes that the kernel reclaims last. Version 2 only.
    pub memory_low: i64,
    /// The memory limit, in bytes.
    pub memory: i64,
    /// The maximum number of processes and threads.
    pub pids: i64,
    /// The limits of huge pages in bytes, by page size. Unlisted sizes stay unchanged.
    pub huge_pages: BTreeMap<u64, u64>,
}

/// The machine's cgroups, by paths such as `kubepods/podUID` below the root.
pub trait Cgroups: Send + Sync {
    /// Returns the cgroup version.
    fn version(&self) -> Version;
    /// Creates the cgroup and its parents, and sets its limits.
    fn ensure(&self, group: &str, limits: &Limits) -> Result<(), Error>;
    /// Sets those limits of an existing cgroup that are not zero, and leaves the others.
    fn restrict(&self, group: &str, limits: &Limits) -> Result<(), Error>;
    /// Reports whether the cgroup has a limit of swap.
    fn limits_swap(&self, _group: &str) -> bool {
        false
    }
    /// Kills all processes in the cgroup and below. They leave the cgroup a moment later.
    fn kill(&self, group: &str) -> Result<(), Error>;
    /// Removes the cgroup and those below. They must be empty. A missing cgroup is success.
    fn remove(&self, group: &str) -> Result<(), Error>;
    /// Returns the usage of the cgroup; an error if it does not exist.
    fn usage(&self, group: &str) -> Result<Usage, Error>;
    /// Returns the PIDs of the processes directly in the cgroup; empty if it does not exist.
    fn processes(&self, group: &str) -> Vec<i32>;
    /// Returns the names of the child cgroups.
    fn children(&self, group: &str) -> Result<Vec<String>, Error>;
}

const ROOT: &str = "/sys/fs/cgroup";
const PERIOD: i64 = 100_000;
/// The version 2 controllers that Pods need.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"];

/// Returns the cgroup version that this machine's container runtime uses.
pub fn detect() -> Box<dyn Cgroups> {
    let root = PathBuf::from(ROOT);
    if root.join("cgroup.controllers").exists() {
        Box::new(V2 { root })
    } else {
        Box::new(V1 { root })
    }
}

struct V2 {
    root: PathBuf,
}

struct V1 {
    root: PathBuf,
}

fn write(path: &Path, value: &str) -> Result<(), Error> {
    fs::write(path, value).map_err(Error::at("write", path))
}

fn make(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(Error::at("make control group", path))
}

/// Removes a directory tree of the cgroup file system. Its files cannot be removed and go with their directory.
fn remove_tree(path: &Path) -> Result<(), Error> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::at("read", path)(error)),
        Ok(entries) => {
            for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
                remove_tree(&entry.path())?;
            }
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::at("remove control group", path)(error))
        }
        _ => Ok(()),
    }
}

/// Returns the PIDs of a cgroup. A PID of 0 is a process in another PID namespace; signals to 0 would go to this
/// process's own group.
fn processes(path: &Path) -> Vec<i32> {
    let pids = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    pids.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid > 0).collect()
}

/// Returns an error unless the cgroup's directory exists.
fn find(path: &Path) -> Result<(), Error> {
    path.metadata().map(drop).map_err(Error::at("look at control group", path))
}

/// Kills the processes of a cgroup and those below, one by one.
fn kill_tree(path: &Path) {
    for name in children(path).unwrap_or_default() {
        kill_tree(&path.join(name));
    }
    for pid in processes(path) {
        // A process that has already ended is success.
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
}

fn children(path: &Path) -> Result<Vec<String>, Error> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::at("read", path)(error)),
        Ok(entries) => {
            let dirs = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
            Ok(dirs.map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        }
    }
}

impl V2 {
    fn path(&self, group: &str) -> PathBuf {
        self.root.join(group.trim_matches('/'))
    }
}

impl Cgroups for V2 {
    fn version(&self) -> Version {
        Version::V2
    }

    fn ensure(&self, group: &str, limits: &Limits) -> Result<(), Error> {
        let path = self.path(group);
        make(&path)?;
        // A cgroup can only use the controllers that its parents enable.
        let mut parent = self.root.clone();
        for part in Path::new(group.trim_matches('/')).components() {
            let have = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
            for controller in
                CONTROLLERS.iter().filter(|c| have.split_whitespace().any(|h| h == **c))
            {
                write(&parent.join("cgroup.subtree_control"), &format!("+{controller}"))?;
            }
            parent.push(part);
        }
        set_weight(&path, limits)?;
        let quota =
            if limits.cpu_quota > 0 { limits.cpu_quota.to_string() } else { "max".to_owned() };
        write(&path.join("cpu.max"), &format!("{quota} {}", period(limits)))?;
        let memory = if limits.memory > 0 { limits.memory.to_string() } else { "max".to_owned() };
        write(&path.join("memory.max"), &memory)?;
        for (file, bytes) in [("memory.min", limits.memory_min), ("memory.low", limits.memory_low)]
        {
            // Without a value to write or to remove, old kernels need not have the file.
            let file = path.join(file);
            if bytes > 0 || file.exists() {
                write(&file, &bytes.to_string())?;
            }
        }
        limit_huge_pages(&path, limits, "max")?;
        limit_pids(&path, limits)
    }

    fn restrict(&self, group: &str, limits: &Limits) -> Result<(), Error> {
        let path = self.path(group);
        find(&path)?;
        set_weight(&path, limits)?;
        if limits.memory > 0 {
            write(&path.join("memory.max"), &limits.memory.to_string())?;
        }
        if limits.pids > 0 { limit_pids(&path, limits) } else { Ok(()) }
    }

    fn limits_swap(&self, group: &str) -> bool {
        self.path(group).join("memory.swap.max").exists()
    }

    fn kill(&self, group: &str) -> Result<(), Error> {
        let file = self.path(group).join("cgroup.kill");
        match fs::write(&file, "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                kill_tree(&self.path(group));
                Ok(())
            }
            other => other.map_err(Error::at("write", &file)),
        }
    }

    fn remove(&self, group: &str) -> Result<(), Error> {
        remove_tree(&self.path(group))
    }

    fn usage(&self, group: &str) -> Result<Usage, Error> {
        let path = self.path(group);
        find(&path)?;
        Ok(usage::read_v2(&path, path == self.root))
    }

    fn processes(&self, group: &str) -> Vec<i32> {
        processes(&self.path(group))
    }

    fn children(&self, group: &str) -> Result<Vec<String>, Error> {
        children(&self.path(group))
    }
}

/// Sets the CPU weight for the shares, unless these are zero.
fn set_weight(path: &Path, limits: &Limits) -> Result<(), Error> {
    if limits.cpu_shares <= 0 {
        return Ok(());
    }
    let weight = 1 + (limits.cpu_shares.clamp(2, 262_144) - 2) * 9999 / 262_142;
    write(&path.join("cpu.weight"), &weight.to_string())
}

/// Returns the period of the CPU quota in microseconds.
fn period(limits: &Limits) -> i64 {
    if limits.cpu_period > 0 { limits.cpu_period } else { PERIOD }
}

impl V1 {
    fn path(&self, controller: &str, group: &str) -> PathBuf {
        self.root.join(controller).join(group.trim_matches('/'))
    }

    /// Returns all hierarchies. The container runtime creates its cgroups in each of them.
    fn hierarchies(&self) -> Result<Vec<PathBuf>, Error> {
        let entries = fs::read_dir(&self.root).map_err(Error::at("read", &self.root))?;
        let dirs = entries.flatten().map(|e| e.path()).filter(|p| p.is_dir() && !p.is_symlink());
        Ok(dirs.collect())
    }
}

/// Limits the huge pages in use, and the reserved ones, which older kernels do not count. The kernel has no file for an
/// unsupported page size.
fn limit_huge_pages(path: &Path, limits: &Limits, file: &str) -> Result<(), Error> {
    for (size, bytes) in &limits.huge_pages {
        let unit = huge_page_unit(*size);
        for kind in ["", "rsvd."] {
            let file = path.join(format!("hugetlb.{unit}.{kind}{file}"));
            if file.exists() {
                write(&file, &bytes.to_string())?;
            }
        }
    }
    Ok(())
}

/// Limits the number of processes; both versions use the same file. Without the file there is no limit to remove.
fn limit_pids(path: &Path, limits: &Limits) -> Result<(), Error> {
    let file = path.join("pids.max");
    match limits.pids {
        1.. => write(&file, &limits.pids.to_string()),
        _ if file.exists() => write(&file, "max"),
        _ => Ok(()),
    }
}

impl Cgroups for V1 {
    fn version(&self) -> Version {
        Version::V1
    }

    fn ensure(&self, group: &str, limits: &Limits) -> Result<(), Error> {
        let (cpu, memory) = (self.path("cpu", group), self.path("memory", group));
        for controller in ["cpu", "cpuacct", "memory", "pids"] {
            make(&self.path(controller, group))?;
        }
        if limits.cpu_shares > 0 {
            write(&cpu.join("cpu.shares"), &limits.cpu_shares.to_string())?;
        }
        if cpu.join("cpu.cfs_quota_us").exists() {
            write(&cpu.join("cpu.cfs_period_us"), &period(limits).to_string())?;
            let quota = if limits.cpu_quota > 0 { limits.cpu_quota } else { -1 };
            write(&cpu.join("cpu.cfs_quota_us"), &quota.to_string())?;
        }
        let limit = if limits.memory > 0 { limits.memory } else { -1 };
        write(&memory.join("memory.limit_in_bytes"), &limit.to_string())?;
        let huge = self.path("hugetlb", "");
        if !limits.huge_pages.is_empty() && huge.is_dir() {
            let huge = self.path("hugetlb", group);
            make(&huge)?;
            limit_huge_pages(&huge, limits, "limit_in_bytes")?;
        }
        limit_pids(&self.path("pids", group), limits)
    }

    fn restrict(&self, group: &str, limits: &Limits) -> Result<(), Error> {
        find(&self.path("memory", group))?;
        if limits.cpu_shares > 0 {
            let file = self.path("cpu", group).join("cpu.shares");
            write(&file, &limits.cpu_shares.to_string())?;
        }
        if limits.memory > 0 {
            let file = self.path("memory", group).join("memory.limit_in_bytes");
            write(&file, &limits.memory.to_string())?;
        }
        if limits.pids > 0 { limit_pids(&self.path("pids", group), limits) } else { Ok(()) }
    }

    fn kill(&self, group: &str) -> Result<(), Error> {
        let group = group.trim_matches('/');
        self.hierarchies()?.iter().for_each(|hierarchy| kill_tree(&hierarchy.join(group)));
        Ok(())
    }

    fn remove(&self, group: &str) -> Result<(), Error> {
        let group = group.trim_matches('/');
        self.hierarchies()?.iter().try_for_each(|hierarchy| remove_tree(&hierarchy.join(group)))
    }

    fn usage(&self, group: &str) -> Result<Usage, Error> {
        find(&self.path("memory", group))?;
        Ok(usage::read_v1(|controller| self.path(controller, group)))
    }

    fn processes(&self, group: &str) -> Vec<i32> {
        processes(&self.path("memory", group))
    }

    fn children(&self, group: &str) -> Result<Vec<String>, Error> {
        children(&self.path("memory", group))
    }
}

/// A fake that records the cgroups instead of creating them.
#[derive(Default)]
pub struct RecordedCgroups(Mutex<BTreeMap<String, Limits>>);

impl RecordedCgroups {
    /// Returns the existing cgroups with their last limits.
    pub fn groups(&self) -> BTreeMap<String, Limits> {
        self.lock().clone()
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, BTreeMap<String, Limits>> {
        self.0.lock()
    }
}

impl Cgroups for RecordedCgroups {
    fn version(&self) -> Version {
        Version::V2
    }

    fn ensure(&self, group: &str, limits: &Limits) -> Result<(), Error> {
        self.lock().insert(group.to_owned(), limits.clone());
        Ok(())
    }

    fn restrict(&self, group: &str, limits: &Limits) -> Result<(), Error> {
        self.ensure(group, limits)
    }

    fn kill(&self, _group: &str) -> Result<(), Error> {
        Ok(())
    }

    fn remove(&self, group: &str) -> Result<(), Error> {
        self.lock().retain(|name, _| !Path::new(name).starts_with(group));
        Ok(())
    }

    fn usage(&self, _group: &str) -> Result<Usage, Error> {
        Ok(Usage::default())
    }

    fn processes(&self, _group: &str) -> Vec<i32> {
        Vec::new()
    }

    fn children(&self, group: &str) -> Result<Vec<String>, Error> {
        let groups = self.lock();
        let below = groups.keys().filter_map(|name| Path::new(name).strip_prefix(group).ok());
        Ok(below
            .filter_map(|rest| Some(rest.components().next()?.as_os_str().to_str()?.to_owned()))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enables_controllers_and_converts_units_in_version_2() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu memory hugetlb").unwrap();
        let groups = V2 { root: root.path().to_owned() };
        let limits = Limits {
            cpu_shares: 1024,
            cpu_quota: 50_000,
            pids: 99,
            huge_pages: [(2 << 20, 4 << 20), (1 << 30, 0)].into(),
            ..Limits::default()
        };
        let pages = root.path().join("node/pods/hugetlb.2MB.max");
        fs::create_dir_all(root.path().join("node/pods")).unwrap();
        fs::write(&pages, "max").unwrap();
        groups.ensure("/node/pods", &limits).unwrap();
        assert_eq!(fs::read_to_string(pages).unwrap(), "4194304");
        assert!(!root.path().join("node/pods/hugetlb.1GB.max").exists());
        let read = |file: &str| fs::read_to_string(root.path().join(file)).unwrap();
        assert_eq!(read("cgroup.subtree_control"), "+hugetlb");
        assert_eq!(read("node/pods/cpu.max"), "50000 100000");
        assert_eq!(read("node/pods/cpu.weight"), "39");
        assert_eq!(read("node/pods/memory.max"), "max");
        assert_eq!(read("node/pods/pids.max"), "99");
        groups.ensure("/node/pods", &Limits { pids: -1, ..limits }).unwrap();
        assert_eq!(read("node/pods/pids.max"), "max");
        assert_eq!(groups.children("/node").unwrap(), ["pods"]);
        let limits = Limits { cpu_period: 10_000, memory_min: 4096, ..Limits::default() };
        groups.ensure("/node/pods", &limits).unwrap();
        assert_eq!(
            (read("node/pods/cpu.max"), read("node/pods/memory.min")),
            ("max 10000".to_owned(), "4096".to_owned())
        );
    }

    #[test]
    fn restricts_only_existing_groups_and_only_by_what_is_set() {
        let root = tempfile::tempdir().unwrap();
        let (first, second) =
            (V1 { root: root.path().join("1") }, V2 { root: root.path().join("2") });
        let limits = Limits { cpu_shares: 512, memory: 4096, ..Limits::default() };
        assert!(
            first.restrict("sys", &limits).is_err() && second.restrict("sys", &limits).is_err()
        );
        for path in ["1/memory/sys", "1/cpu/sys", "1/pids/sys", "2/sys"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let read = |file: &str| fs::read_to_string(root.path().join(file)).unwrap();
        first.restrict("sys", &limits).unwrap();
        assert_eq!(
            (read("1/cpu/sys/cpu.shares"), read("1/memory/sys/memory.limit_in_bytes")),
            ("512".to_owned(), "4096".to_owned())
        );
        assert!(!root.path().join("1/pids/sys/pids.max").exists());
        second.restrict("sys", &Limits { memory: 0, ..limits }).unwrap();
        assert_eq!(read("2/sys/cpu.weight"), "20");
        assert!(!root.path().join("2/sys/memory.max").exists(), "memory is left as it was");
    }

    #[test]
    fn writes_every_hierarchy_in_version_1() {
        let root = tempfile::tempdir().unwrap();
        let groups = V1 { root: root.path().to_owned() };
        let cpu = root.path().join("cpu/pods");
        fs::create_dir_all(&cpu).unwrap();
        fs::write(cpu.join("cpu.cfs_quota_us"), "").unwrap();
        let huge_pages = [(2 << 20, 2 << 20)].into();
        let limits = Limits { cpu_shares: 2, memory: 4096, huge_pages, ..Limits::default() };
        groups.ensure("pods", &limits).unwrap();
        // Without the hierarchy there are no limits to set.
        assert!(!root.path().join("hugetlb").exists());
        let pages = root.path().join("hugetlb/pods");
        fs::create_dir_all(&pages).unwrap();
        let files = ["hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.rsvd.limit_in_bytes"];
        files.iter().for_each(|file| fs::write(pages.join(file), "").unwrap());
        groups.ensure("pods", &limits).unwrap();
        for file in files {
            assert_eq!(fs::read_to_string(pages.join(file)).unwrap(), "2097152", "{file}");
        }
        let read = |file: &str| fs::read_to_string(root.path().join(file)).unwrap();
        assert_eq!(read("cpu/pods/cpu.cfs_quota_us"), "-1");
        assert_eq!(read("cpu/pods/cpu.shares"), "2");
        assert_eq!(read("memory/pods/memory.limit_in_bytes"), "4096");
        assert!(!root.path().join("pids/pods/pids.max").exists());
    }
}

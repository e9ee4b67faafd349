//! The resource usage and limits of a cgroup, read from the files of version 1 or 2.
//!
//! A missing file counts as zero. Which files exist depends on the kernel, its configuration and whether the cgroup is
//! the root.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The time that tasks waited for a resource (pressure stall information).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// The share of the last 10, 60 and 300 seconds, in percent.
    pub averages: [f64; 3],
    /// The total, in microseconds.
    pub total: u64,
}

/// The pressure of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// The time in which at least one task waited.
    pub some: Stall,
    /// The time in which all tasks waited.
    pub full: Stall,
}

/// The CPU usage and throttling. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// The CPU time.
    pub total: u64,
    /// The CPU time in user mode.
    pub user: u64,
    /// The CPU time in kernel mode.
    pub system: u64,
    /// The number of quota periods.
    pub periods: u64,
    /// The number of periods in which the quota throttled the cgroup.
    pub throttled_periods: u64,
    /// The time for which the cgroup was throttled.
    pub throttled: u64,
    /// The number of periods with bursts.
    pub burst_periods: u64,
    /// The CPU time of bursts.
    pub burst: u64,
    /// The CPU pressure; `None` if the kernel does not report it.
    pub pressure: Option<Pressure>,
}

/// The memory usage, in bytes unless noted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// The memory in use, including the file cache.
    pub usage: u64,
    /// The highest usage.
    pub peak: u64,
    /// The number of times the limit was reached.
    pub limit_hits: u64,
    /// The kernel memory.
    pub kernel: u64,
    /// The file cache.
    pub cache: u64,
    /// The anonymous memory.
    pub anonymous: u64,
    /// The mapped files.
    pub mapped: u64,
    /// The swap in use.
    pub swap: u64,
    /// The active part of the file cache.
    pub active_file: u64,
    /// The inactive part of the file cache.
    pub inactive_file: u64,
    /// The number of page faults.
    pub faults: u64,
    /// The number of major page faults.
    pub major_faults: u64,
    /// The number of processes that the OOM killer killed.
    pub oom_kills: u64,
    /// The memory pressure; `None` if the kernel does not report it.
    pub pressure: Option<Pressure>,
}

impl Memory {
    /// Returns the usage without the inactive file cache, which the kernel can reclaim at once.
    pub fn working_set(&self) -> u64 {
        self.usage.saturating_sub(self.inactive_file)
    }
}

/// The I/O of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// The major device number.
    pub major: u32,
    /// The minor device number.
    pub minor: u32,
    /// The bytes read.
    pub read_bytes: u64,
    /// The bytes written.
    pub written_bytes: u64,
    /// The number of reads.
    pub reads: u64,
    /// The number of writes.
    pub writes: u64,
}

/// The limits of a cgroup; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// The CPU shares; 1,024 for one CPU.
    pub cpu_shares: u64,
    /// The CPU quota, in microseconds per period.
    pub cpu_quota: Option<u64>,
    /// The CPU period, in microseconds.
    pub cpu_period: u64,
    /// The memory limit, in bytes.
    pub memory: Option<u64>,
    /// The swap limit, in bytes.
    pub swap: Option<u64>,
    /// The protected memory, in bytes.
    pub reserved: u64,
    /// The maximum number of processes.
    pub pids: Option<u64>,
}

/// The usage and limits of a cgroup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// The CPU usage.
    pub cpu: Cpu,
    /// The memory usage.
    pub memory: Memory,
    /// The I/O by disk.
    pub disks: Vec<Disk>,
    /// The I/O pressure; `None` if the kernel does not report it.
    pub io_pressure: Option<Pressure>,
    /// The number of processes.
    pub pids: u64,
    /// The limits.
    pub allowed: CgroupLimits,
    /// The time of creation, if known.
    pub created: Option<SystemTime>,
}

/// The kernel writes a value above this for no limit.
const UNLIMITED: u64 = 1 << 62;
/// The nanoseconds of a tick in `cpuacct.stat`. The kernel reports 100 ticks per second on all machines.
const TICK: u64 = 10_000_000;

/// A file with lines of a key and a number.
struct KeyValueFile(String);

impl KeyValueFile {
    fn read(path: &Path) -> Self {
        Self(fs::read_to_string(path).unwrap_or_default())
    }

    fn get(&self, key: &str) -> u64 {
        let value = self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Reads a limit. Returns `None` for `max` and for values that mean no limit.
fn limit(path: &Path) -> Option<u64> {
    number(path).filter(|value| *value < UNLIMITED)
}

fn pressure(path: &Path) -> Option<Pressure> {
    let text = fs::read_to_string(path).ok()?;
    let stall = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind));
        let mut stall = Stall::default();
        for (key, value) in
            line.unwrap_or_default().split_whitespace().filter_map(|p| p.split_once('='))
        {
            let share = value.parse().ok().filter(|share: &f64| share.is_finite()).unwrap_or(0.0);
            match key {
                "avg10" => stall.averages[0] = share,
                "avg60" => stall.averages[1] = share,
                "avg300" => stall.averages[2] = share,
                "total" => stall.total = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        stall
    };
    Some(Pressure { some: stall("some "), full: stall("full ") })
}

/// Returns the creation time of a cgroup. The directory's own time changes with each child, so an unwritten file counts
/// too.
fn created(directory: &Path, file: &str) -> Option<SystemTime> {
    let modified = |path: &Path| path.metadata().ok()?.modified().ok();
    [modified(directory), modified(&directory.join(file))].into_iter().flatten().min()
}

fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Reads a cgroup of version 2.
pub(super) fn read_v2(group: &Path, is_root: bool) -> Usage {
    let at = |file: &str| group.join(file);
    let (cpu, memory) =
        (KeyValueFile::read(&at("cpu.stat")), KeyValueFile::read(&at("memory.stat")));
    let (cache, anonymous) = (memory.get("file"), memory.get("anon"));
    // The root has no memory.current and no memory.swap.current. This sum is the same as memory.current.
    let swap = || {
        let info = KeyValueFile::read(Path::new("/proc/meminfo"));
        let of = |key: &str| {
            let line = info.0.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        of("SwapTotal:").saturating_sub(of("SwapFree:"))
    };
    let usage =
        if is_root { cache + anonymous } else { number(&at("memory.current")).unwrap_or(0) };
    Usage {
        cpu: Cpu {
            total: cpu.get("usage_usec") * 1000,
            user: cpu.get("user_usec") * 1000,
            system: cpu.get("system_usec") * 1000,
            periods: cpu.get("nr_periods"),
            throttled_periods: cpu.get("nr_throttled"),
            throttled: cpu.get("throttled_usec") * 1000,
            burst_periods: cpu.get("nr_bursts"),
            burst: cpu.get("burst_usec") * 1000,
            pressure: pressure(&at("cpu.pressure")),
        },
        memory: Memory {
            usage,
            peak: number(&at("memory.peak")).unwrap_or(0),
            limit_hits: 0,
            kernel: memory.get("kernel"),
            cache,
            anonymous,
            mapped: memory.get("file_mapped"),
            swap: if is_root { swap() } else { number(&at("memory.swap.current")).unwrap_or(0) },
            active_file: memory.get("active_file"),
            inactive_file: memory.get("inactive_file"),
            faults: memory.get("pgfault"),
            major_faults: memory.get("pgmajfault"),
            oom_kills: KeyValueFile::read(&at("memory.events")).get("oom_kill"),
            pressure: pressure(&at("memory.pressure")),
        },
        disks: disks_of_v2(&fs::read_to_string(at("io.stat")).unwrap_or_default()),
        io_pressure: pressure(&at("io.pressure")),
        pids: number(&at("pids.current")).unwrap_or(0),
        allowed: limits_of_v2(group),
        created: created(group, "cgroup.events"),
    }
}

fn limits_of_v2(group: &Path) -> CgroupLimits {
    let at = |file: &str| group.join(file);
    let max = fs::read_to_string(at("cpu.max")).unwrap_or_default();
    let (quota, period) = max.trim().split_once(' ').unwrap_or_default();
    let shares = |weight: u64| 2 + weight.clamp(1, 10_000).saturating_sub(1) * 262_142 / 9999;
    CgroupLimits {
        cpu_shares: number(&at("cpu.weight")).map_or(0, shares),
        cpu_quota: quota.parse().ok(),
        cpu_period: period.parse().unwrap_or(0),
        memory: limit(&at("memory.max")),
        swap: limit(&at("memory.swap.max")),
        reserved: limit(&at("memory.min")).unwrap_or(0),
        pids: limit(&at("pids.max")),
    }
}

/// Parses lines such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn disks_of_v2(text: &str) -> Vec<Disk> {
    let disk = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = device(words.next()?)?;
        let mut disk = Disk { major, minor, ..Disk::default() };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let value = value.parse().unwrap_or(0);
            match key {
                "rbytes" => disk.read_bytes = value,
                "wbytes" => disk.written_bytes = value,
                "rios" => disk.reads = value,
                "wios" => disk.writes = value,
                _ => {}
            }
        }
        Some(disk)
    };
    text.lines().filter_map(disk).collect()
}

/// Reads a cgroup of version 1. `of` returns its directory in each controller's hierarchy.
pub(super) fn read_v1(of: impl Fn(&str) -> PathBuf) -> Usage {
    let (cpu, account, memory) = (of("cpu"), of("cpuacct"), of("memory"));
    let (throttling, times) = (
        KeyValueFile::read(&cpu.join("cpu.stat")),
        KeyValueFile::read(&account.join("cpuacct.stat")),
    );
    let stat = KeyValueFile::read(&memory.join("memory.stat"));
    let of_memory = |file: &str| number(&memory.join(file)).unwrap_or(0);
    let pids = of("pids");
    Usage {
        cpu: Cpu {
            total: number(&account.join("cpuacct.usage")).unwrap_or(0),
            user: times.get("user") * TICK,
            system: times.get("system") * TICK,
            periods: throttling.get("nr_periods"),
            throttled_periods: throttling.get("nr_throttled"),
            throttled: throttling.get("throttled_time"),
            burst_periods: throttling.get("nr_bursts"),
            burst: throttling.get("burst_time"),
            pressure: None,
        },
        memory: Memory {
            usage: of_memory("memory.usage_in_bytes"),
            peak: of_memory("memory.max_usage_in_bytes"),
            limit_hits: of_memory("memory.failcnt"),
            kernel: of_memory("memory.kmem.usage_in_bytes"),
            cache: stat.get("total_cache"),
            anonymous: stat.get("total_rss"),
            mapped: stat.get("total_mapped_file"),
            swap: stat.get("total_swap"),
            active_file: stat.get("total_active_file"),
            inactive_file: stat.get("total_inactive_file"),
            faults: stat.get("pgfault"),
            major_faults: stat.get("pgmajfault"),
            oom_kills: KeyValueFile::read(&memory.join("memory.oom_control")).get("oom_kill"),
            pressure: None,
        },
        disks: disks_of_v1(&of("blkio")),
        io_pressure: None,
        pids: number(&pids.join("pids.current")).unwrap_or(0),
        allowed: CgroupLimits {
            cpu_shares: number(&cpu.join("cpu.shares")).unwrap_or(0),
            cpu_quota: number(&cpu.join("cpu.cfs_quota_us")),
            cpu_period: number(&cpu.join("cpu.cfs_period_us")).unwrap_or(0),
            memory: limit(&memory.join("memory.limit_in_bytes")),
            swap: limit(&memory.join("memory.memsw.limit_in_bytes")),
            reserved: limit(&memory.join("memory.soft_limit_in_bytes")).unwrap_or(0),
            pids: limit(&pids.join("pids.max")),
        },
        created: created(&memory, "cgroup.clone_children"),
    }
}

/// Parses lines such as `8:0 Read 4096`, in one file for bytes and one for operations.
fn disks_of_v1(blkio: &Path) -> Vec<Disk> {
    let mut disks: Vec<Disk> = Vec::new();
    let mut take = |file: &str, set: fn(&mut Disk, &str, u64)| {
        let text = fs::read_to_string(blkio.join(file)).unwrap_or_default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, operation, value] = words[..] else { continue };
            let (Some((major, minor)), Ok(value)) = (device(name), value.parse()) else { continue };
            let known = disks.iter().position(|d| (d.major, d.minor) == (major, minor));
            let at = known.unwrap_or_else(|| {
                disks.push(Disk { major, minor, ..Disk::default() });
                disks.len() - 1
            });
            set(&mut disks[at], operation, value);
        }
    };
    take("blkio.throttle.io_service_bytes_recursive", |disk, operation, value| match operation {
        "Read" => disk.read_bytes = value,
        "Write" => disk.written_bytes = value,
        _ => {}
    });
    take("blkio.throttle.io_serviced_recursive", |disk, operation, value| match operation {
        "Read" => disk.reads = value,
        "Write" => disk.writes = value,
        _ => {}
    });
    disks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn reads_usage_and_pressure_of_version_2() {
        let group = group(&[
            (
                "cpu.stat",
                "usage_usec 70\nuser_usec 40\nsystem_usec 30\nnr_periods 5\nnr_throttled 2\nthrottled_usec 9\n",
            ),
            ("cpu.weight", "39\n"),
            ("cpu.max", "50000 100000\n"),
            (
                "cpu.pressure",
                "some avg10=1.50 avg60=0.20 avg300=0.03 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=56\n",
            ),
            ("memory.current", "1000\n"),
            (
                "memory.stat",
                "anon 300\nfile 600\nfile_mapped 50\ninactive_file 400\nactive_file 200\npgfault 7\npgmajfault 1\n",
            ),
            ("memory.events", "low 0\noom 3\noom_kill 2\n"),
            ("memory.max", "max\n"),
            ("memory.swap.max", "0\n"),
            ("memory.swap.current", "12\n"),
            ("io.stat", "254:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\nbroken\n"),
            ("pids.current", "3\n"),
            ("pids.max", "99\n"),
        ]);
        let usage = read_v2(group.path(), false);
        assert_eq!((usage.cpu.total, usage.cpu.user, usage.cpu.throttled), (70_000, 40_000, 9000));
        let pressure = usage.cpu.pressure.unwrap();
        assert_eq!((pressure.some.averages, pressure.some.total), ([1.5, 0.2, 0.03], 1234));
        assert_eq!(pressure.full.total, 56);
        assert_eq!(usage.memory.working_set(), 600);
        assert_eq!((usage.memory.mapped, usage.memory.swap, usage.memory.oom_kills), (50, 12, 2));
        assert_eq!(usage.memory.pressure, None);
        let disk =
            Disk { major: 254, minor: 0, read_bytes: 10, written_bytes: 20, reads: 1, writes: 2 };
        assert_eq!(usage.disks, [disk]);
        let allowed = usage.allowed;
        assert_eq!(
            (allowed.cpu_shares, allowed.cpu_quota, allowed.cpu_period),
            (998, Some(50_000), 100_000)
        );
        assert_eq!((allowed.memory, allowed.swap, allowed.pids), (None, Some(0), Some(99)));
        // The root has no memory.current.
        assert_eq!(read_v2(group.path(), true).memory.usage, 900);
    }

    #[test]
    fn reads_usage_of_version_1() {
        let root = group(&[
            ("cpu/cpu.stat", "nr_periods 5\nnr_throttled 2\nthrottled_time 900\n"),
            ("cpu/cpu.shares", "1024\n"),
            ("cpu/cpu.cfs_quota_us", "-1\n"),
            ("cpuacct/cpuacct.usage", "123456789\n"),
            ("cpuacct/cpuacct.stat", "user 7\nsystem 3\n"),
            ("memory/memory.usage_in_bytes", "1000\n"),
            (
                "memory/memory.stat",
                "cache 1\ninactive_file 5\ntotal_cache 600\ntotal_rss 300\ntotal_inactive_file 400\n",
            ),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"),
            (
                "blkio/blkio.throttle.io_service_bytes_recursive",
                "8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\nTotal 30\n",
            ),
            ("blkio/blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\n"),
        ]);
        let usage = read_v1(|controller| root.path().join(controller));
        assert_eq!((usage.cpu.total, usage.cpu.user), (123_456_789, 70_000_000));
        assert_eq!((usage.memory.working_set(), usage.memory.anonymous), (600, 300));
        assert_eq!((usage.memory.cache, usage.memory.oom_kills), (600, 4));
        assert_eq!((usage.allowed.cpu_quota, usage.allowed.memory), (None, None));
        let disk =
            Disk { major: 8, minor: 0, read_bytes: 10, written_bytes: 20, reads: 1, writes: 2 };
        assert_eq!(usage.disks, [disk]);
        assert!(usage.created.is_some());
    }

    #[test]
    fn counts_malformed_files_as_zero() {
        let group = group(&[
            ("cpu.stat", "usage_usec x\n\u{0}\n"),
            ("cpu.pressure", "some avg10=NaN total=-1\nfull"),
            ("memory.stat", "anonymous 3"),
            ("cpu.weight", "99999999999999999999"),
        ]);
        let usage = read_v2(group.path(), false);
        assert_eq!(usage.cpu.pressure, Some(Pressure::default()));
        assert_eq!((usage.cpu.total, usage.memory.anonymous, usage.allowed.cpu_shares), (0, 0, 0));
    }
}

//! What a control group has used and may use, read from either version's files.
//!
//! A file that is missing counts for nothing: which ones there are depends on the kernel, its configuration and whether
//! the group is the root.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// How long tasks had to wait for something (pressure stall information).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// The share of the last 10, 60 and 300 seconds, in percent.
    pub averages: [f64; 3],
    /// Microseconds in all.
    pub total: u64,
}

/// The waits of some tasks, and those of all at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    pub some: Stall,
    pub full: Stall,
}

/// Processor time in nanoseconds, and how often the quota held the group back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    pub total: u64,
    pub user: u64,
    pub system: u64,
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled: u64,
    pub burst_periods: u64,
    pub burst: u64,
    /// `None` where the kernel does not tell.
    pub pressure: Option<Pressure>,
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// The file cache included.
    pub usage: u64,
    pub peak: u64,
    /// How often the limit was met.
    pub limit_hits: u64,
    pub kernel: u64,
    pub cache: u64,
    pub anonymous: u64,
    pub mapped: u64,
    pub swap: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub faults: u64,
    pub major_faults: u64,
    /// How many processes were killed for want of memory.
    pub oom_kills: u64,
    pub pressure: Option<Pressure>,
}

impl Memory {
    /// Memory without the file cache that can be given up at once.
    pub fn working_set(&self) -> u64 {
        self.usage.saturating_sub(self.inactive_file)
    }
}

/// What was read from and written to one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub major: u32,
    pub minor: u32,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// What a group may use; `None` is without a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// 1,024 for the share of one CPU.
    pub cpu_shares: u64,
    pub cpu_quota: Option<u64>,
    pub cpu_period: u64,
    pub memory: Option<u64>,
    pub swap: Option<u64>,
    pub reserved: u64,
    pub pids: Option<u64>,
}

/// What a group has used, and what it may.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    pub cpu: Cpu,
    pub memory: Memory,
    pub disks: Vec<Disk>,
    pub io_pressure: Option<Pressure>,
    pub pids: u64,
    pub allowed: Allowed,
    pub created: Option<SystemTime>,
}

/// A value above this is the kernel's way to say that there is no limit.
const UNLIMITED: u64 = 1 << 62;
/// Nanoseconds in a tick of `cpuacct.stat`; the kernel tells user space of a hundred a second everywhere.
const TICK: u64 = 10_000_000;

/// Lines of a key and a number.
struct Keyed(String);

impl Keyed {
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

/// A limit's number; `max` and what is as good as that is none.
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

/// When a group was made: its directory's time changes with each group that is made below, that of a file that nobody
/// writes does not.
fn created(directory: &Path, file: &str) -> Option<SystemTime> {
    let modified = |path: &Path| path.metadata().ok()?.modified().ok();
    [modified(directory), modified(&directory.join(file))].into_iter().flatten().min()
}

fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Reads a group of version 2.
pub(super) fn second(group: &Path, is_root: bool) -> Usage {
    let at = |file: &str| group.join(file);
    let (cpu, memory) = (Keyed::read(&at("cpu.stat")), Keyed::read(&at("memory.stat")));
    let (cache, anonymous) = (memory.get("file"), memory.get("anon"));
    // The root has no memory.current and no memory.swap.current; what the first would count is here.
    let swap = || {
        let info = Keyed::read(Path::new("/proc/meminfo"));
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
            oom_kills: Keyed::read(&at("memory.events")).get("oom_kill"),
            pressure: pressure(&at("memory.pressure")),
        },
        disks: disks_of_second(&fs::read_to_string(at("io.stat")).unwrap_or_default()),
        io_pressure: pressure(&at("io.pressure")),
        pids: number(&at("pids.current")).unwrap_or(0),
        allowed: allowed_by_second(group),
        created: created(group, "cgroup.events"),
    }
}

fn allowed_by_second(group: &Path) -> Allowed {
    let at = |file: &str| group.join(file);
    let max = fs::read_to_string(at("cpu.max")).unwrap_or_default();
    let (quota, period) = max.trim().split_once(' ').unwrap_or_default();
    let shares = |weight: u64| 2 + weight.clamp(1, 10_000).saturating_sub(1) * 262_142 / 9999;
    Allowed {
        cpu_shares: number(&at("cpu.weight")).map_or(0, shares),
        cpu_quota: quota.parse().ok(),
        cpu_period: period.parse().unwrap_or(0),
        memory: limit(&at("memory.max")),
        swap: limit(&at("memory.swap.max")),
        reserved: limit(&at("memory.min")).unwrap_or(0),
        pids: limit(&at("pids.max")),
    }
}

/// Lines such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn disks_of_second(text: &str) -> Vec<Disk> {
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

/// Reads a group of version 1, by where each controller has it.
pub(super) fn first(of: impl Fn(&str) -> PathBuf) -> Usage {
    let (cpu, account, memory) = (of("cpu"), of("cpuacct"), of("memory"));
    let (throttling, times) =
        (Keyed::read(&cpu.join("cpu.stat")), Keyed::read(&account.join("cpuacct.stat")));
    let stat = Keyed::read(&memory.join("memory.stat"));
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
            oom_kills: Keyed::read(&memory.join("memory.oom_control")).get("oom_kill"),
            pressure: None,
        },
        disks: disks_of_first(&of("blkio")),
        io_pressure: None,
        pids: number(&pids.join("pids.current")).unwrap_or(0),
        allowed: Allowed {
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

/// Lines such as `8:0 Read 4096`, in a file for bytes and one for operations.
fn disks_of_first(blkio: &Path) -> Vec<Disk> {
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
    fn version_two_is_read_whole_with_its_pressure() {
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
        let usage = second(group.path(), false);
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
        assert_eq!(second(group.path(), true).memory.usage, 900);
    }

    #[test]
    fn version_one_is_read_from_its_hierarchies() {
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
        let usage = first(|controller| root.path().join(controller));
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
    fn garbage_counts_for_nothing() {
        let group = group(&[
            ("cpu.stat", "usage_usec x\n\u{0}\n"),
            ("cpu.pressure", "some avg10=NaN total=-1\nfull"),
            ("memory.stat", "anonymous 3"),
            ("cpu.weight", "99999999999999999999"),
        ]);
        let usage = second(group.path(), false);
        assert_eq!(usage.cpu.pressure, Some(Pressure::default()));
        assert_eq!((usage.cpu.total, usage.memory.anonymous, usage.allowed.cpu_shares), (0, 0, 0));
    }
}

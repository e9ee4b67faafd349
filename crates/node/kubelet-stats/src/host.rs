//! Reads network interfaces, processes, disks and file systems from `/proc`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The traffic of an interface in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
    pub(crate) errors: u64,
    pub(crate) dropped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) received: Flow,
    pub(crate) sent: Flow,
}

/// Prefixes of interfaces that upstream omits. There are as many host ends of Pods' interfaces as Pods.
const OMITTED_PREFIXES: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// Returns the interfaces in the network namespace of a process, or of this process.
pub(crate) fn interfaces(pid: Option<i32>) -> Vec<Interface> {
    let process = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    links(&fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default())
}

fn links(text: &str) -> Vec<Interface> {
    let link = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let name = name.trim();
        if OMITTED_PREFIXES.iter().any(|prefix| name.to_lowercase().starts_with(prefix)) {
            return None;
        }
        let fields: Vec<u64> = rest.split_whitespace().map_while(|f| f.parse().ok()).collect();
        let flow = |at: usize| {
            let [bytes, packets, errors, dropped] = *fields.get(at..at + 4)? else { return None };
            Some(Flow { bytes, packets, errors, dropped })
        };
        Some(Interface { name: name.to_owned(), received: flow(0)?, sent: flow(8)? })
    };
    text.lines().skip(2).filter_map(link).collect()
}

/// The processes of a cgroup and their open files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Processes {
    pub(crate) count: u64,
    pub(crate) descriptors: u64,
    pub(crate) sockets: u64,
    /// The limit of open files of the first process. `None` if there is no limit or no process.
    pub(crate) open_files: Option<u64>,
}

/// The number of descriptors that are counted per cgroup. A Pod with a million of them must not delay each reading.
const DESCRIPTORS: u64 = 20_000;

pub(crate) fn processes(pids: &[i32]) -> Processes {
    let mut all = Processes { count: pids.len() as u64, ..Processes::default() };
    for pid in pids {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            if all.descriptors == DESCRIPTORS {
                break;
            }
            all.descriptors += 1;
            let target = fs::read_link(entry.path()).unwrap_or_default();
            all.sockets += u64::from(target.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
        }
    }
    let limits = pids.first().map(|pid| fs::read_to_string(format!("/proc/{pid}/limits")));
    all.open_files = limits.and_then(Result::ok).and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().next()?.parse().ok()
    });
    all
}

/// A disk's device number.
pub(crate) type Number = (u32, u32);

/// The counters of a disk in `/proc/diskstats`. Times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) name: String,
    /// The kernel's counters in order, starting with completed reads.
    pub(crate) figures: Vec<u64>,
}

pub(crate) fn disks() -> BTreeMap<Number, Disk> {
    disk_lines(&fs::read_to_string("/proc/diskstats").unwrap_or_default())
}

fn disk_lines(text: &str) -> BTreeMap<Number, Disk> {
    let disk = |line: &str| {
        let mut words = line.split_whitespace();
        let number = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let name = words.next()?.to_owned();
        Some((number, Disk { name, figures: words.map_while(|w| w.parse().ok()).collect() }))
    };
    text.lines().filter_map(disk).collect()
}

/// A file system on a local disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    pub(crate) device: String,
    pub(crate) number: Number,
    pub(crate) disk: sys::DiskUse,
}

/// Returns the mounted local file systems, each once. Network file systems are skipped, because their server may hang.
pub(crate) fn file_systems() -> Vec<FileSystem> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut numbers = BTreeSet::new();
    mounts(&text)
        .into_iter()
        .filter(|(number, ..)| numbers.insert(*number))
        .filter_map(|(number, device, place)| {
            Some(FileSystem { device, number, disk: sys::disk_use(&place).ok()? })
        })
        .collect()
}

/// Returns device number, device and mount point of each mounted disk.
fn mounts(text: &str) -> Vec<(Number, String, PathBuf)> {
    let mount = |line: &str| {
        let (place, source) = line.split_once(" - ")?;
        let place: Vec<&str> = place.split(' ').collect();
        let device = source.split(' ').nth(1)?;
        let (major, minor) = place.get(2)?.split_once(':')?;
        // Skip mount points with escaped characters.
        let path = place.get(4).filter(|path| !path.contains('\\'))?;
        let number = (major.parse().ok()?, minor.parse().ok()?);
        device.starts_with("/dev/").then(|| (number, device.to_owned(), Path::new(path).to_owned()))
    };
    text.lines().filter_map(mount).collect()
}

/// Returns the limit of processes and their number, both including threads.
pub(crate) fn process_limits() -> Option<(u64, u64)> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let most = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
    // The fourth field of loadavg is running/all.
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    Some((most, text.split_whitespace().nth(3)?.split('/').nth(1)?.parse().ok()?))
}

/// Returns the boot time in seconds since the epoch.
pub(crate) fn boot_time() -> Option<i64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Returns the number of cores and sockets.
pub(crate) fn topology() -> (u64, u64) {
    cores(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn cores(text: &str) -> (u64, u64) {
    let (mut cores, mut sockets) = (BTreeSet::new(), BTreeSet::new());
    for processor in text.split("\n\n").filter(|p| !p.trim().is_empty()) {
        let field = |key: &str| {
            let line =
                processor.lines().find(|line| line.split(':').next().map(str::trim) == Some(key));
            line.and_then(|line| line.split_once(':')).map_or("0", |(_, value)| value.trim())
        };
        sockets.insert(field("physical id"));
        cores.insert((field("physical id"), field("core id")));
    }
    (cores.len() as u64, sockets.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_host_ends_of_pod_interfaces() {
        let text = "Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n\
                    \u{20} eth0:1500 10 1 2 0 0 0 0 3000 20 3 4 0 0 0 0\nveth12: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n eth1: 5\n";
        let received = Flow { bytes: 1500, packets: 10, errors: 1, dropped: 2 };
        let sent = Flow { bytes: 3000, packets: 20, errors: 3, dropped: 4 };
        assert_eq!(links(text), [Interface { name: "eth0".to_owned(), received, sent }]);
    }

    #[test]
    fn reads_disks_and_mounts_and_skips_garbage() {
        let disks = disk_lines(" 254 0 vda 5 1 80 7 x\nbroken\n 8 1 sda1\n");
        assert_eq!(disks[&(254, 0)].figures, [5, 1, 80, 7]);
        assert_eq!((disks.len(), disks[&(8, 1)].name.as_str()), (2, "sda1"));
        let text = "25 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n26 25 0:5 / /dev rw - devtmpfs udev rw\nx - y\n\
                    27 25 254:1 / /a\\040b rw - ext4 /dev/vdb rw\n";
        assert_eq!(mounts(text), [((254, 0), "/dev/vda".to_owned(), PathBuf::from("/"))]);
    }

    #[test]
    fn counts_cores_and_not_threads() {
        let one = |package: u8, core: u8| {
            format!("processor\t: 0\nphysical id\t: {package}\ncore id\t\t: {core}\n\n")
        };
        let text: String = [one(0, 0), one(0, 0), one(0, 1), one(1, 0)].concat();
        assert_eq!(cores(&text), (3, 2));
    }

    #[test]
    fn counts_open_files_of_this_process() {
        let own = i32::try_from(std::process::id()).unwrap();
        let _socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let seen = processes(&[own]);
        assert!(
            seen.count == 1 && seen.sockets >= 1 && seen.descriptors > seen.sockets,
            "{seen:?}"
        );
    }
}

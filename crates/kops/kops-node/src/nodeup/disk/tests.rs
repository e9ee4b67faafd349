//! Tests on image files, which the programs treat like block devices. Kills the creation of a file system at each
//! write.

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
};

use sys::{ProgramOutput, RecordedPrograms};

use super::*;

const SIZE: u64 = 64 << 20;
/// The variable that tells the writer its directory.
const DIRECTORY: &str = "WINDLASS_TEST_DISK";
/// More writes than a file system of this size has.
const MOST_WRITES: usize = 200;

/// Content that is written to a disk, and its place.
type Write = (&'static [u8], u64);

/// A file that the programs treat like a block device.
struct DiskImage(tempfile::TempDir);

impl DiskImage {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        sys::grow_image(&place.device(), SIZE).unwrap();
        place
    }

    fn device(&self) -> PathBuf {
        self.0.path().join("disk.img")
    }

    fn disk<'a>(&self, programs: &'a dyn Programs, writes: &Writes) -> Disk<'a> {
        disk_in(self.0.path(), programs, writes)
    }

    fn prepare(&self) -> Result<(), String> {
        let disk = self.disk(&HostPrograms, &Writes::default());
        disk.prepare().map_err(|error| error.to_string())
    }

    fn write(&self, content: &[u8], at: u64) {
        let disk = File::options().write(true).open(self.device()).unwrap();
        disk.write_all_at(content, at).unwrap();
    }

    /// Asserts that the disk has an intact file system, and that nothing is left beside it.
    fn assert_complete(&self, step: &str) {
        let device = self.device().display().to_string();
        let output = HostPrograms.run(&["fsck.ext4", "-f", "-n", &device], &[]).unwrap();
        assert_eq!(output.code, Some(0), "{step}: {}{}", output.stdout, output.stderr);
        assert!(!self.0.path().join("scratch/new.img").exists(), "{step}");
        self.prepare().unwrap_or_else(|error| panic!("{step}: {error}"));
    }
}

fn disk_in<'a>(directory: &Path, programs: &'a dyn Programs, writes: &Writes) -> Disk<'a> {
    Disk {
        id: "a-etcd-main",
        device: directory.join("disk.img"),
        scratch: directory.join("scratch/new.img"),
        programs,
        writes: writes.clone(),
    }
}

/// Reports whether this host has the programs that the tests run.
fn has_programs() -> bool {
    let has = ["mkfs.ext4", "fsck.ext4", "blkid"].iter().all(|name| {
        Command::new(name).arg("-V").stderr(Stdio::null()).stdout(Stdio::null()).status().is_ok()
    });
    if !has {
        println!("skipped: no mkfs.ext4, fsck.ext4 or blkid (Debian: apt-get install e2fsprogs)");
    }
    has
}

#[test]
fn formats_a_blank_disk_once() {
    if !has_programs() {
        return;
    }
    let place = DiskImage::new();
    place.prepare().unwrap();
    let before = fs::read(place.device()).unwrap();
    place.assert_complete("a new disk");
    // A second start does not format it again.
    let uuid = |content: &[u8]| content[1024 + 104..1024 + 120].to_vec();
    assert_eq!(uuid(&fs::read(place.device()).unwrap()), uuid(&before));
}

#[test]
fn leaves_disks_with_other_content_alone() {
    if !has_programs() {
        return;
    }
    let table: &[u8] = &[0, 2, 0, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 9];
    let case = |name, writes: &[Write], expected| (name, writes.to_vec(), expected);
    let cases = [
        case("text at the begin", &[(b"photo", 0)], "unknown format"),
        case("text in the last sector", &[(b"photo", SIZE - 5)], "unknown format"),
        case("a DOS partition table", &[(&[0x55, 0xaa], 510), (table, 446)], "partition table"),
        case(
            "a swap area",
            &[(b"SWAPSPACE2", 4086), (&[1], 1024), (&[255, 0], 1028)],
            "holds swap",
        ),
        case("an XFS", &[(b"XFSB", 0)], "; "),
    ];
    for (name, writes, expected) in cases {
        let place = DiskImage::new();
        for (content, at) in writes {
            place.write(content, at);
        }
        let before = fs::read(place.device()).unwrap();
        let error = place.prepare().unwrap_err();
        assert!(
            error.contains("etcd's volume a-etcd-main") && error.contains(expected),
            "{name}: {error}"
        );
        assert!(error.contains("move the data away"), "{name}: {error}");
        assert_eq!(fs::read(place.device()).unwrap(), before, "{name}");
    }
    let place = DiskImage::new();
    fs::remove_file(place.device()).unwrap();
    let error = place.prepare().unwrap_err();
    assert!(error.contains("cannot be read") && error.contains("dmesg"), "{error}");
}

#[test]
fn repairs_a_file_system_and_refuses_one_that_it_cannot_repair() {
    if !has_programs() {
        return;
    }
    let place = DiskImage::new();
    place.prepare().unwrap();
    // The state says that errors were detected.
    let device = place.device().display().to_string();
    HostPrograms.must(&["debugfs", "-w", "-R", "set_super_value state 2", &device]).unwrap();
    place.prepare().unwrap();
    for (code, expected) in [(4, "need a decision"), (8, "exit code 8")] {
        let programs = RecordedPrograms::new(move |command| match command.split(' ').next() {
            Some("blkid") => ProgramOutput {
                code: Some(0),
                stdout: "TYPE=ext4\n".to_owned(),
                stderr: String::new(),
            },
            _ => ProgramOutput { code: Some(code), ..ProgramOutput::default() },
        });
        let error = place.disk(&programs, &Writes::default()).prepare().unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("restore a backup"), "{error}");
        assert!(programs.calls()[1].starts_with("fsck.ext4 -a "), "{:?}", programs.calls());
    }
}

#[test]
fn crash_of_format_before_every_write_is_repaired() {
    if !has_programs() {
        return;
    }
    for left in 0.. {
        let place = DiskImage::new();
        let writes = Writes::default();
        writes.left.set(Some(left));
        let stopped = place.disk(&HostPrograms, &writes).prepare().is_err();
        let step = writes.done.borrow().get(left).copied();
        assert_eq!(stopped, step.is_some(), "{step:?}");
        if stopped {
            place.prepare().unwrap_or_else(|error| panic!("{step:?}: {error}"));
        }
        place.assert_complete(step.unwrap_or("the end"));
        println!(
            "  {left:2} stopped before {:40} the file system is intact",
            step.unwrap_or("the end")
        );
        if !stopped {
            assert!(left >= 5, "{left}");
            return;
        }
    }
}

/// Creates a file system. The test below runs it as a program of its own.
#[test]
#[ignore = "runs in a process of another test"]
fn formats_a_disk() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    disk_in(Path::new(&directory), &HostPrograms, &Writes::default()).prepare().unwrap();
}

/// Kills the program before its n-th write to the disk.
#[test]
fn kill_of_format_at_every_write_is_repaired() {
    let traced = Command::new("strace").args(["-o", "/dev/null", "true"]).status();
    if !has_programs() || !traced.is_ok_and(|status| status.success()) {
        println!("skipped: no strace");
        return;
    }
    for number in 1..MOST_WRITES {
        let place = DiskImage::new();
        let mut command = Command::new("strace");
        let calls = "pwrite64,fsync";
        command.args(["--follow-forks", "--quiet=all", "-o", "/dev/null", "--trace", calls]);
        command.arg("--trace-path").arg(place.device()).arg("--inject");
        command.arg(format!("{calls}:signal=SIGKILL:when={number}"));
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "nodeup::disk::tests::formats_a_disk", "--ignored"]);
        let output = command.env(DIRECTORY, place.0.path()).output().unwrap();
        if output.status.success() {
            place.assert_complete("the end");
            assert!(number > 5, "{number} writes");
            println!("{number} writes");
            return;
        }
        place.prepare().unwrap_or_else(|error| panic!("killed at {number}: {error}"));
        place.assert_complete(&format!("killed at {number}"));
    }
    panic!("more than {MOST_WRITES} writes");
}

#[test]
fn finds_only_volumes_of_the_cluster_and_its_etcd() {
    let volume = |id: &str, tags: &[(&str, &str)]| AttachedVolume {
        id: id.to_owned(),
        tags: tags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        device: 4096,
    };
    let role = ("k8s.io/role/control-plane", "1");
    let own = ("kubernetes.io/cluster/a.local", "owned");
    let mut machine = Machine {
        cluster: "a.local".to_owned(),
        group: "cp".to_owned(),
        name: "cp-1".to_owned(),
        id: "a".to_owned(),
        made: 0,
        address: "172.29.0.2".parse().unwrap(),
        gateway: "172.29.0.1".parse().unwrap(),
        cgroup: String::new(),
        trusted: true,
        user_data: String::new(),
        volumes: Vec::new(),
    };
    // A machine of an earlier version.
    let directory = mount_volume(&machine, "main").unwrap();
    assert_eq!(directory, Path::new("/mnt/disks/a.local--main--0"));
    machine.volumes = vec![
        volume(
            "foreign",
            &[role, ("kubernetes.io/cluster/b.local", "owned"), ("k8s.io/etcd/main", "a/a")],
        ),
        volume("data", &[role, own]),
        volume("events", &[role, own, ("k8s.io/etcd/events", "a/a")]),
    ];
    let error = find_volume(&machine, "main").unwrap_err().to_string();
    assert!(error.contains("no volume of etcd cluster main"), "{error}");
    machine.volumes.push(volume("main", &[role, own, ("k8s.io/etcd/main", "a/a")]));
    let found = find_volume(&machine, "main").unwrap();
    assert_eq!(
        (found.id.as_str(), found.mount_point()),
        ("main", PathBuf::from("/mnt/master-main"))
    );
    machine.volumes.push(volume("bad", &[role, own, ("k8s.io/etcd/cilium", "a")]));
    let error = find_volume(&machine, "cilium").unwrap_err().to_string();
    assert!(error.contains("volume bad") && error.contains("MEMBER/ALL"), "{error}");
}

//! Tests all stages of a first boot on a disk, in the order in which an initrd runs them.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::processes::WINDLASS;

const CONFIG: &str = r#"{
  "ignition": {"version": "3.4.0"},
  "storage": {
    "disks": [{"device": "DISK", "wipeTable": true, "partitions": [
      {"number": 1, "label": "root", "sizeMiB": 16, "guid": "B5A5B5C6-0000-4000-8000-000000000001"},
      {"number": 2, "label": "data", "sizeMiB": 0}]}],
    "filesystems": [
      {"device": "ROOT", "path": "/", "format": "ext4", "label": "root", "wipeFilesystem": true,
       "uuid": "b5a5b5c6-0000-4000-8000-000000000002"},
      {"device": "DATA", "path": "/data", "format": "ext4", "label": "data"}],
    "directories": [{"path": "/data/d", "mode": 448, "overwrite": true}],
    "files": [
      {"path": "/etc/hostname", "mode": 420, "contents": {"source": "data:,node-1"}},
      {"path": "/etc/motd", "append": [{"source": "data:,a"}, {"source": "data:,b"}]}],
    "links": [{"path": "/etc/localtime", "target": "../usr/share/zoneinfo/UTC"}]
  },
  "systemd": {"units": [{"name": "a.service", "enabled": true,
    "contents": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
    "dropins": [{"name": "x.conf", "contents": "[Service]\nNice=1\n"}]}, {"name": "b.service", "mask": true}]}
}"#;

/// Runs the stages with their own mount points, with the root mounted as an initrd does, and prints the resulting
/// files.
const STAGES: &str = r#"
set -e
for stage in fetch disks mount files umount; do
    "$WINDLASS" ignition --platform file --stage $stage --root "$PWD/root" --config-cache "$PWD/cache" \
        --neednet "$PWD/neednet" --state-file "$PWD/state" --log-to-stdout --device-timeout 10s >>log 2>&1
    [ $stage != disks ] || mount "$ROOT" root
done
umount root
sha256sum "$DISK"
blkid -p -s UUID -s LABEL -s TYPE "$ROOT" "$DATA"
mount -o ro "$ROOT" root
mount -o ro "$DATA" root/data
cd root
find . -printf '%P %y %m %U %G %l\n' | sort
find . -type f | sort | xargs sha256sum
"#;

/// A file as a block device. Not every kernel looks for partitions in it, so each file system has a device of its own.
struct Disk(String);

impl Disk {
    fn attach(file: &Path) -> Option<Self> {
        fs::File::create(file).unwrap().set_len(64 << 20).unwrap();
        let losetup = ["--find", "--show"];
        let found = Command::new("losetup").args(losetup).arg(file).output().ok()?;
        let name = String::from_utf8(found.stdout).unwrap().trim().to_owned();
        found.status.success().then_some(Self(name))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

fn stages(folder: &Path, disks: &[Disk; 3]) -> String {
    let names = ["DISK", "ROOT", "DATA"].into_iter().zip(disks.iter().map(|disk| &disk.0));
    let out = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", STAGES])
        .current_dir(folder)
        .env("WINDLASS", WINDLASS)
        .envs(names)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
    assert!(out.status.success(), "{log}\n{}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn creates_same_disk_from_same_config() {
    let folder = tempfile::tempdir().unwrap();
    let disks =
        ["disk", "root.img", "data.img"].map(|name| Disk::attach(&folder.path().join(name)));
    let [Some(disk), Some(root), Some(data)] = disks else {
        eprintln!("skipped: cannot create loop devices; run as root");
        return;
    };
    let config = CONFIG.replace("DISK", &disk.0).replace("ROOT", &root.0).replace("DATA", &data.0);
    fs::write(folder.path().join("config.ign"), config).unwrap();
    fs::create_dir(folder.path().join("root")).unwrap();
    let disks = [disk, root, data];
    let first = stages(folder.path(), &disks);
    for part in [
        "b5a5b5c6-0000-4000-8000-000000000002",
        "\ndata/d d 700 0 0",
        "\netc/hostname f 644 0 0",
        "\netc/systemd/system/b.service l 777 0 0 /dev/null",
        "\netc/systemd/system/a.service.d/x.conf f 644 0 0",
    ] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert_eq!(stages(folder.path(), &disks), first);
}

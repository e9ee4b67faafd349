//! Installing to a disk: its usual layout, and what boots it afterwards, by BIOS and by UEFI.

use std::{
    fs::{self, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    path::Path,
};

use ignition::spec::Config;
use serde_json::{Value, json};
use sys::{HostPrograms, Programs};

use super::SYSROOT;
use crate::{Error, disks::partitions};

const ESP: &str = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B";
const BOOT_LABEL: &str = "windlass-boot";
/// The attribute by which boot code finds its partition.
const LEGACY_BOOT: u64 = 1 << 2;
const BOOT: &str = "/dev/disk/by-partlabel/windlass-boot";
const ROOT: &str = "/dev/disk/by-partlabel/windlass-root";
/// What of the image boots an installed disk.
const PARTS: &str = "/usr/lib/windlass/boot";
/// A BIOS's boot code ends where the disk's own marks begin.
const MBR_CODE: usize = 440;

/// The layout of a disk whose config says nothing else.
fn usual(disk: &str) -> Value {
    json!({
        "ignition": { "version": "3.4.0" },
        "storage": {
            "disks": [{ "device": disk, "wipeTable": true, "partitions": [
                { "number": 1, "label": BOOT_LABEL, "sizeMiB": 512, "typeGuid": ESP },
                { "number": 2, "label": "windlass-root" },
            ] }],
            "filesystems": [
                { "device": BOOT, "format": "vfat", "label": "BOOT", "path": "/boot", "wipeFilesystem": true },
                { "device": ROOT, "format": "ext4", "label": "windlass-root", "path": "/", "wipeFilesystem": true },
            ],
        },
    })
}

fn read(config: &Path) -> Result<Value, Error> {
    let text = fs::read_to_string(config).map_err(Error::file("reading", config))?;
    serde_json::from_str(&text).map_err(|error| Error::file("reading", config)(error.into()))
}

fn typed(config: &Path) -> Result<Config, Error> {
    let origin = || config.display().to_string();
    ignition::typed(&read(config)?).map_err(|source| Error::Config { origin: origin(), source })
}

/// Puts the usual layout beneath what the config says, unless it lays out a root of its own.
pub(super) fn lay_out(disk: &str, config: &Path) -> Result<(), Error> {
    if root(config).is_ok() {
        return Ok(());
    }
    let merged = ignition::merge(&usual(disk), &read(config)?).to_string();
    let merged = ignition::parse(&merged).map_err(|source| Error::Config {
        origin: "the config and the usual layout, merged".into(),
        source,
    })?;
    fs::write(config, merged.to_string()).map_err(Error::file("writing", config))
}

/// The device and format of the root.
pub(super) fn root(config: &Path) -> Result<(String, String), Error> {
    let found =
        typed(config)?.storage.filesystems.into_iter().find(|f| f.path.as_deref() == Some("/"));
    let found = found.ok_or_else(|| Error::Refused {
        what: "installing".into(),
        reason: "no filesystem of the config has the path /".into(),
    })?;
    Ok((found.device, found.format.unwrap_or_else(|| "ext4".into())))
}

/// The arguments of the installed kernel: where its root is, consoles and what comes on them as now, and what the config
/// asks for.
fn arguments(uuid: &str, line: &str, config: &Config) -> String {
    let keep = |word: &&str| {
        word.starts_with("console=") || word.starts_with("loglevel=") || *word == "quiet"
    };
    let kept = line.split_whitespace().filter(keep);
    let mut words = vec![format!("root=UUID={uuid}")];
    words.extend(kept.map(str::to_owned));
    let line = words.join(" ");
    ignition::kargs::changed(&line, &config.kernel_arguments).unwrap_or(line)
}

/// Copies kernel and initrd to the boot partition and makes it bootable.
pub(super) fn boot_loader(disk: &str, line: &str, config: &Path) -> Result<(), Error> {
    let (device, _) = root(config)?;
    let uuid = HostPrograms.must(&[
        "blkid",
        "--probe",
        "--match-tag",
        "UUID",
        "--output",
        "value",
        &device,
    ])?;
    let arguments = arguments(uuid.trim(), line, &typed(config)?);
    let boot = format!("{SYSROOT}/boot");
    let parts = format!("{SYSROOT}{PARTS}");
    let copy = |from: &str, to: &str| {
        let to = format!("{boot}/{to}");
        if let Some(parent) = Path::new(&to).parent() {
            fs::create_dir_all(parent).map_err(Error::file("making", parent))?;
        }
        fs::copy(format!("{parts}/{from}"), &to).map(drop).map_err(Error::file("writing", &to))
    };
    copy("vmlinuz", "vmlinuz")?;
    copy("initrd.img", "initrd.img")?;
    copy("systemd-bootx64.efi", "EFI/BOOT/BOOTX64.EFI")?;
    let write = |name: &str, text: String| {
        let path = format!("{boot}/{name}");
        if let Some(parent) = Path::new(&path).parent() {
            fs::create_dir_all(parent).map_err(Error::file("making", parent))?;
        }
        fs::write(&path, text).map_err(Error::file("writing", &path))
    };
    write("loader/loader.conf", "default windlass.conf\ntimeout 0\n".into())?;
    let entry =
        format!("title Windlass\nlinux /vmlinuz\ninitrd /initrd.img\noptions {arguments}\n");
    write("loader/entries/windlass.conf", entry)?;
    let serial = if line.contains("console=ttyS0") { "SERIAL 0 115200\n" } else { "" };
    let entry = format!(
        "{serial}DEFAULT windlass\nPROMPT 0\nTIMEOUT 0\nLABEL windlass\n  LINUX /vmlinuz\n  INITRD /initrd.img\n  APPEND {arguments}\n"
    );
    write("syslinux/syslinux.cfg", entry)?;
    HostPrograms.must(&["extlinux", "--install", &format!("{boot}/syslinux")])?;
    let code =
        fs::read(format!("{parts}/gptmbr.bin")).map_err(Error::file("reading", "gptmbr.bin"))?;
    boot_code(disk, &code)
}

/// Writes the code that a BIOS runs, and marks the partition that it goes on with.
fn boot_code(disk: &str, code: &[u8]) -> Result<(), Error> {
    let write = || {
        let mut device = OpenOptions::new().read(true).write(true).open(disk)?;
        let (_, table) = partitions::load(&mut device)?;
        let table = table.map_err(io::Error::other)?;
        let mut table = table.ok_or_else(|| io::Error::other("it has no partition table"))?;
        let boot = table.entries.iter_mut().find(|(_, entry)| entry.label == BOOT_LABEL);
        let (_, boot) =
            boot.ok_or_else(|| io::Error::other("it has no partition windlass-boot"))?;
        boot.attributes |= LEGACY_BOOT;
        partitions::store(&mut device, &table)?;
        device.seek(SeekFrom::Start(0))?;
        device.write_all(&code[..code.len().min(MBR_CODE)])?;
        device.sync_all()
    };
    write().map_err(Error::file("writing boot code to", disk))
}

/// Leaves the disk as one that was unmounted.
pub(super) fn finish(disk: &str) -> Result<(), Error> {
    HostPrograms.must(&["umount", "--recursive", SYSROOT])?;
    HostPrograms.must(&["blockdev", "--flushbufs", disk])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_layout_gives_way_to_a_root_of_the_configs_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let config = json!({ "ignition": { "version": "3.4.0" }, "storage": {
            "disks": [{ "device": "/dev/vda", "partitions": [{ "number": 2, "sizeMiB": 2048 }, { "number": 3, "label": "data" }] }],
        } });
        fs::write(&path, config.to_string()).unwrap();
        lay_out("/dev/vda", &path).unwrap();
        let laid = typed(&path).unwrap();
        let partitions = &laid.storage.disks[0].partitions;
        assert_eq!(partitions.len(), 3);
        assert_eq!(
            (partitions[1].label.as_deref(), partitions[1].size_mib),
            (Some("windlass-root"), Some(2048))
        );
        assert_eq!(root(&path).unwrap(), (ROOT.to_owned(), "ext4".to_owned()));
        let own = json!({ "ignition": { "version": "3.4.0" }, "storage": {
            "filesystems": [{ "device": "/dev/md/root", "format": "xfs", "path": "/" }],
        } });
        fs::write(&path, own.to_string()).unwrap();
        lay_out("/dev/vda", &path).unwrap();
        assert_eq!(typed(&path).unwrap().storage.disks.len(), 0);
    }

    #[test]
    fn consoles_and_wanted_arguments_are_kept() {
        let mut config = Config::default();
        config.kernel_arguments.should_exist = vec!["nosmt".into()];
        let line = "initrd=x console=tty0 quiet console=ttyS0,115200 windlass.install=/dev/vda";
        assert_eq!(
            arguments("12", line, &config),
            "root=UUID=12 console=tty0 quiet console=ttyS0,115200 nosmt"
        );
    }
}

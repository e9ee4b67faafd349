//! Installs to a disk: its default layout and its boot loaders for BIOS and UEFI.

use std::{
    fs::{self, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    path::Path,
};

use ignition::spec::Config;
use sys::{HostPrograms, Programs};

use super::{
    layout::{self, Bootable},
    sysroot::SYSROOT,
    volumes,
};
use crate::{disks::partitions, error::Error};

/// The partition attribute by which BIOS boot code finds its partition.
const LEGACY_BOOT: u64 = 1 << 2;
/// The mount point of boot partitions while they are written.
const BOOT: &str = "/run/windlass/boot";
/// The boot files in the image.
const PARTS: &str = "/usr/lib/windlass/boot";
/// The length of BIOS boot code in the MBR; the disk signature follows.
const MBR_CODE: usize = 440;

/// Adds the default layout to the config, unless the config lays out a root itself.
pub(super) fn lay_out(disk: &str, config: &Path) -> Result<(), Error> {
    let complete = layout::complete(disk, &layout::read(config)?)?.to_string();
    let complete = ignition::parse(&complete).map_err(|source| Error::Config {
        origin: "the config and the usual layout, merged".into(),
        source,
    })?;
    fs::write(config, complete.to_string()).map_err(Error::file("writing", config))
}

/// Returns device and format of the root.
pub(super) fn root(config: &Config) -> Result<(String, String), Error> {
    let filesystem = layout::root(config).ok_or_else(|| Error::Refused {
        what: "installing".into(),
        reason: "no filesystem of the config has the path /".into(),
    })?;
    Ok((filesystem.device.clone(), filesystem.format.clone().unwrap_or_else(|| "ext4".into())))
}

/// Returns the arguments of the installed kernel: its root, the current consoles and log level, and the config's
/// arguments.
fn arguments(root: Vec<String>, line: &str, config: &Config) -> String {
    let is_kept = |word: &&str| {
        word.starts_with("console=") || word.starts_with("loglevel=") || *word == "quiet"
    };
    let words = line.split_whitespace().filter(is_kept).map(str::to_owned);
    let words: Vec<String> = root.into_iter().chain(words).collect();
    let line = words.join(" ");
    ignition::kargs::apply(&line, &config.kernel_arguments).unwrap_or(line)
}

/// Returns the arguments for finding the root: the volumes below it and its UUID.
fn root_arguments(config: &Config, device: &str) -> Result<Vec<String>, Error> {
    let volumes_below = layout::backing(config, device).volumes;
    let mut named = Vec::new();
    for volume in &volumes_below {
        let device = volume.device.as_deref().unwrap_or_default();
        let uuid = HostPrograms.must(&["cryptsetup", "luksUUID", device])?;
        named.push((uuid.trim().to_owned(), volume.name.clone()));
    }
    let network = volumes_below.iter().any(|volume| volume.clevis.needs_network());
    let mut command = vec!["blkid", "--probe", "--match-tag", "UUID"];
    command.extend(["--output", "value", device]);
    let uuid = HostPrograms.must(&command)?;
    let mut words = vec![format!("root=UUID={}", uuid.trim())];
    words.extend(volumes::arguments(&named, network));
    Ok(words)
}

/// Copies kernel and initrd to each boot partition and makes it bootable.
pub(super) fn boot_loader(line: &str, config: &Config) -> Result<(), Error> {
    let (device, _) = root(config)?;
    let arguments = arguments(root_arguments(config, &device)?, line, config);
    let code = format!("{SYSROOT}{PARTS}/gptmbr.bin");
    let code = fs::read(&code).map_err(Error::file("reading", &code))?;
    for bootable in layout::bootable(config) {
        fs::create_dir_all(BOOT).map_err(Error::file("making", BOOT))?;
        HostPrograms.must(&["mount", "-t", "vfat", &bootable.device(), BOOT])?;
        fill(line, &arguments)?;
        HostPrograms.must(&["umount", BOOT])?;
        boot_code(&bootable, &code)?;
    }
    Ok(())
}

/// Writes the files for UEFI and BIOS to the mounted partition.
fn fill(line: &str, arguments: &str) -> Result<(), Error> {
    let write = |name: &str, contents: &[u8]| {
        let path = format!("{BOOT}/{name}");
        if let Some(parent) = Path::new(&path).parent() {
            fs::create_dir_all(parent).map_err(Error::file("making", parent))?;
        }
        fs::write(&path, contents).map_err(Error::file("writing", &path))
    };
    for (from, to) in [
        ("vmlinuz", "vmlinuz"),
        ("initrd.img", "initrd.img"),
        ("systemd-bootx64.efi", "EFI/BOOT/BOOTX64.EFI"),
    ] {
        let from = format!("{SYSROOT}{PARTS}/{from}");
        write(to, &fs::read(&from).map_err(Error::file("reading", &from))?)?;
    }
    write("loader/loader.conf", b"default windlass.conf\ntimeout 0\n")?;
    let entry =
        format!("title Windlass\nlinux /vmlinuz\ninitrd /initrd.img\noptions {arguments}\n");
    write("loader/entries/windlass.conf", entry.as_bytes())?;
    let serial = if line.contains("console=ttyS0") { "SERIAL 0 115200\n" } else { "" };
    let entry = format!(
        "{serial}DEFAULT windlass\nPROMPT 0\nTIMEOUT 0\n\
         LABEL windlass\n  LINUX /vmlinuz\n  INITRD /initrd.img\n  APPEND {arguments}\n"
    );
    write("syslinux/syslinux.cfg", entry.as_bytes())?;
    HostPrograms.must(&["extlinux", "--install", &format!("{BOOT}/syslinux")])?;
    Ok(())
}

/// Writes the BIOS boot code and marks the partition that it boots.
fn boot_code(bootable: &Bootable, code: &[u8]) -> Result<(), Error> {
    let Bootable { disk, label } = bootable;
    let write = || {
        let mut device = OpenOptions::new().read(true).write(true).open(disk)?;
        let (_, table) = partitions::load(&mut device)?;
        let table = table.map_err(io::Error::other)?;
        let mut table = table.ok_or_else(|| io::Error::other("it has no partition table"))?;
        let boot = table.entries.iter_mut().find(|(_, entry)| entry.label == *label);
        let missing = || io::Error::other(format!("it has no partition {label}"));
        let (_, boot) = boot.ok_or_else(missing)?;
        boot.attributes |= LEGACY_BOOT;
        partitions::store(&mut device, &table)?;
        device.seek(SeekFrom::Start(0))?;
        device.write_all(&code[..code.len().min(MBR_CODE)])?;
        device.sync_all()
    };
    write().map_err(Error::file("writing boot code to", disk))
}

/// Unmounts the root and flushes the disk.
pub(super) fn finish(disk: &str) -> Result<(), Error> {
    HostPrograms.must(&["umount", "--recursive", SYSROOT])?;
    HostPrograms.must(&["blockdev", "--flushbufs", disk])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_consoles_and_adds_wanted_arguments() {
        let mut config = Config::default();
        config.kernel_arguments.should_exist = vec!["nosmt".into()];
        let line = "initrd=x console=tty0 quiet console=ttyS0,115200 windlass.install=/dev/vda";
        assert_eq!(
            arguments(vec!["root=UUID=12".into()], line, &config),
            "root=UUID=12 console=tty0 quiet console=ttyS0,115200 nosmt"
        );
    }
}

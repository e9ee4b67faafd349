//! The disk of a session: waits for its device, creates a file system on an empty one, and mounts it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

use super::target::Target;
use crate::{error::Error, program::VolumePrograms};

/// The time for a device to appear after the login.
const DEVICE: Duration = Duration::from_secs(10);

/// The exit code of `blkid` for a device without a known content.
const EMPTY: i32 = 2;

/// Waits for the device of a disk.
pub(crate) async fn find(programs: &VolumePrograms, target: &Target) -> Result<PathBuf, Error> {
    let links = programs.device_links();
    let end = Instant::now() + DEVICE;
    loop {
        for portal in &target.portals {
            let name = target.link(portal);
            let exact = links.join(&name);
            // Offloading cards put their own address in front.
            let found = if exact.exists() { Some(exact) } else { with_ending(&links, &name) };
            if let Some(device) = found.and_then(|link| fs::canonicalize(link).ok()) {
                return Ok(multipath(&device).unwrap_or(device));
            }
        }
        if Instant::now() >= end {
            return Err(Error::IscsiDevice(links.join(target.directory())));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn with_ending(links: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(links).into_iter().flatten().flatten();
    let mut matching = entries.map(|entry| entry.path()).filter(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with("pci-") && file.ends_with(name)
    });
    matching.next()
}

/// Returns the multipath device that has taken a device over.
fn multipath(device: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir("/sys/block").ok()?.flatten();
    let mut mappers = entries.map(|entry| entry.path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("dm-"))
    });
    let name = device.file_name()?;
    let mapper = mappers.find(|path| path.join("slaves").join(name).exists())?;
    Some(Path::new("/dev").join(mapper.file_name()?))
}

/// The way to mount a disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskMount<'a> {
    pub(crate) device: &'a str,
    pub(crate) at: &'a str,
    pub(crate) fs_type: &'a str,
    pub(crate) read_only: bool,
    pub(crate) options: &'a [String],
}

impl DiskMount<'_> {
    /// Mounts the disk. Creates a file system on an empty one, unless it is read-only.
    pub(crate) async fn run(&self, programs: &VolumePrograms) -> Result<(), Error> {
        let query = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", self.device];
        match programs.run("blkid", &query).await {
            Ok(_) if self.read_only => {}
            Ok(_) => self.check(programs).await,
            Err(error) if error.code() == Some(EMPTY) && !self.read_only => {
                self.make(programs).await?;
            }
            Err(error) => return Err(error.into()),
        }
        let mode = if self.read_only { "ro" } else { "rw" };
        let options = self.options.iter().map(String::as_str).chain([mode, "defaults"]);
        let options = options.collect::<Vec<_>>().join(",");
        let arguments = ["-t", self.fs_type, "-o", &options, self.device, self.at];
        programs.run("mount", &arguments).await?;
        Ok(())
    }

    async fn make(&self, programs: &VolumePrograms) -> Result<(), Error> {
        let program = format!("mkfs.{}", self.fs_type);
        // As upstream: no blocks are reserved for root.
        let flags: &[&str] = match self.fs_type {
            "ext3" | "ext4" => &["-F", "-m0"],
            "xfs" => &["-f"],
            _ => &[],
        };
        programs.run(&program, &[flags, &[self.device]].concat()).await?;
        Ok(())
    }

    /// Repairs the file system, as upstream. The mount reports what cannot be repaired.
    async fn check(&self, programs: &VolumePrograms) {
        if let Err(error) = programs.run("fsck", &["-a", self.device]).await {
            tracing::warn!(device = self.device, %error, "check the file system of an iSCSI disk");
        }
    }
}

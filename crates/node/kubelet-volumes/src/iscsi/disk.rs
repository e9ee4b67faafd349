//! The disk of a session: waits for its device.

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

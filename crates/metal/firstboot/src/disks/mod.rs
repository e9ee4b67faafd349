//! The disks stage: creates partitions, arrays, encrypted volumes and filesystems, in this order.

pub(crate) mod clevis;
mod contents;
mod filesystems;
mod luks;
pub(crate) mod partitions;
mod raid;
pub(crate) mod state;

use std::path::Path;

use ignition::spec::Config;

use self::state::State;
use crate::{context::Context, device::wait_for_device, error::Error, fetch::Fetcher};

pub(crate) async fn run(
    context: &Context,
    config: &Config,
    fetcher: &Fetcher,
) -> Result<(), Error> {
    let storage = &config.storage;
    for disk in &storage.disks {
        wait_for_device(context.device_timeout, &disk.device)?;
        partitions::apply(context, disk)?;
    }
    settle(context);
    for array in &storage.raid {
        array
            .devices
            .iter()
            .try_for_each(|device| wait_for_device(context.device_timeout, device))?;
        raid::apply(context, array)?;
    }
    settle(context);
    let mut state = State::default();
    for volume in &storage.luks {
        wait_for_device(context.device_timeout, volume.device.as_deref().unwrap_or_default())?;
        luks::apply(context, volume, fetcher, &mut state).await?;
    }
    state.save(&context.state_file)?;
    settle(context);
    for filesystem in &storage.filesystems {
        wait_for_device(context.device_timeout, &filesystem.device)?;
        filesystems::apply(context, filesystem)?;
    }
    settle(context);
    Ok(())
}

/// Waits until udev has created the links to devices. Without udev, only kernel names exist.
fn settle(context: &Context) {
    if Path::new("/run/udev/control").exists()
        && let Err(error) = context.programs.must(&["udevadm", "settle", "--timeout=60"])
    {
        tracing::warn!(%error, "waiting for udev failed");
    }
}

//! The disks stage: creates partitions, arrays, encrypted volumes and filesystems, in this order.

pub(crate) mod clevis;
mod filesystems;
mod luks;
pub(crate) mod partitions;
mod raid;

use std::{path::Path, time::Duration};

use tokio::time::Instant;

use ignition::spec::Config;
use serde_json::Value;

pub(crate) use luks::State;

use crate::{Error, fetch::Fetcher, stages::Context};

pub(crate) async fn run(
    context: &Context,
    config: &Config,
    fetcher: &Fetcher,
) -> Result<(), Error> {
    let storage = &config.storage;
    for disk in &storage.disks {
        appear(context.patience, &disk.device)?;
        partitions::apply(context, disk)?;
    }
    settle(context);
    for array in &storage.raid {
        array.devices.iter().try_for_each(|device| appear(context.patience, device))?;
        raid::apply(context, array)?;
    }
    settle(context);
    let mut state = State::default();
    for volume in &storage.luks {
        appear(context.patience, volume.device.as_deref().unwrap_or_default())?;
        luks::apply(context, volume, fetcher, &mut state).await?;
    }
    state.keep(&context.state_file)?;
    settle(context);
    for filesystem in &storage.filesystems {
        appear(context.patience, &filesystem.device)?;
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

/// Waits until a device exists.
pub(crate) fn appear(patience: Duration, device: &str) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    while !Path::new(device).exists() {
        if Instant::now() >= deadline {
            let seconds = patience.as_secs();
            return Err(Error::NoDevice { device: device.to_owned(), seconds });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The contents of a device according to blkid.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contents {
    kind: String,
    label: String,
    uuid: String,
}

/// Returns the contents of a device. If it has several signatures, `wanted` is preferred.
fn contents(context: &Context, device: &str, wanted: &str) -> Result<Contents, Error> {
    let command = ["blkid", "--probe", "--output", "export", device];
    let output = context.programs.run(&command, &[])?;
    match output.code {
        Some(0) => {}
        // The device is empty.
        Some(2) => return Ok(Contents::default()),
        Some(8) => return remains(context, device, wanted),
        _ => {
            let reason = format!("blkid cannot identify its contents: {}", output.stderr.trim());
            return Err(Error::Refused { what: device.to_owned(), reason });
        }
    }
    let field = |name: &str| {
        let mut lines = output.stdout.lines().filter_map(|line| line.split_once('='));
        lines
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.replace('\\', ""))
            .unwrap_or_default()
    };
    // Partition tables are reported in PTTYPE.
    let kind = [field("TYPE"), field("PTTYPE")]
        .into_iter()
        .find(|kind| !kind.is_empty())
        .unwrap_or_default();
    Ok(Contents { kind, label: field("LABEL"), uuid: field("UUID") })
}

/// Returns the signature of the wanted type, or else the first one.
fn remains(context: &Context, device: &str, wanted: &str) -> Result<Contents, Error> {
    let output = context.programs.must(&["wipefs", "--json", device])?;
    let found: Value = serde_json::from_str(&output).map_err(|error| Error::Refused {
        what: device.to_owned(),
        reason: format!("the output of wipefs is not JSON: {error}"),
    })?;
    let signatures = found["signatures"].as_array().map(Vec::as_slice).unwrap_or_default();
    let chosen = signatures.iter().find(|one| one["type"] == wanted).or(signatures.first());
    let field =
        |name: &str| chosen.and_then(|one| one[name].as_str()).unwrap_or_default().to_owned();
    Ok(Contents { kind: field("type"), label: field("label"), uuid: field("uuid") })
}

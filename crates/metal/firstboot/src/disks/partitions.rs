//! Reads and writes partition tables.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileTypeExt, MetadataExt},
};

use ignition::{
    gpt::{Geometry, GptError, Guid, Table},
    partition,
    spec::Disk,
};

use crate::{context::Context, error::Error};

pub(super) fn apply(context: &Context, disk: &Disk) -> Result<(), Error> {
    let failed = |operation| Error::file(operation, &disk.device);
    let device = OpenOptions::new().read(true).write(true).open(&disk.device);
    let mut device = device.map_err(failed("opening"))?;
    let refused = |source| Error::Partition { device: disk.device.clone(), source };
    let (geometry, current) = load(&mut device).map_err(failed("reading"))?;
    let current = match current {
        // A table that will be wiped may be damaged.
        Err(_) if disk.wipe_table == Some(true) => None,
        current => current.map_err(|error| refused(error.into()))?,
    };
    let empty = Table::empty(geometry, random_guid()).map_err(|error| refused(error.into()))?;
    let table = partition::plan(current.as_ref(), empty, disk, random_guid).map_err(refused)?;
    // A recreated table keeps the disk's GUID.
    let table = match &current {
        Some(old) if old.entries == table.entries => Table { guid: old.guid, ..table },
        _ => table,
    };
    let none = current.is_none() && table.entries.is_empty() && disk.wipe_table != Some(true);
    if current.as_ref() == Some(&table) || none {
        tracing::info!(device = disk.device, "the partition table needs no change");
        return Ok(());
    }
    tracing::info!(
        device = disk.device,
        partitions = table.entries.len(),
        "writing the partition table"
    );
    if disk.wipe_table == Some(true) {
        release(context, &disk.device)?;
    }
    store(&mut device, &table).map_err(failed("writing the partition table of"))?;
    read_again(context, &device, &disk.device)
}

/// Stops RAID arrays on partitions that will be wiped. udev has assembled them, and the kernel would keep the old
/// table.
fn release(context: &Context, device: &str) -> Result<(), Error> {
    let Ok(real) = std::fs::canonicalize(device) else { return Ok(()) };
    let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let listed = |path: String| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    for part in listed(format!("/sys/class/block/{name}")) {
        let holders = listed(format!("/sys/class/block/{name}/{part}/holders"));
        for array in holders.iter().filter(|holder| holder.starts_with("md")) {
            tracing::info!(device, array, "stopping an array on a wiped partition");
            context.programs.must(&["mdadm", "--stop", &format!("/dev/{array}")])?;
        }
    }
    Ok(())
}

/// Reads the disk's size and its table, if it has one.
pub(crate) fn load(device: &mut File) -> io::Result<(Geometry, Result<Option<Table>, GptError>)> {
    let geometry = geometry(device)?;
    Ok((geometry, Table::read(geometry, |at, length| read(device, at, length))?))
}

pub(crate) fn store(device: &mut File, table: &Table) -> io::Result<()> {
    table.writes().iter().try_for_each(|(at, bytes)| write(device, *at, bytes))?;
    device.sync_all()
}

fn random_guid() -> Guid {
    Guid(*uuid::Uuid::new_v4().as_bytes())
}

fn geometry(device: &mut File) -> io::Result<Geometry> {
    let size = device.seek(SeekFrom::End(0))?;
    let metadata = device.metadata()?;
    let mut sector = 512;
    if metadata.file_type().is_block_device() {
        let (major, minor) =
            (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        let path = format!("/sys/dev/block/{major}:{minor}/queue/logical_block_size");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        sector = text.trim().parse().unwrap_or(sector);
    }
    Ok(Geometry { sector, sectors: size / sector })
}

fn read(device: &mut File, at: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(length);
    device.seek(SeekFrom::Start(at))?;
    device.take(length as u64).read_to_end(&mut out)?;
    Ok(out)
}

fn write(device: &mut File, at: u64, bytes: &[u8]) -> io::Result<()> {
    device.seek(SeekFrom::Start(at))?;
    device.write_all(bytes)
}

/// Makes the kernel read the table again. If a partition is in use, only changes of other partitions are applied.
fn read_again(context: &Context, device: &File, name: &str) -> Result<(), Error> {
    if !device.metadata().map_err(Error::file("looking at", name))?.file_type().is_block_device() {
        return Ok(());
    }
    match sys::read_partitions_again(device) {
        Ok(()) => Ok(()),
        Err(error) => {
            tracing::warn!(
                %error,
                device = name,
                "the kernel cannot read the table again; updating the changed partitions"
            );
            context.programs.must(&["partx", "--update", name])?;
            Ok(())
        }
    }
}

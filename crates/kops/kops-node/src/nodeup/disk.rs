//! Formats, checks and mounts the block device of an etcd volume. [`kops_core::volumes`] decides; a disk whose content
//! is not known is left alone.
//!
//! Invariant: nodeup may be killed at any moment. A new file system is made in an image beside the disk, and copied.
//! The disk begins with a mark until the first block with the superblock, which is written last, replaces it. So a disk
//! is blank, marked as unfinished, or complete.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use instances::{AttachedVolume, Machine, machine::VOLUMES};
use kops_core::volumes::{DiskEnds, DiskProbe, FILE_SYSTEM, Preparation, etcd_of, unrepaired};
use sys::{
    HostPrograms, IMAGE_BLOCK, MAKE_EXT4, Programs,
    mount::{HostMounts, Mounts as _},
};

use super::{
    manifest::{make_directory, make_parent},
    writes::Writes,
};
use crate::error::Error;

/// The directory of the image of a new file system, on the machine's own disk.
const SCRATCH: &str = "/opt/kops";
/// The begin of a disk whose file system is not complete. It fills one sector.
const UNFINISHED: &[u8] = b"windlass: the file system of this volume is being created\n";
const SECTOR: usize = 512;
/// The parts of a disk that are read, and in which it is copied, in bytes.
const PART: u64 = 1 << 20;

/// Mounts the volume of an etcd cluster, and returns its directory. A machine of an earlier version has a directory
/// instead of a volume.
pub(super) fn mount_volume(machine: &Machine, etcd: &str) -> Result<PathBuf, Error> {
    if machine.volumes.is_empty() {
        return Ok(PathBuf::from(format!("{VOLUMES}/{}--{etcd}--0", machine.cluster)));
    }
    let volume = find_volume(machine, etcd)?;
    let at = volume.mount_point();
    if HostMounts.is_mount_point(&at)? {
        return Ok(at);
    }
    let disk = Disk {
        id: &volume.id,
        device: volume.make_device()?,
        scratch: Path::new(SCRATCH).join(format!("new-{}.img", volume.id)),
        programs: &HostPrograms,
        writes: Writes::default(),
    };
    disk.prepare()?;
    make_directory(&at)?;
    let (device, target) = (disk.device.display().to_string(), at.display().to_string());
    HostPrograms.must(&["mount", "-t", FILE_SYSTEM, &device, &target])?;
    tracing::info!(volume = volume.id, at = target, "mounted a volume");
    Ok(at)
}

/// Finds the volume of an etcd cluster by its tags.
fn find_volume<'a>(machine: &'a Machine, etcd: &str) -> Result<&'a AttachedVolume, Error> {
    for volume in &machine.volumes {
        let found = etcd_of(&machine.cluster, &volume.tags)
            .map_err(|source| Error::VolumeTags { id: volume.id.clone(), source })?;
        if found == Some(etcd) {
            return Ok(volume);
        }
    }
    Err(Error::MissingVolume { etcd: etcd.to_owned() })
}

/// A block device of a volume.
struct Disk<'a> {
    /// The volume's ID.
    id: &'a str,
    device: PathBuf,
    /// The image in which a new file system is made.
    scratch: PathBuf,
    programs: &'a dyn Programs,
    writes: Writes,
}

impl Disk<'_> {
    fn refusal(&self, reason: String) -> Error {
        Error::Volume { volume: self.id.to_owned(), reason }
    }

    fn file_error(&self, operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let convert = kops_store::Error::file(operation, &path.display().to_string());
        move |error| convert(error).into()
    }

    /// Creates the file system of a blank disk, or checks the file system that it has.
    fn prepare(&self) -> Result<(), Error> {
        let device = self.device.display().to_string();
        let ends = self.ends().map_err(|error| {
            self.refusal(format!(
                "it cannot be read: {error}; see the machine's kernel log (dmesg)"
            ))
        })?;
        let query = ["blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", &device];
        let probe = self.programs.run(&query, &[])?;
        let probe = DiskProbe { code: probe.code, output: probe.stdout + &probe.stderr, ends };
        match probe.preparation() {
            Preparation::Format => self.format(),
            Preparation::Check => {
                let check = self.programs.run(&["fsck.ext4", "-a", &device], &[])?;
                let output = check.stdout + &check.stderr;
                tracing::info!(volume = self.id, output = output.trim(), "checked a file system");
                unrepaired(check.code, &output).map_or(Ok(()), |reason| Err(self.refusal(reason)))
            }
            Preparation::Refuse(reason) => Err(self.refusal(reason)),
        }
    }

    /// Reads both ends of the disk.
    fn ends(&self) -> io::Result<DiskEnds> {
        let disk = File::open(&self.device)?;
        let size = length(&disk)?;
        let mut part = vec![0; usize::try_from(size.min(PART)).unwrap_or_default()];
        let is_blank = |part: &[u8]| part.iter().all(|byte| *byte == 0);
        disk.read_exact_at(&mut part, 0)?;
        if part.starts_with(&unfinished_mark()) {
            return Ok(DiskEnds::Unfinished);
        }
        let begins_blank = is_blank(&part);
        disk.read_exact_at(&mut part, size.saturating_sub(PART))?;
        Ok(if begins_blank && is_blank(&part) { DiskEnds::Blank } else { DiskEnds::Data })
    }

    /// Creates the file system.
    fn format(&self) -> Result<(), Error> {
        tracing::info!(volume = self.id, "creating a file system on a blank volume");
        let failed = || self.file_error("writing", &self.device);
        let disk = File::options().read(true).write(true).open(&self.device).map_err(failed())?;
        let put = |content: &[u8], at| {
            disk.write_all_at(content, at).and_then(|()| disk.sync_all()).map_err(failed())
        };
        self.writes.step("the mark of an unfinished file system", || put(&unfinished_mark(), 0))?;
        let size = length(&disk).map_err(failed())?;
        let image = self.writes.step("the image of a file system", || self.make_image(size))?;
        let read = |content: &mut [u8], at| {
            image.read_exact_at(content, at).map_err(self.file_error("reading", &self.scratch))
        };
        let ranges = sys::data_ranges(&image).map_err(self.file_error("reading", &self.scratch))?;
        for range in ranges {
            let mut at = range.start.max(IMAGE_BLOCK);
            while at < range.end {
                let length = PART.min(range.end - at);
                let mut part = vec![0; usize::try_from(length).unwrap_or_default()];
                read(&mut part, at)?;
                self.writes.step("a part of the file system", || {
                    disk.write_all_at(&part, at).map_err(failed())
                })?;
                at += length;
            }
        }
        disk.sync_all().map_err(failed())?;
        let mut head = vec![0; usize::try_from(IMAGE_BLOCK).unwrap_or_default()];
        read(&mut head, 0)?;
        self.writes.step("the superblock", || put(&head, 0))?;
        self.remove_image()
    }

    /// Makes a file system of the disk's size in an image, which takes little space.
    fn make_image(&self, size: u64) -> Result<File, Error> {
        make_parent(&self.scratch)?;
        self.remove_image()?;
        sys::grow_image(&self.scratch, size - size % IMAGE_BLOCK)?;
        let path = self.scratch.display().to_string();
        self.programs.must(&[&MAKE_EXT4[..], &[&path]].concat())?;
        File::open(&self.scratch).map_err(self.file_error("opening", &self.scratch))
    }

    fn remove_image(&self) -> Result<(), Error> {
        match fs::remove_file(&self.scratch) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.file_error("removing", &self.scratch)(error))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the first sector of a disk whose file system is not complete.
fn unfinished_mark() -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    for (to, from) in sector.iter_mut().zip(UNFINISHED) {
        *to = *from;
    }
    sector
}

/// Returns the size of a disk. The metadata of a block device does not have it.
fn length(disk: &File) -> io::Result<u64> {
    let mut disk = disk;
    io::Seek::seek(&mut disk, io::SeekFrom::End(0))
}

#[cfg(test)]
mod tests;

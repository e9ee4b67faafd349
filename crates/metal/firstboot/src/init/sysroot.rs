//! The root of the system that is booted or installed: mounts it, and unpacks the image into it.

use std::{fs, path::Path};

use sys::{HostPrograms, Programs};

use super::{archive, volumes};
use crate::error::Error;

/// The mount point of the root.
pub(super) const SYSROOT: &str = "/sysroot";
/// The root archive, from the second part of the image.
const ARCHIVE: &str = "/rootfs.cpio.gz";
/// The binary, which only the first part of the image contains but both need.
const BINARY: &str = "/usr/bin/windlass";

/// Mounts a tmpfs as the root.
pub(super) fn mount_memory() -> Result<(), Error> {
    fs::create_dir_all(SYSROOT).map_err(Error::file("making", SYSROOT))?;
    HostPrograms.must(&["mount", "-t", "tmpfs", "-o", "mode=0755,size=80%", "root", SYSROOT])?;
    Ok(())
}

/// Mounts a device as the root, once it exists.
pub(super) fn mount(device: &str, format: &str, options: &str) -> Result<(), Error> {
    volumes::wait_for_device(device, &HostPrograms)?;
    fs::create_dir_all(SYSROOT).map_err(Error::file("making", SYSROOT))?;
    HostPrograms.must(&["mount", "-t", format, "-o", options, device, SYSROOT])?;
    Ok(())
}

/// Unpacks the root archive and returns the number of entries.
pub(super) fn unpack() -> Result<usize, Error> {
    let archive = Path::new(ARCHIVE);
    if !archive.exists() {
        let reason =
            "the image's second part, rootfs.img, was not loaded; name it as another initrd"
                .to_owned();
        return Err(Error::Refused { what: ARCHIVE.to_owned(), reason });
    }
    let count = archive::unpack(archive, Path::new(SYSROOT))?;
    // Free its memory for the following stages.
    fs::remove_file(archive).map_err(Error::file("removing", archive))?;
    let to = format!("{SYSROOT}{BINARY}");
    fs::copy(BINARY, &to).map_err(Error::file("copying the binary to", &to))?;
    Ok(count)
}

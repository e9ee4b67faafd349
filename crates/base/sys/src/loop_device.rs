//! Loop devices: block devices whose content is an image file.
//!
//! The devices have numbers of their own, and no name in `/dev`: machines on this host share `/dev`, and must not find
//! the disks of others there. The holder of a device makes a node for it with [`make_block_device`].
//!
//! The kernel is the only state: an image that is attached is found by its path.

use std::{
    fs::{self, File},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::stat::{Mode, SFlag, makedev, mknod},
};

use crate::{
    error::Error,
    program::{ProgramError, Programs},
};

/// The major number of loop devices.
pub const LOOP_MAJOR: u32 = 7;
/// The numbers of the devices. `losetup --find` and `mount -o loop` take the lowest free numbers.
const NUMBERS: std::ops::Range<u32> = 4096..1 << 16;
const CONTROL: &str = "/dev/loop-control";
const BLOCKS: &str = "/sys/block";

/// The error of attaching or detaching an image.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    #[error(transparent)]
    File(#[from] Error),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("{} is attached to loop device {number} already; end the process that uses it", image.display())]
    Attached { image: PathBuf, number: u32 },
    #[error("another process attaches {} now", .0.display())]
    Busy(PathBuf),
    #[error("this host has no free loop device; see `losetup --list`")]
    NoneFree,
}

mod ioctl {
    // linux/loop.h: the argument is the number of the device.
    nix::ioctl_write_int_bad!(loop_ctl_add, 0x4c80);
    nix::ioctl_write_int_bad!(loop_ctl_remove, 0x4c81);
}

/// Adds a loop device to the kernel; fails if it exists.
fn add(control: &File, number: u32) -> nix::Result<()> {
    // SAFETY: the descriptor is open during the call, and the kernel accesses no memory of this process.
    #[expect(unsafe_code, reason = "see above")]
    let result = unsafe { ioctl::loop_ctl_add(control.as_raw_fd(), number.cast_signed()) };
    result.map(drop)
}

/// Removes a loop device without an image from the kernel.
fn remove(control: &File, number: u32) {
    // SAFETY: the descriptor is open during the call, and the kernel accesses no memory of this process.
    #[expect(unsafe_code, reason = "see above")]
    let result = unsafe { ioctl::loop_ctl_remove(control.as_raw_fd(), number.cast_signed()) };
    if let Err(error) = result {
        tracing::debug!(number, %error, "a loop device stays without an image");
    }
}

fn open_control() -> Result<File, Error> {
    let path = Path::new(CONTROL);
    File::options().read(true).write(true).open(path).map_err(Error::at("open", path))
}

/// The name of a device in `/dev`, which exists only while the device is configured.
struct Node(PathBuf);

impl Node {
    fn make(number: u32) -> Result<Self, Error> {
        let path = PathBuf::from(format!("/dev/loop{number}"));
        make_block_device(&path, LOOP_MAJOR, number)?;
        Ok(Self(path))
    }

    fn shown(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove the name of a loop device");
        }
    }
}

/// Makes the node of a block device that only root may use, unless it exists.
pub fn make_block_device(path: &Path, major: u32, minor: u32) -> Result<(), Error> {
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    match mknod(path, SFlag::S_IFBLK, mode, makedev(major.into(), minor.into())) {
        Err(nix::Error::EEXIST) | Ok(()) => Ok(()),
        Err(error) => Err(Error::at("make device", path)(error.into())),
    }
}

/// Attaches an image to a new loop device, and returns its number. An image has one device at a time.
pub fn attach_image(image: &Path, programs: &dyn Programs) -> Result<u32, LoopError> {
    // Another process that attaches the image at the same time sees the lock, or the device. The end of the guard
    // unlocks the file even if a child process that was forked meanwhile has it open too.
    let file = File::open(image).map_err(Error::at("open", image))?;
    let _lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((_, nix::Error::EWOULDBLOCK)) => return Err(LoopError::Busy(image.to_owned())),
        Err((_, error)) => return Err(Error::at("lock", image)(error.into()).into()),
    };
    if let Some(device) = attached_images(image)?.into_iter().next() {
        return Err(LoopError::Attached { image: image.to_owned(), number: device.number });
    }
    let control = open_control()?;
    let number = NUMBERS.into_iter().find_map(|number| match add(&control, number) {
        Ok(()) => Some(Ok(number)),
        Err(nix::Error::EEXIST) => None,
        Err(error) => {
            Some(Err(Error::at("add a loop device by", Path::new(CONTROL))(error.into())))
        }
    });
    let number = number.ok_or(LoopError::NoneFree)??;
    let configured = Node::make(number).map_err(LoopError::from).and_then(|node| {
        programs.must(&["losetup", &node.shown(), &image.display().to_string()])?;
        Ok(number)
    });
    if configured.is_err() {
        remove(&control, number);
    }
    configured
}

/// A loop device with an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedImage {
    /// The number of the device.
    pub number: u32,
    /// The path of the image when it was attached. It may have been deleted since.
    pub image: PathBuf,
}

/// Returns the loop devices of the images at and below a path.
pub fn attached_images(path: &Path) -> Result<Vec<AttachedImage>, Error> {
    let (blocks, path) = (Path::new(BLOCKS), real_path(path));
    let entries = fs::read_dir(blocks).map_err(Error::at("list", blocks))?;
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("loop")?.parse().ok()?;
            // The file exists only while the device has an image.
            let text = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            let text = text.strip_suffix('\n').unwrap_or(&text);
            let image = PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(text));
            image.starts_with(&path).then_some(AttachedImage { number, image })
        })
        .collect();
    found.sort_by_key(|device| device.number);
    Ok(found)
}

/// Returns a path without links, as the kernel shows it. Its last parts may be missing.
fn real_path(path: &Path) -> PathBuf {
    match (fs::canonicalize(path), path.parent(), path.file_name()) {
        (Ok(real), ..) => real,
        (Err(_), Some(parent), Some(name)) => real_path(parent).join(name),
        _ => path.to_owned(),
    }
}

/// Removes a loop device from the kernel that [`detach_images`] returned as in use, after its last user has ended.
pub fn remove_loop_device(number: u32) -> Result<(), Error> {
    remove(&open_control()?, number);
    Ok(())
}

/// Detaches the images at and below a path, and returns the devices that are still in use. The kernel detaches those
/// when their last user ends.
pub fn detach_images(
    path: &Path,
    programs: &dyn Programs,
) -> Result<Vec<AttachedImage>, LoopError> {
    let devices = attached_images(path)?;
    if devices.is_empty() {
        return Ok(devices);
    }
    let control = open_control()?;
    for device in devices {
        let node = Node::make(device.number)?;
        let detached = programs.must(&["losetup", "--detach", &node.shown()]);
        drop(node);
        let is_attached = attached_images(&device.image)?.contains(&device);
        match detached {
            Err(error) if is_attached => return Err(error.into()),
            _ if !is_attached => remove(&control, device.number),
            _ => {}
        }
    }
    Ok(attached_images(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{image::grow_image, program::HostPrograms};

    #[test]
    fn attaches_an_image_once_and_without_a_name() {
        if !nix::unistd::geteuid().is_root() || !Path::new(CONTROL).exists() {
            eprintln!("skipped: only root attaches loop devices");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let linked = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &linked).unwrap();
        let image = dir.path().join("disk.img");
        grow_image(&image, 1 << 20).unwrap();
        let number = attach_image(&image, &HostPrograms).unwrap();
        assert!(!Path::new(&format!("/dev/loop{number}")).exists());
        let twice = attach_image(&linked.join("disk.img"), &HostPrograms).unwrap_err();
        assert!(matches!(twice, LoopError::Attached { .. }), "{twice}");
        let node = dir.path().join("node");
        make_block_device(&node, LOOP_MAJOR, number).unwrap();
        // A user keeps the device attached, even if the file is deleted.
        let user = File::open(&node).unwrap();
        fs::remove_file(&image).unwrap();
        let left = detach_images(dir.path(), &HostPrograms).unwrap();
        assert_eq!(left, [AttachedImage { number, image: image.clone() }]);
        grow_image(&image, 1 << 20).unwrap();
        attach_image(&image, &HostPrograms).unwrap_err();
        drop(user);
        assert_eq!(detach_images(dir.path(), &HostPrograms).unwrap(), []);
        remove_loop_device(number).unwrap();
        assert!(!Path::new(BLOCKS).join(format!("loop{number}")).exists());
        let again = attach_image(&image, &HostPrograms).unwrap();
        assert_eq!(detach_images(&image, &HostPrograms).unwrap(), []);
        assert!(!Path::new(BLOCKS).join(format!("loop{again}")).exists());
    }
}

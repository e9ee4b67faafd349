//! Images of local volumes: sparse files of the volume's size that hold its file system, or are its block device.
//!
//! A container cannot write more than the image's size. A project quota does not give that: a file's owner can change
//! the file's project.
//!
//! The files and the kernel's loop devices are the only state, so a restarted kubelet finds all of it. The caller
//! serializes the operations on one volume.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use pod_core::paths::DIRECTORY_MODE;
use sys::mount::Mounts;

use crate::{disk::DiskMount, error::Error, program::VolumePrograms, volumes::local_directory};

/// The file system of new volumes.
pub(crate) const FILE_SYSTEM: &str = "ext4";

// No volume's name begins with a dot.
/// The directory of complete images.
const IMAGES: &str = ".images";
/// The directory of images whose file system may be incomplete.
const NEW: &str = ".new";
/// The directory with an empty file for each image that may have a loop device without a mount.
const DEVICES: &str = ".devices";

/// The mode of a new volume, which containers of any user must be able to write.
pub(crate) const MODE: u32 = 0o777;

/// The image of one local volume.
pub(crate) struct Image<'a> {
    /// The directory of local volumes.
    pub(crate) root: &'a Path,
    /// The PersistentVolume's name.
    pub(crate) name: &'a str,
    pub(crate) programs: &'a VolumePrograms,
    pub(crate) mounts: &'a dyn Mounts,
}

impl Image<'_> {
    fn file(&self, directory: &str) -> PathBuf {
        self.root.join(directory).join(self.name)
    }

    /// Returns the path at which the file system is mounted.
    fn mount_point(&self) -> PathBuf {
        self.root.join(self.name)
    }

    /// Reports whether the volume is a directory of an earlier version, which has no image.
    pub(crate) fn is_directory(&self) -> bool {
        let has_files =
            || fs::read_dir(self.mount_point()).is_ok_and(|mut all| all.next().is_some());
        !self.file(IMAGES).exists() && !self.file(NEW).exists() && has_files()
    }

    /// Mounts the file system. Creates it at the first use, and expands it before the mount if it `grows`.
    pub(crate) async fn mount(
        &self,
        size: u64,
        options: &[String],
        grows: bool,
    ) -> Result<(), Error> {
        let at = self.mount_point();
        let (image, is_mounted) = (self.file(IMAGES), self.mounts.is_mount_point(&at)?);
        if image.exists() && is_mounted {
            return Ok(());
        }
        let options: Vec<String> =
            ["loop", "discard"].into_iter().map(str::to_owned).chain(options.to_vec()).collect();
        sys::make_directories(&at, 0o755).map_err(Error::file("create directory", &at))?;
        let at = text(&at);
        let disk = |device| DiskMount {
            device,
            at: &at,
            fs_type: FILE_SYSTEM,
            read_only: false,
            options: &options,
        };
        if image.exists() {
            let device = text(&image);
            // A check would damage a file system that the kernel still has mounted.
            if self.devices().await?.is_empty() {
                disk(&device).check(self.programs).await;
                if grows {
                    self.resize_unmounted(size).await?;
                }
            }
            return disk(&device).mount(self.programs).await;
        }
        if is_mounted {
            // The kubelet ended before the file system was complete.
            self.programs.run("umount", &[&at]).await?;
        }
        let new = self.file(NEW);
        resize(&new, size)?;
        let device = text(&new);
        self.make(&device).await?;
        disk(&device).mount(self.programs).await?;
        self.open_to_all()?;
        self.complete(&new)
    }

    /// Creates the file system in a sparse file, which takes almost no space.
    async fn make(&self, device: &str) -> Result<(), Error> {
        let [program, arguments @ ..] = &sys::MAKE_EXT4;
        self.programs.run(program, &[&arguments[..], &[device]].concat()).await?;
        Ok(())
    }

    /// Expands the file system while it is not mounted. A kubelet without CAP_SYS_RESOURCE cannot do it later.
    async fn resize_unmounted(&self, size: u64) -> Result<(), Error> {
        let image = self.file(IMAGES);
        resize(&image, size)?;
        // `resize2fs` requires a complete check, whose exit code is 1 after any repair.
        let device = text(&image);
        if let Err(error) = self.programs.run("fsck.ext4", &["-f", "-p", &device]).await {
            tracing::warn!(volume = self.name, %error, "check a file system");
        }
        self.programs.run("resize2fs", &[&device]).await?;
        Ok(())
    }

    /// Lets containers of any user write to a new file system, which looks like an empty directory to them.
    fn open_to_all(&self) -> Result<(), Error> {
        let at = self.mount_point();
        fs::set_permissions(&at, fs::Permissions::from_mode(MODE))
            .map_err(Error::file("set the mode of", &at))?;
        // Programs such as `initdb` refuse directories with entries. `fsck` creates it again if it needs it.
        let lost = at.join("lost+found");
        match fs::remove_dir(&lost) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::file("remove", &lost)(error))
            }
            _ => Ok(()),
        }
    }

    fn complete(&self, new: &Path) -> Result<(), Error> {
        let image = self.file(IMAGES);
        make_parent(&image)?;
        fs::rename(new, &image).map_err(Error::file("rename", new))
    }

    /// Attaches the image to a loop device and returns the device. Creates the image at the first use.
    pub(crate) async fn attach(&self, size: u64) -> Result<PathBuf, Error> {
        let (image, mark) = (self.file(IMAGES), self.file(DEVICES));
        if !image.exists() {
            let new = self.file(NEW);
            resize(&new, size)?;
            self.complete(&new)?;
        }
        make_parent(&mark)?;
        fs::write(&mark, "").map_err(Error::file("write", &mark))?;
        if let Some(device) = self.devices().await?.into_iter().next() {
            return Ok(device.into());
        }
        let device = self.programs.run("losetup", &["--find", "--show", &text(&image)]).await?;
        Ok(device.trim().into())
    }

    /// Expands the image, its loop devices and its file system. The volume may be in use.
    pub(crate) async fn grow(&self, size: u64, is_block: bool) -> Result<(), Error> {
        resize(&self.file(IMAGES), size)?;
        for device in self.devices().await? {
            self.programs.run("losetup", &["--set-capacity", &device]).await?;
            if !is_block {
                self.programs.run("resize2fs", &[&device]).await?;
            }
        }
        Ok(())
    }

    /// Unmounts the volume and detaches its loop devices. Fails if the volume is in use.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        let at = self.mount_point();
        if self.mounts.is_mount_point(&at)? {
            // Not a lazy unmount, so that the next mount finds a consistent image.
            self.programs.run("umount", &[&text(&at)]).await?;
        }
        let mark = self.file(DEVICES);
        if mark.exists() {
            for device in self.devices().await? {
                self.programs.run("losetup", &["--detach", &device]).await?;
            }
            fs::remove_file(&mark).map_err(Error::file("remove", &mark))?;
        }
        Ok(())
    }

    /// Removes a released image.
    pub(crate) fn remove(&self) -> Result<(), sys::Error> {
        let directories = [IMAGES, NEW].map(|directory| self.root.join(directory));
        directories.iter().try_for_each(|at| sys::remove_beneath(at, self.name))
    }

    /// Returns the loop devices of the image.
    async fn devices(&self) -> Result<Vec<String>, Error> {
        let image = text(&self.file(IMAGES));
        let arguments = ["--associated", &image, "--output", "NAME", "--noheadings"];
        let output = self.programs.run("losetup", &arguments).await?;
        Ok(output.split_whitespace().map(str::to_owned).collect())
    }
}

/// Returns the names of the volumes that are mounted or may have a loop device.
pub(crate) fn active(root: &Path, mounts: &dyn Mounts) -> Result<Vec<String>, Error> {
    let below = mounts.below(root)?;
    let mounted =
        below.iter().filter(|at| at.parent() == Some(root)).filter_map(|at| at.file_name());
    let mut names: Vec<String> = mounted.map(|name| name.to_string_lossy().into_owned()).collect();
    names.extend(marked(root));
    names.sort();
    names.dedup();
    Ok(names)
}

fn marked(root: &Path) -> Vec<String> {
    let marks = fs::read_dir(root.join(DEVICES)).into_iter().flatten().flatten();
    marks.map(|mark| mark.file_name().to_string_lossy().into_owned()).collect()
}

/// Detaches the loop devices of all block volumes below a kubelet's directory, after the kubelet and its Pods ended.
/// Returns the errors.
pub async fn detach_block_volumes(kubelet: &Path) -> Vec<Error> {
    let root = local_directory(kubelet);
    let (programs, mounts) = (VolumePrograms::default(), sys::mount::HostMounts);
    let mut errors = Vec::new();
    for name in marked(&root) {
        let image = Image { root: &root, name: &name, programs: &programs, mounts: &mounts };
        errors.extend(image.release().await.err());
    }
    errors
}

/// Creates a sparse file of at least `size` bytes in a directory that it creates, or extends the file.
fn resize(path: &Path, size: u64) -> Result<(), Error> {
    make_parent(path)?;
    Ok(sys::grow_image(path, size)?)
}

fn make_parent(path: &Path) -> Result<(), Error> {
    let Some(parent) = path.parent() else { return Ok(()) };
    sys::make_directories(parent, DIRECTORY_MODE).map_err(Error::file("create directory", parent))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;

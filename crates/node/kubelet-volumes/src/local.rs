//! Local volumes: directories and block devices of this node (`local` of a PersistentVolume), created by an
//! administrator or by the kubelet.
//!
//! A directory is opened once, and the open directory is then bind-mounted in the Pod's directory, at upstream's path.
//! The file system of a device is mounted once for the node, in the directory of local volumes, whose unused mounts
//! [`crate::Volumes::release_local`] ends. The kubelet's own volumes are images, see [`Image`].

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

use kubelet_objects::Events;
use pod_core::paths::DIRECTORY_MODE;

use crate::{
    disk::DiskMount,
    drivers::Drivers,
    error::{Cause, CsiError, Error, VolumeStep},
    growth::{Growth, GrowthReporter},
    image::{Image, MODE},
    ownership,
    plugin::{Site, VolumePath},
};

/// The directory of local volumes in a Pod's directory.
pub(crate) const PLUGIN: &str = "kubernetes.io~local-volume";
/// The directory of a Pod's block volumes, with links to the devices.
pub(crate) const DEVICES: &str = "volumeDevices";

pub(crate) struct Local {
    /// The PersistentVolume's name.
    pub(crate) volume: String,
    pub(crate) path: PathBuf,
    /// The file system of a device that is not a block volume.
    pub(crate) device: DeviceFileSystem,
    /// Set for a volume that the kubelet creates at its first use.
    pub(crate) own: Option<OwnVolume>,
    pub(crate) block: bool,
    pub(crate) read_only: bool,
    pub(crate) keeps_matching_group: bool,
}

/// The file system of a device, and the means to mount it.
pub(crate) struct DeviceFileSystem {
    pub(crate) fs_type: String,
    pub(crate) mount_options: Vec<String>,
    /// The directory of local volumes, in which the file system is mounted at the volume's name.
    pub(crate) root: PathBuf,
    pub(crate) drivers: Arc<Drivers>,
}

/// A volume in the kubelet's directory of local volumes.
pub(crate) struct OwnVolume {
    /// The directory of local volumes.
    pub(crate) root: PathBuf,
    /// The size in bytes; `None` for a directory without a limit.
    pub(crate) size: Option<u64>,
    pub(crate) mount_options: Vec<String>,
    pub(crate) growth: Option<Growth>,
    pub(crate) drivers: Arc<Drivers>,
    pub(crate) events: Events,
    pub(crate) reporter: GrowthReporter,
}

/// Returns the name under which [`Drivers`] serializes the operations on a volume.
pub(crate) fn lock_name(volume: &str) -> String {
    format!("kubernetes.io/local-volume/{volume}")
}

impl Local {
    pub(crate) fn mount(&self, site: &Site) -> Result<VolumePath, Error> {
        let mounted = if self.block { self.map(site)? } else { self.bind(site)? };
        if let Some(own) = &self.own
            && let Some(growth) = &own.growth
        {
            let expanded = site.runtime.block_on(self.expand(own, growth, site));
            // The volume serves its Pods in its former size. It is expanded later, at the latest before the next mount.
            if let Err(cause) = expanded {
                let volume = self.volume.clone();
                let error = CsiError { step: VolumeStep::Expand, volume, cause };
                own.events.warn(&site.pod, "VolumeResizeFailed", error.to_string());
            }
        }
        Ok(mounted)
    }

    fn bind(&self, site: &Site) -> Result<VolumePath, Error> {
        // The directory records that the Pod uses the volume, so it is created before the volume.
        let at = site.dir_named(PLUGIN, &self.volume)?;
        let at_end = VolumePath { read_only: self.read_only, ..VolumePath::new(at.clone()) };
        if site.mounts.is_mount_point(&at)? {
            return Ok(at_end);
        }
        if let Some(own) = &self.own {
            site.runtime.block_on(self.make(own, site))?;
        }
        let path = self.directory(site)?;
        let held = self.open(&path)?;
        if let Some(group) = ownership::group(&site.pod).filter(|_| !self.read_only)
            && !(self.keeps_matching_group && ownership::has_group(&path, group))
        {
            sys::give_tree(&held, group, &path)?;
        }
        site.mounts.bind_held(&held, &at)?;
        Ok(at_end)
    }

    /// Returns the path of the volume's directory without links. Mounts the file system of a device.
    fn directory(&self, site: &Site) -> Result<PathBuf, Error> {
        let climbs = self.path.components().any(|c| c == std::path::Component::ParentDir);
        if climbs || !self.path.is_absolute() {
            return Err(self.refused("the path must be absolute and must not contain '..'"));
        }
        let check = || {
            let path = fs::canonicalize(&self.path)?;
            Ok((fs::metadata(&path)?.file_type().is_block_device(), path))
        };
        let (is_device, path) =
            check().map_err(Error::file("check the local volume", &self.path))?;
        if is_device {
            return site.runtime.block_on(self.mount_device(&path, site));
        }
        Ok(path)
    }

    async fn mount_device(&self, device: &Path, site: &Site) -> Result<PathBuf, Error> {
        let DeviceFileSystem { fs_type, mount_options, root, drivers } = &self.device;
        let _turn = drivers.lock_volume(&lock_name(&self.volume)).await;
        let at = root.join(&self.volume);
        if !site.mounts.is_mount_point(&at)? {
            sys::make_directories(&at, DIRECTORY_MODE)
                .map_err(Error::file("create directory", &at))?;
            // Other Pods may write.
            let mount = DiskMount {
                device: &device.to_string_lossy(),
                at: &at.to_string_lossy(),
                fs_type,
                read_only: false,
                options: mount_options,
            };
            mount.run(&site.programs).await?;
        }
        Ok(at)
    }

    fn refused(&self, why: &str) -> Error {
        let error = io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        Error::file("open the local volume", &self.path)(error)
    }

    fn open(&self, path: &Path) -> Result<sys::OpenPath, Error> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(self.refused("it is not a directory below another one"));
        };
        let held = sys::hold_beneath(parent, Path::new(name))?;
        if !held.is_directory() {
            return Err(self.refused("it is not a directory"));
        }
        Ok(held)
    }

    fn image<'a>(&'a self, own: &'a OwnVolume, site: &'a Site) -> Image<'a> {
        let (programs, mounts) = (&site.programs, site.mounts.as_ref());
        Image { root: &own.root, name: &self.volume, programs, mounts }
    }

    /// Creates a volume that belongs to the kubelet, and mounts its file system.
    async fn make(&self, own: &OwnVolume, site: &Site) -> Result<(), Error> {
        let _turn = own.drivers.lock_volume(&lock_name(&self.volume)).await;
        sys::make_directories(&own.root, DIRECTORY_MODE)
            .map_err(Error::file("create directory", &own.root))?;
        let image = self.image(own, site);
        if let Some(size) = own.size.filter(|_| !image.is_directory()) {
            return image.mount(size, &own.mount_options, own.growth.is_some()).await;
        }
        let message = format!(
            "volume {:?} is a directory of the node, so its size is not limited",
            self.volume
        );
        own.events.normal(&site.pod, "VolumeSizeNotLimited", message);
        match fs::create_dir(&self.path) {
            Ok(()) => fs::set_permissions(&self.path, fs::Permissions::from_mode(MODE))
                .map_err(Error::file("set the mode of", &self.path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(Error::file("create directory", &self.path)(error)),
        }
    }

    /// Returns the block device, and links it in the Pod's directory.
    fn map(&self, site: &Site) -> Result<VolumePath, Error> {
        let device = match &self.own {
            Some(own) => site.runtime.block_on(async {
                let _turn = own.drivers.lock_volume(&lock_name(&self.volume)).await;
                let device = self.image(own, site).attach(own.size.unwrap_or_default()).await?;
                self.link(&device, site)?;
                Ok::<_, Error>(device)
            })?,
            None => {
                let device = self.device()?;
                self.link(&device, site)?;
                device
            }
        };
        Ok(VolumePath { read_only: self.read_only, block: true, ..VolumePath::new(device) })
    }

    fn device(&self) -> Result<PathBuf, Error> {
        let check = || {
            let device = fs::canonicalize(&self.path)?;
            if fs::metadata(&device)?.file_type().is_block_device() {
                return Ok(device);
            }
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a block device"))
        };
        check().map_err(Error::file("check the local volume", &self.path))
    }

    fn link(&self, device: &Path, site: &Site) -> Result<(), Error> {
        let at = site.pod_dir.join(DEVICES).join(PLUGIN).join(&self.volume);
        if fs::read_link(&at).is_ok_and(|earlier| earlier == device) {
            return Ok(());
        }
        let link = || {
            at.parent().map_or(Ok(()), |above| sys::make_directories(above, DIRECTORY_MODE))?;
            match fs::remove_file(&at) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            symlink(device, &at)
        };
        link().map_err(Error::file("link", &at))
    }

    async fn expand(&self, own: &OwnVolume, growth: &Growth, site: &Site) -> Result<(), Cause> {
        let _turn = own.drivers.lock_volume(&lock_name(&self.volume)).await;
        let image = self.image(own, site);
        if own.size.is_some() && !image.is_directory() {
            let size = u64::try_from(growth.bytes).unwrap_or_default();
            image.grow(size, self.block).await?;
        }
        Ok(own.reporter.report(growth, &site.pod, &self.volume).await?)
    }
}

//! Local volumes: directories of this node (`local` of a PersistentVolume), created by an administrator or by the
//! kubelet.
//!
//! The directory is opened once, without following a link at its end. The open directory is then bind-mounted in the
//! Pod's directory, at upstream's path.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use pod_core::paths::DIRECTORY_MODE;

use crate::{
    error::Error,
    ownership,
    plugin::{Site, VolumePath},
};

/// The directory of local volumes in a Pod's directory.
pub(crate) const PLUGIN: &str = "kubernetes.io~local-volume";

/// The mode of a new volume, which containers of any user must be able to write.
const MODE: u32 = 0o777;

pub(crate) struct Local {
    /// The PersistentVolume's name.
    pub(crate) volume: String,
    pub(crate) path: PathBuf,
    /// The directory of the kubelet's own volumes, if this is one. Such a volume is created at its first use.
    pub(crate) own: Option<PathBuf>,
    pub(crate) read_only: bool,
    pub(crate) keeps_matching_group: bool,
}

impl Local {
    pub(crate) fn mount(&self, site: &Site) -> Result<VolumePath, Error> {
        if let Some(root) = &self.own {
            self.make(root)?;
        }
        let at = site.dir_named(PLUGIN, &self.volume)?;
        let at_end = VolumePath { read_only: self.read_only, ..VolumePath::new(at.clone()) };
        if site.mounts.is_mount_point(&at)? {
            return Ok(at_end);
        }
        let held = self.open()?;
        if let Some(group) = ownership::group(&site.pod).filter(|_| !self.read_only)
            && !(self.keeps_matching_group && ownership::has_group(&self.path, group))
        {
            sys::give_tree(&held, group, &self.path)?;
        }
        site.mounts.bind_held(&held, &at)?;
        Ok(at_end)
    }

    fn open(&self) -> Result<sys::OpenPath, Error> {
        let refused = |why: &str| {
            let error = io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
            Err(Error::file("open the local volume", &self.path)(error))
        };
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return refused("it is not a directory below another one");
        };
        let climbs = self.path.components().any(|c| c == std::path::Component::ParentDir);
        if climbs || !self.path.is_absolute() {
            return refused("the path must be absolute and must not contain '..'");
        }
        let meta = fs::symlink_metadata(&self.path)
            .map_err(Error::file("check the local volume", &self.path))?;
        if !meta.is_dir() {
            return refused("it is not a directory; links are not followed");
        }
        let held = sys::hold_beneath(parent, Path::new(name))?;
        if !held.is_directory() {
            return refused("it is not a directory");
        }
        Ok(held)
    }

    /// Creates the directory of a volume that belongs to the kubelet.
    fn make(&self, root: &Path) -> Result<(), Error> {
        sys::make_directories(root, DIRECTORY_MODE)
            .map_err(Error::file("create directory", root))?;
        match fs::create_dir(&self.path) {
            Ok(()) => fs::set_permissions(&self.path, fs::Permissions::from_mode(MODE))
                .map_err(Error::file("set the mode of", &self.path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(Error::file("create directory", &self.path)(error)),
        }
    }
}

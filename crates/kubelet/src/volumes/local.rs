//! Local volumes: directories of this node (`local` of a PersistentVolume), an administrator's or the kubelet's own.
//!
//! The directory is opened once, through no link at its end, and what is open is mounted in the Pod's directory, where
//! upstream's kubelet has it too.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{At, Error, Site, ownership};

/// Where the kubelet keeps the directories that it makes for claims, below its root.
pub(crate) const DIRECTORY: &str = "local-volumes";
/// The directory of such volumes in a Pod's.
pub(crate) const PLUGIN: &str = "kubernetes.io~local-volume";

/// The mode of a new volume, which containers of all users write to.
const MODE: u32 = 0o777;

pub(super) struct Local {
    /// The PersistentVolume's name.
    pub(super) volume: String,
    pub(super) path: PathBuf,
    /// Where the kubelet's own volumes are, if this is one: then it is made when it is first used.
    pub(super) own: Option<PathBuf>,
    pub(super) read_only: bool,
    pub(super) keeps_matching_group: bool,
}

impl Local {
    pub(super) fn set_up(&self, site: &Site) -> Result<At, Error> {
        if let Some(root) = &self.own {
            self.make(root)?;
        }
        let at = site.dir_named(PLUGIN, &self.volume)?;
        let at_end = At { read_only: self.read_only, ..At::new(at.clone()) };
        if site.mounts.is_mount_point(&at)? {
            return Ok(at_end);
        }
        let held = self.hold()?;
        if let Some(group) = ownership::group(&site.pod).filter(|_| !self.read_only)
            && !(self.keeps_matching_group && ownership::has_group(&self.path, group))
        {
            sys::give_tree(&held, group, &self.path)?;
        }
        site.mounts.bind_held(&held, &at)?;
        Ok(at_end)
    }

    fn hold(&self) -> Result<sys::Held, Error> {
        let refused = |why: &str| {
            let error = io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
            Err(Error::file("open the local volume", &self.path)(error))
        };
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return refused("it is no directory below another");
        };
        let climbs = self.path.components().any(|c| c == std::path::Component::ParentDir);
        if climbs || !self.path.is_absolute() {
            return refused("the path must be absolute and must not contain '..'");
        }
        let meta = fs::symlink_metadata(&self.path)
            .map_err(Error::file("look at the local volume", &self.path))?;
        if !meta.is_dir() {
            return refused("it is no directory, and links are not followed");
        }
        let held = sys::hold_beneath(parent, Path::new(name))?;
        if !held.is_directory() {
            return refused("it is no directory");
        }
        Ok(held)
    }

    /// Makes the directory of a volume that is the kubelet's own.
    fn make(&self, root: &Path) -> Result<(), Error> {
        sys::make_directories(root, super::DIRECTORY_MODE)
            .map_err(Error::file("make directory", root))?;
        match fs::create_dir(&self.path) {
            Ok(()) => fs::set_permissions(&self.path, fs::Permissions::from_mode(MODE))
                .map_err(Error::file("open up", &self.path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(Error::file("make directory", &self.path)(error)),
        }
    }
}

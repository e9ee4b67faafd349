//! Mounts of a `subPath`.
//!
//! Until the runtime has mounted it, a container can change a path in a volume, for example into a link to the host's
//! root. So the runtime is never given such a path. The kubelet opens the path, bind-mounts the open descriptor in the
//! Pod's own directory, which no container can reach, and gives that path to the runtime.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use pod_core::paths::DIRECTORY_MODE;
use sys::mount::Mounts;

use crate::error::Error;

/// The directory of subPath mounts in a Pod's directory, as upstream.
const DIRECTORY: &str = "volume-subpaths";

/// Returns the path at which a subPath is mounted. `index` is that of the container's volume mount.
pub(crate) fn mount_path(pod_dir: &Path, volume: &str, container: &str, index: usize) -> PathBuf {
    pod_dir.join(DIRECTORY).join(volume).join(container).join(index.to_string())
}

/// The error of a subPath that cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    #[error("unable to provision SubPath `{path}`: {source}")]
    Path { path: String, source: pod_core::files::FilesError },
    #[error(
        "failed to create subPath directory for volumeMount {mount:?} of container {container:?}: {source}"
    )]
    Create { mount: String, container: String, source: sys::Error },
    #[error(
        "failed to prepare subPath for volumeMount {mount:?} of container {container:?}: {source}"
    )]
    Prepare { mount: String, container: String, source: Error },
}

/// A subPath of a volume that a container mounts.
pub struct SubPath {
    /// The Pod's directory.
    pub pod_dir: PathBuf,
    /// The path of the volume on the node.
    pub volume: PathBuf,
    /// The volume's name in the Pod.
    pub mount: String,
    /// The container's name.
    pub container: String,
    /// The index of the container's volume mount.
    pub index: usize,
    /// The path in the volume.
    pub path: String,
}

impl SubPath {
    /// Mounts the subPath and returns the path of the mount. Creates the directory if it does not exist. Replaces the
    /// mount of the container's last start, because the path may be another directory now.
    pub fn prepare(&self, mounts: &dyn Mounts) -> Result<PathBuf, SubPathError> {
        pod_core::files::check_path(self.path.trim_end_matches('/'))
            .map_err(|source| SubPathError::Path { path: self.path.clone(), source })?;
        let (mount, container) = (self.mount.clone(), self.container.clone());
        let path = Path::new(&self.path);
        let held = match sys::hold_beneath(&self.volume, path) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                if let Err(source) = sys::make_beneath(&self.volume, path) {
                    return Err(SubPathError::Create { mount, container, source });
                }
                sys::hold_beneath(&self.volume, path)
            }
            held => held,
        };
        let at = mount_path(&self.pod_dir, &self.mount, &self.container, self.index);
        let mounted = held.map_err(Error::from).and_then(|held| {
            mounts.unmount_below(&at)?;
            make_target(&at, held.is_directory())?;
            Ok(mounts.bind_held(&held, &at)?)
        });
        match mounted {
            Ok(()) => Ok(at),
            Err(source) => Err(SubPathError::Prepare { mount, container, source }),
        }
    }
}

/// Creates the mount point: a directory for a directory, and a file for anything else.
fn make_target(at: &Path, directory: bool) -> Result<(), Error> {
    match fs::symlink_metadata(at) {
        Ok(there) if there.is_dir() == directory => return Ok(()),
        Ok(there) if there.is_dir() => fs::remove_dir(at).map_err(Error::file("remove", at))?,
        Ok(_) => fs::remove_file(at).map_err(Error::file("remove", at))?,
        Err(_) => {}
    }
    if directory {
        return sys::make_directories(at, DIRECTORY_MODE)
            .map_err(Error::file("create directory", at));
    }
    if let Some(parent) = at.parent() {
        sys::make_directories(parent, DIRECTORY_MODE)
            .map_err(Error::file("create directory", parent))?;
    }
    fs::write(at, "").map_err(Error::file("create file", at))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use sys::mount::RecordedMounts;

    use super::*;

    fn prepare(dir: &Path, mounts: &RecordedMounts, path: &str) -> Result<PathBuf, SubPathError> {
        let (pod_dir, volume) = (dir.join("pod"), dir.join("volume"));
        fs::create_dir_all(&volume).unwrap();
        let (mount, container) = ("data".to_owned(), "app".to_owned());
        let sub = SubPath { pod_dir, volume, mount, container, index: 3, path: path.to_owned() };
        sub.prepare(mounts)
    }

    #[test]
    fn mounts_subpath_at_a_path_that_containers_cannot_reach() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = RecordedMounts::default();
        let at = prepare(dir.path(), &mounts, "a/b").unwrap();
        assert_eq!(at, dir.path().join("pod/volume-subpaths/data/app/3"));
        assert!(at.is_dir() && dir.path().join("volume/a/b").is_dir());
        assert_eq!(mounts.below(dir.path()).unwrap(), std::slice::from_ref(&at));
        // At the next start of the container, the path is a file.
        fs::remove_dir(dir.path().join("volume/a/b")).unwrap();
        fs::write(dir.path().join("volume/a/b"), "").unwrap();
        prepare(dir.path(), &mounts, "a/b").unwrap();
        assert!(at.is_file(), "a file is mounted over a file");
        assert_eq!(mounts.below(dir.path()).unwrap(), [at], "the first mount is gone");
    }

    #[test]
    fn rejects_subpath_that_leads_out_of_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = RecordedMounts::default();
        prepare(dir.path(), &mounts, "a").unwrap();
        symlink("/", dir.path().join("volume/root")).unwrap();
        symlink(dir.path(), dir.path().join("volume/up")).unwrap();
        for (path, words) in [
            ("root", "failed to prepare subPath for volumeMount \"data\" of container \"app\""),
            ("root/etc", "failed to prepare subPath for volumeMount \"data\" of container \"app\""),
            ("up/new", "failed to create subPath directory for volumeMount \"data\" of container"),
            ("../pod", "unable to provision SubPath `../pod`"),
        ] {
            let error = prepare(dir.path(), &mounts, path).unwrap_err().to_string();
            assert!(error.starts_with(words), "{path}: {error}");
        }
        assert_eq!(mounts.below(dir.path()).unwrap().len(), 1, "only the first");
        assert!(!dir.path().join("new").exists());
    }
}

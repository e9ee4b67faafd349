//! The interface of a type of volume, and the means that it has.

use std::{path::PathBuf, sync::Arc};

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, ServiceAccountTokenProjection, Volume};
use kubelet_objects::ObjectsError;
use pod_core::{Timestamp, fields::NodeFacts, paths::DIRECTORY_MODE};
use sys::mount::Mounts;

use crate::{
    atomic, error::Error, ownership, program::VolumePrograms, space::VolumeSpace, token::Tokens,
    volumes::Volumes,
};

/// The mode of a volume's own directory, which is mounted to containers of any user.
const VOLUME_MODE: u32 = 0o755;

/// The size of a tmpfs for files that the kubelet writes, in bytes. During an update it has the old and the new files.
const MEMORY_SIZE: u64 = 2 * pod_core::files::MAX_SPACE;

/// The path of a volume on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// The path.
    pub path: PathBuf,
    /// `true` if containers must not write to the volume.
    pub read_only: bool,
    /// `true` if the volume is a block device.
    pub block: bool,
}

impl VolumePath {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, read_only: false, block: false }
    }
}

/// A volume to mount, and the means to read its objects from the API server.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) volumes: &'a Volumes,
    pub(crate) pod: &'a Pod,
    pub(crate) volume: &'a Volume,
    /// Reads the facts about the node. They cost a system call for each disk, and only some volumes need them.
    pub(crate) node: &'a (dyn Fn() -> NodeFacts<'a> + Sync),
    pub(crate) tokens: &'a Tokens,
}

impl Request<'_> {
    pub(crate) fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Returns a service account token of the Pod and the time at which it expires.
    pub(crate) async fn token(
        &self,
        projection: &ServiceAccountTokenProjection,
    ) -> Result<(String, Timestamp), ObjectsError> {
        let Volumes { objects, clock, .. } = self.volumes;
        self.tokens.get(objects, self.pod, projection, pod_core::timestamp(clock.now())).await
    }
}

/// The means to work on a volume's files in a thread of its own.
pub(crate) struct Site {
    pub(crate) pod: Arc<Pod>,
    pub(crate) space: Arc<VolumeSpace>,
    /// The Pod's directory.
    pub(crate) pod_dir: PathBuf,
    /// The volume's name.
    pub(crate) volume: String,
    pub(crate) mounts: Arc<dyn Mounts>,
    pub(crate) now: Timestamp,
    pub(crate) programs: VolumePrograms,
    /// Runs programs and waits for them.
    pub(crate) runtime: tokio::runtime::Handle,
}

impl Site {
    /// Returns the path of a volume's directory without touching it.
    pub(crate) fn path_named(&self, plugin: &str, name: &str) -> PathBuf {
        self.pod_dir.join("volumes").join(plugin).join(name)
    }

    /// Returns the volume's directory, and creates it if it does not exist.
    pub(crate) fn dir(&self, plugin: &str) -> Result<PathBuf, Error> {
        self.dir_named(plugin, &self.volume)
    }

    /// Returns a directory with another name, for a PersistentVolume.
    pub(crate) fn dir_named(&self, plugin: &str, name: &str) -> Result<PathBuf, Error> {
        let dir = self.path_named(plugin, name);
        let make = || {
            dir.parent().map_or(Ok(()), |above| sys::make_directories(above, DIRECTORY_MODE))?;
            // Containers of any user see this directory.
            sys::make_directories(&dir, VOLUME_MODE)
        };
        make().map_err(Error::file("create directory", &dir))?;
        Ok(dir)
    }

    /// Returns a directory in memory, so that secrets never reach a disk.
    pub(crate) fn memory_dir(&self, plugin: &str) -> Result<PathBuf, Error> {
        let dir = self.dir(plugin)?;
        if !self.mounts.is_mount_point(&dir)? {
            self.mounts.tmpfs(&dir, Some(MEMORY_SIZE))?;
        }
        Ok(dir)
    }

    pub(crate) fn write(
        &self,
        dir: PathBuf,
        files: &pod_core::files::Files,
    ) -> Result<VolumePath, Error> {
        let uid = self.pod.metadata.uid.as_deref().unwrap_or_default();
        self.space.set(uid, &self.volume, files.space())?;
        atomic::write(&dir, files, ownership::group(&self.pod), self.now)?;
        // Only the kubelet writes content from the API server, so containers get it read-only.
        Ok(VolumePath { read_only: true, ..VolumePath::new(dir) })
    }
}

/// The mount of a volume, once its objects have been read. It works on files and runs in a thread of its own.
pub(crate) type MountWork = Box<dyn FnOnce(&Site) -> Result<VolumePath, Error> + Send>;

/// A future that reads a volume's objects and returns the work on its files.
pub(crate) type Prepared<'a> = BoxFuture<'a, Result<MountWork, Error>>;

/// A type of volume.
pub(crate) trait Plugin: Sync {
    /// Reports whether the volume is of this type and its content can change while the Pod runs.
    fn may_change(&self, _volume: &Volume) -> bool {
        false
    }

    /// Prepares to mount or update the volume. Returns `None` if the volume is of another type.
    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>>;
}

//! Volumes: one file for each type. Each implements [`Plugin`] and is listed in [`PLUGINS`]. Read [`set_up`] first.
//!
//! - A Pod's worker sends the requests to the API server. Work on files, which may be on a server that does not answer,
//!   runs in [`Operations`].
//! - Setting up is idempotent. It runs at every sync and updates the content.
//! - Directories are those of upstream's kubelet, so that each kubelet can take over the other's Pods.

mod atomic;
mod claim;
mod config_map;
pub(crate) mod csi;
mod downward_api;
mod empty_dir;
mod host_path;
mod local;
mod operations;
mod ownership;
mod projected;
mod secret;
mod sub_path;
mod token;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Volume};
use pod_core::Timestamp;
use sys::mount::Mounts;

use crate::{context::Context, objects::ObjectsError};

pub(crate) use local::{DIRECTORY as LOCAL_DIRECTORY, PLUGIN as LOCAL_PLUGIN};
pub(crate) use operations::{EarlierResult, OperationError, Operations};
pub(crate) use sub_path::{SubPath, SubPathError};
pub(crate) use token::Tokens;

/// The mode of the kubelet's own directories, as upstream. Other users of the machine must not read volumes.
pub(crate) const DIRECTORY_MODE: u32 = 0o750;

/// The mode of a volume's own directory, which is mounted to containers of any user.
const VOLUME_MODE: u32 = 0o755;

/// The path of a volume on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumePath {
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
    /// `true` if the volume is a block device.
    pub(crate) block: bool,
}

impl VolumePath {
    fn new(path: PathBuf) -> Self {
        Self { path, read_only: false, block: false }
    }
}

/// The paths of a Pod's volumes by volume name.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountedVolumes(BTreeMap<String, VolumePath>);

impl MountedVolumes {
    pub(crate) fn path(&self, name: &str) -> Option<&VolumePath> {
        self.0.get(name)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Objects(#[from] ObjectsError),
    #[error("{kind} \"{name}\" not found")]
    Missing { kind: &'static str, name: String },
    #[error("{0}")]
    Files(#[from] pod_core::files::FilesError),
    #[error("{0}")]
    HugePages(#[from] pod_core::huge_pages::MediumError),
    #[error("{0}")]
    Mount(#[from] sys::Error),
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Operation(#[from] OperationError),
    #[error("{0}")]
    HostPath(String),
    #[error("{0}")]
    Claim(#[from] claim::ClaimError),
    #[error("{0}")]
    Csi(#[from] Box<csi::CsiError>),
    #[error("volumes of this type are not supported by this kubelet")]
    Unsupported,
}

impl Error {
    fn file(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { operation, path, source }
    }
}

/// The error of a volume that could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.text())]
pub(crate) struct SetUpError {
    volume: String,
    source: Error,
}

impl SetUpError {
    /// Returns the failed operation, as upstream names it, and the volume's name.
    fn operation(&self) -> (Option<&'static str>, &str) {
        match &self.source {
            Error::Csi(failed) => (failed.doing.name(), &failed.volume),
            _ => (Some("MountVolume.SetUp"), &self.volume),
        }
    }

    fn text(&self) -> String {
        match self.operation() {
            (Some(operation), volume) => {
                format!("{operation} failed for volume \"{volume}\" : {}", self.source)
            }
            (None, _) => self.source.to_string(),
        }
    }

    /// Returns the reason of the Event about the error.
    pub(crate) fn reason(&self) -> &'static str {
        match &self.source {
            Error::Csi(failed) => failed.doing.reason(),
            _ => "FailedMount",
        }
    }
}

/// A volume to set up, and the means to read its objects from the API server.
#[derive(Clone, Copy)]
struct Request<'a> {
    ctx: &'a Context,
    pod: &'a Pod,
    volume: &'a Volume,
    pod_ips: &'a [String],
    tokens: &'a Tokens,
}

impl Request<'_> {
    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }
}

/// The means to work on a volume's files in a thread of its own.
struct Site {
    pod: Arc<Pod>,
    /// The Pod's directory.
    pod_dir: PathBuf,
    /// The volume's name.
    volume: String,
    mounts: Arc<dyn Mounts>,
    now: Timestamp,
}

impl Site {
    /// Returns the volume's directory, and creates it if it does not exist.
    fn dir(&self, plugin: &str) -> Result<PathBuf, Error> {
        self.dir_named(plugin, &self.volume)
    }

    /// Returns a directory with another name, for a PersistentVolume.
    fn dir_named(&self, plugin: &str, name: &str) -> Result<PathBuf, Error> {
        let dir = self.pod_dir.join("volumes").join(plugin).join(name);
        let make = || {
            dir.parent().map_or(Ok(()), |above| sys::make_directories(above, DIRECTORY_MODE))?;
            // Containers of any user see this directory.
            sys::make_directories(&dir, VOLUME_MODE)
        };
        make().map_err(Error::file("create directory", &dir))?;
        Ok(dir)
    }

    /// Returns a directory in memory, so that secrets never reach a disk.
    fn memory_dir(&self, plugin: &str) -> Result<PathBuf, Error> {
        let dir = self.dir(plugin)?;
        if !self.mounts.is_mount_point(&dir)? {
            self.mounts.tmpfs(&dir, None)?;
        }
        Ok(dir)
    }

    fn write(&self, dir: PathBuf, files: &pod_core::files::Files) -> Result<VolumePath, Error> {
        atomic::write(&dir, files, ownership::group(&self.pod), self.now)?;
        // Only the kubelet writes content from the API server, so containers get it read-only.
        Ok(VolumePath { read_only: true, ..VolumePath::new(dir) })
    }
}

/// The work on a volume's files, once its objects have been read.
type Work = Box<dyn FnOnce(&Site) -> Result<VolumePath, Error> + Send>;

/// A future that reads a volume's objects and returns the work on its files.
type Prepared<'a> = BoxFuture<'a, Result<Work, Error>>;

/// A type of volume.
trait Plugin: Sync {
    /// Reports whether the volume is of this type and its content can change while the Pod runs.
    fn may_change(&self, _volume: &Volume) -> bool {
        false
    }

    /// Prepares to set up or update the volume. Returns `None` if the volume is of another type.
    fn prepare<'a>(&self, request: Request<'a>) -> Option<Prepared<'a>>;
}

const PLUGINS: [&dyn Plugin; 8] = [
    &empty_dir::EmptyDir,
    &host_path::HostPath,
    &config_map::ConfigMaps,
    &secret::Secrets,
    &projected::Projected,
    &downward_api::DownwardApi,
    &claim::Claims,
    &csi::Inline,
];

fn may_change_one(volume: &Volume) -> bool {
    PLUGINS.iter().any(|plugin| plugin.may_change(volume))
}

async fn set_up_one(pod: &Arc<Pod>, request: Request<'_>) -> Result<VolumePath, Error> {
    let Request { ctx, volume, .. } = request;
    let prepared = PLUGINS.iter().find_map(|plugin| plugin.prepare(request));
    let work = prepared.ok_or(Error::Unsupported)?.await?;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let site = Site {
        pod: pod.clone(),
        pod_dir: ctx.settings.pod_dir(uid),
        volume: volume.name.clone(),
        mounts: ctx.mounts.clone(),
        now: ctx.now(),
    };
    let earlier =
        if may_change_one(volume) { EarlierResult::Discard } else { EarlierResult::Reuse };
    ctx.operations.run((uid, &volume.name), earlier, move || work(&site)).await?
}

/// Sets up or updates all volumes of a Pod. Tries all of them and returns the first error.
pub(crate) async fn set_up(
    ctx: &Context,
    pod: &Arc<Pod>,
    pod_ips: &[String],
    tokens: &Tokens,
) -> Result<MountedVolumes, SetUpError> {
    let mut mounted = Ok(MountedVolumes::default());
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let request = Request { ctx, pod, volume, pod_ips, tokens };
        match (set_up_one(pod, request).await, &mut mounted) {
            (Ok(at), Ok(mounted)) => drop(mounted.0.insert(volume.name.clone(), at)),
            (Err(source), Ok(_)) => {
                mounted = Err(SetUpError { volume: volume.name.clone(), source });
            }
            (_, Err(_)) => {}
        }
    }
    mounted
}

/// Reports whether any volume's content can change while the Pod runs.
pub(crate) fn may_change(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(may_change_one)
}

/// Unmounts and removes the Pod's directory with its volumes. Logs are not in it.
pub(crate) async fn tear_down(ctx: &Context, uid: &str) -> Result<(), Error> {
    // A running setup would create the directory again.
    ctx.operations.wait_idle(uid).await?;
    // Drivers unmount their own volumes.
    csi::tear_down(ctx, uid).await?;
    let (dir, mounts) = (ctx.settings.pod_dir(uid), ctx.mounts.clone());
    ctx.operations
        .run((uid, ""), EarlierResult::Discard, move || remove(&dir, mounts.as_ref()))
        .await?
}

fn remove(dir: &Path, mounts: &dyn Mounts) -> Result<(), Error> {
    mounts.unmount_below(dir)?;
    // If a mount remained, the removal would delete the mounted content.
    if !mounts.below(dir)?.is_empty() {
        let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
        return Err(Error::file("unmount everything below", dir)(busy));
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", dir)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests;

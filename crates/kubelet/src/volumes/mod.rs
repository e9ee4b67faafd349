//! Volumes: one file for each type, all of the same shape, listed in [`PLUGINS`].
//!
//! Setting one up has two parts. What the API is asked is asked by the Pod's worker; what is done with files, which may
//! be on a server that does not answer, is done by [`Operations`].
//!
//! Setting up is done again and again, at every sync, and brings what is there up to date; a volume's directory is
//! where upstream's kubelet has it, so that either can go on with the other's Pods.

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
pub(crate) use operations::{Earlier, OperationError, Operations};
pub(crate) use sub_path::{SubPath, SubPathError};
pub(crate) use token::Tokens;

/// The mode of the kubelet's own directories, upstream's too: what is in volumes is for containers alone, to whom it is
/// mounted, and not for the machine's other users.
pub(crate) const DIRECTORY_MODE: u32 = 0o750;

/// The mode of a volume's own directory, which is mounted to containers of all users.
const VOLUME_MODE: u32 = 0o755;

/// Where a volume is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
    /// Whether it is a device, which containers are given as one.
    pub(crate) block: bool,
}

impl At {
    fn new(path: PathBuf) -> Self {
        Self { path, read_only: false, block: false }
    }
}

/// A Pod's volumes, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mounted(BTreeMap<String, At>);

impl Mounted {
    pub(crate) fn path(&self, name: &str) -> Option<&At> {
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
    Csi(#[from] Box<csi::Failed>),
    #[error("volumes of this type are not supported by this kubelet")]
    Unsupported,
}

impl Error {
    fn file(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { operation, path, source }
    }
}

/// A volume that could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.text())]
pub(crate) struct SetUpError {
    volume: String,
    source: Error,
}

impl SetUpError {
    /// What was being done, as upstream names it, and with which volume.
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

    /// The reason of the Event that tells it.
    pub(crate) fn reason(&self) -> &'static str {
        match &self.source {
            Error::Csi(failed) => failed.doing.reason(),
            _ => "FailedMount",
        }
    }
}

/// One volume to set up, and what the API is asked for it with.
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

/// What a volume's files are worked on with, apart from the tasks that serve others.
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
    /// The volume's directory, made if need be.
    fn dir(&self, plugin: &str) -> Result<PathBuf, Error> {
        self.dir_named(plugin, &self.volume)
    }

    /// A directory of another name: that of a persistent volume.
    fn dir_named(&self, plugin: &str, name: &str) -> Result<PathBuf, Error> {
        let dir = self.pod_dir.join("volumes").join(plugin).join(name);
        let make = || {
            dir.parent().map_or(Ok(()), |above| sys::make_directories(above, DIRECTORY_MODE))?;
            // It is what containers see, whoever they run as.
            sys::make_directories(&dir, VOLUME_MODE)
        };
        make().map_err(Error::file("make directory", &dir))?;
        Ok(dir)
    }

    /// A directory in memory, so that what is secret never reaches a disk.
    fn memory_dir(&self, plugin: &str) -> Result<PathBuf, Error> {
        let dir = self.dir(plugin)?;
        if !self.mounts.is_mount_point(&dir)? {
            self.mounts.tmpfs(&dir, None)?;
        }
        Ok(dir)
    }

    fn write(&self, dir: PathBuf, files: &pod_core::files::Files) -> Result<At, Error> {
        atomic::write(&dir, files, ownership::group(&self.pod), self.now)?;
        // Only the kubelet changes what the API says, so that a container may only read it.
        Ok(At { read_only: true, ..At::new(dir) })
    }
}

/// What is to be done with a volume's files, once the API has told what they are.
type Work = Box<dyn FnOnce(&Site) -> Result<At, Error> + Send>;

/// What the API is asked before that.
type Prepared<'a> = BoxFuture<'a, Result<Work, Error>>;

/// A type of volume.
trait Plugin: Sync {
    /// Whether the volume is of this type and its content can change while the Pod runs.
    fn may_change(&self, _volume: &Volume) -> bool {
        false
    }

    /// How the volume is set up, or brought up to date; `None` if it is of another type.
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

async fn set_up_one(pod: &Arc<Pod>, request: Request<'_>) -> Result<At, Error> {
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
    let earlier = if may_change_one(volume) { Earlier::IsStale } else { Earlier::Counts };
    ctx.operations.run((uid, &volume.name), earlier, move || work(&site)).await?
}

/// Sets up, or brings up to date, all volumes of a Pod; of those that fail it tells the first.
pub(crate) async fn set_up(
    ctx: &Context,
    pod: &Arc<Pod>,
    pod_ips: &[String],
    tokens: &Tokens,
) -> Result<Mounted, SetUpError> {
    let mut mounted = Ok(Mounted::default());
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

/// Whether any volume's content can change while the Pod runs.
pub(crate) fn may_change(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(may_change_one)
}

/// Unmounts and removes all that a Pod had on this machine; logs apart.
pub(crate) async fn tear_down(ctx: &Context, uid: &str) -> Result<(), Error> {
    // What is still being set up would come back.
    ctx.operations.quiet(uid).await?;
    // What drivers gave they take back themselves.
    csi::tear_down(ctx, uid).await?;
    let (dir, mounts) = (ctx.settings.pod_dir(uid), ctx.mounts.clone());
    ctx.operations.run((uid, ""), Earlier::IsStale, move || remove(&dir, mounts.as_ref())).await?
}

fn remove(dir: &Path, mounts: &dyn Mounts) -> Result<(), Error> {
    mounts.unmount_below(dir)?;
    // Only what is no mount any more may be removed, or the removal would reach what was mounted.
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

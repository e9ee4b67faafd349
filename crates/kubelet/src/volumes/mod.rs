//! Volumes: one file for each type, all of the same shape.
//!
//! Setting up is done again and again, at every sync, and brings what is there up to date; a volume's directory is
//! where upstream's kubelet has it, so that either can go on with the other's Pods.

mod atomic;
mod config_map;
mod downward_api;
mod empty_dir;
mod host_path;
mod ownership;
mod projected;
mod secret;
mod sub_path;
mod token;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Pod, Volume};

use crate::{context::Context, objects::ObjectsError};

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
    Mount(#[from] sys::Error),
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    HostPath(String),
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
#[error("MountVolume.SetUp failed for volume \"{volume}\" : {source}")]
pub(crate) struct SetUpError {
    volume: String,
    source: Error,
}

/// One volume to set up.
struct Request<'a> {
    ctx: &'a Context,
    pod: &'a Pod,
    volume: &'a Volume,
    pod_ips: &'a [String],
}

impl Request<'_> {
    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// The volume's directory, made if need be.
    fn dir(&self, plugin: &str) -> Result<PathBuf, Error> {
        let uid = self.pod.metadata.uid.as_deref().unwrap_or_default();
        let dir =
            self.ctx.settings.pod_dir(uid).join("volumes").join(plugin).join(&self.volume.name);
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
        if !self.ctx.mounts.is_mount_point(&dir)? {
            self.ctx.mounts.tmpfs(&dir, None)?;
        }
        Ok(dir)
    }

    fn write(&self, dir: PathBuf, files: &pod_core::files::Files) -> Result<At, Error> {
        atomic::write(&dir, files, ownership::group(self.pod), self.ctx.now())?;
        // Only the kubelet changes what the API says, so that a container may only read it.
        Ok(At { path: dir, read_only: true })
    }

    async fn set_up(&self, tokens: &mut Tokens) -> Result<At, Error> {
        let volume = self.volume;
        if let Some(source) = &volume.empty_dir {
            empty_dir::set_up(self, source)
        } else if let Some(source) = &volume.host_path {
            host_path::set_up(source)
        } else if let Some(source) = &volume.config_map {
            config_map::set_up(self, source).await
        } else if let Some(source) = &volume.secret {
            secret::set_up(self, source).await
        } else if let Some(source) = &volume.projected {
            projected::set_up(self, source, tokens).await
        } else if let Some(source) = &volume.downward_api {
            downward_api::set_up(self, source)
        } else {
            Err(Error::Unsupported)
        }
    }
}

/// Sets up, or brings up to date, all volumes of a Pod.
pub(crate) async fn set_up(
    ctx: &Context,
    pod: &Pod,
    pod_ips: &[String],
    tokens: &mut Tokens,
) -> Result<Mounted, SetUpError> {
    let mut mounted = Mounted::default();
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let request = Request { ctx, pod, volume, pod_ips };
        let at = request
            .set_up(tokens)
            .await
            .map_err(|source| SetUpError { volume: volume.name.clone(), source })?;
        mounted.0.insert(volume.name.clone(), at);
    }
    Ok(mounted)
}

/// Whether any volume's content can change while the Pod runs.
pub(crate) fn may_change(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.into_iter().any(|v| {
        v.config_map.is_some()
            || v.secret.is_some()
            || v.projected.is_some()
            || v.downward_api.is_some()
    })
}

/// Unmounts and removes all that a Pod had on this machine; logs apart.
pub(crate) fn tear_down(ctx: &Context, uid: &str) -> Result<(), Error> {
    let dir = ctx.settings.pod_dir(uid);
    ctx.mounts.unmount_below(&dir)?;
    // Only what is no mount any more may be removed, or the removal would reach what was mounted.
    if !ctx.mounts.below(&dir)?.is_empty() {
        let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
        return Err(Error::file("unmount everything below", &dir)(busy));
    }
    match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", &dir)(error))
        }
        _ => Ok(()),
    }
}

//! The node's part in provisioning local volumes: publishes their directory and removes volumes on request.
//!
//! `local-volume-provisioner-controller` creates the PersistentVolumes. A volume's image is created when a Pod first
//! mounts it, and released a few seconds after the last Pod. A node may not write PersistentVolumes, so both sides use
//! annotations of the Node. The node publishes its directory in one of them. In another, the controller names a volume
//! to remove, and the node answers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use client::{PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};
use sys::mount::Mounts;

use crate::{
    drivers::Drivers,
    error::Error,
    image::{self, Image},
    local::{DEVICES, PLUGIN, lock_name},
    operations::{EarlierResult, OperationError},
    program::VolumePrograms,
    volumes::{LOCAL_DIRECTORY, Volumes},
};

/// The provisioner's name, and the key of the Node annotation with the directory of local volumes.
pub const PROVISIONER: &str = "windlass.local/volumes";
/// The prefix of annotations that name a volume to remove.
const REMOVE: &str = "remove.windlass.local/";
const REQUESTED: &str = "asked";
const REMOVED: &str = "removed";

/// Returns the names of the volumes to remove.
fn requested_names(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let requested = annotations.iter().filter(|(_, value)| *value == REQUESTED);
    let names = requested.filter_map(|(key, _)| key.strip_prefix(REMOVE));
    // Skip invalid names: such a path could lead out of the directory.
    let is_name = |name: &&str| {
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.')
    };
    names.filter(is_name).map(str::to_owned).collect()
}

impl Volumes {
    /// Publishes the directory of local volumes, and removes the requested volumes.
    pub async fn sync_local(&self) -> Result<(), client::Error> {
        let (Some(client), Some(node)) = (self.objects.client(), self.node.get()) else {
            return Ok(());
        };
        let mut annotations = serde_json::Map::new();
        let directory = self.local_directory().display().to_string();
        if node.annotations().get(PROVISIONER) != Some(&directory) {
            annotations.insert(PROVISIONER.to_owned(), json!(directory));
        }
        for volume in requested_names(node.annotations()) {
            let result = match self.remove_local(&volume).await {
                Ok(()) => REMOVED.to_owned(),
                Err(error) => {
                    tracing::warn!(volume, %error, "remove a local volume");
                    format!("failed: {error}")
                }
            };
            annotations.insert(format!("{REMOVE}{volume}"), json!(result));
        }
        if annotations.is_empty() {
            return Ok(());
        }
        let at = PatchTarget { namespace: "", name: &self.node_name, subresource: "" };
        let patch = json!({"metadata": {"annotations": annotations}});
        client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &patch).await.map(drop)
    }

    async fn remove_local(&self, volume: &str) -> Result<(), RemoveError> {
        let job = self.release_job(volume);
        let runtime = tokio::runtime::Handle::current();
        let work = move || runtime.block_on(job.remove());
        let key = (LOCAL_DIRECTORY, volume);
        let removed = self.operations.run(key, EarlierResult::Discard, work).await?;
        self.drivers.forget_idle();
        removed
    }

    /// Unmounts the local volumes that no Pod uses, and detaches their devices. Logs those that are in use otherwise.
    pub async fn release_local(&self) -> Result<(), Error> {
        let (root, pods) = (self.local_directory(), self.root.join("pods"));
        let mounts = self.mounts.clone();
        let unused = move || {
            let (mut names, users) = (image::active(&root, mounts.as_ref())?, users(&pods));
            names.retain(|name| !users.contains_key(name));
            Ok::<_, Error>(names)
        };
        let names = self.operations.run((LOCAL_DIRECTORY, ""), EarlierResult::Discard, unused);
        for volume in names.await?? {
            let (job, runtime) = (self.release_job(&volume), tokio::runtime::Handle::current());
            let work = move || runtime.block_on(job.release());
            let key = (LOCAL_DIRECTORY, volume.as_str());
            let released = self.operations.run(key, EarlierResult::Discard, work).await;
            // A volume that hangs must not keep the others from being released.
            if let Err(error) = released.unwrap_or_else(|error| Err(error.into())) {
                tracing::warn!(volume, %error, "release a local volume; trying again later");
            }
        }
        Ok(())
    }

    fn release_job(&self, volume: &str) -> ReleaseJob {
        ReleaseJob {
            root: self.local_directory(),
            pods: self.root.join("pods"),
            name: volume.to_owned(),
            mounts: self.mounts.clone(),
            programs: self.programs.clone(),
            drivers: self.drivers.clone(),
        }
    }
}

/// The error of a local volume that cannot be removed.
#[derive(Debug, thiserror::Error)]
enum RemoveError {
    #[error("the Pod with the uid {0} has it mounted")]
    InUse(String),
    #[error("something is mounted in it")]
    Mounted,
    #[error(transparent)]
    Image(#[from] Error),
    #[error(transparent)]
    System(#[from] sys::Error),
    #[error(transparent)]
    Operation(#[from] OperationError),
}

/// A local volume to release or remove.
struct ReleaseJob {
    root: PathBuf,
    pods: PathBuf,
    name: String,
    mounts: Arc<dyn Mounts>,
    programs: VolumePrograms,
    drivers: Arc<Drivers>,
}

impl ReleaseJob {
    fn image(&self) -> Image<'_> {
        let (programs, mounts) = (&self.programs, self.mounts.as_ref());
        Image { root: &self.root, name: &self.name, programs, mounts }
    }

    async fn release(&self) -> Result<(), Error> {
        let _turn = self.drivers.lock_volume(&lock_name(&self.name)).await;
        if users(&self.pods).contains_key(&self.name) {
            return Ok(());
        }
        self.image().release().await
    }

    async fn remove(&self) -> Result<(), RemoveError> {
        let _turn = self.drivers.lock_volume(&lock_name(&self.name)).await;
        if let Some(pod) = users(&self.pods).remove(&self.name) {
            return Err(RemoveError::InUse(pod));
        }
        // Unmount first: otherwise a file system that a container mounted in the volume would be emptied too.
        let at = self.root.join(&self.name);
        for inner in self.mounts.below(&at)?.iter().filter(|inner| **inner != at) {
            self.mounts.unmount(inner)?;
        }
        self.image().release().await?;
        if !self.mounts.below(&at)?.is_empty() {
            return Err(RemoveError::Mounted);
        }
        self.image().remove()?;
        Ok(sys::remove_beneath(&self.root, &self.name)?)
    }
}

/// Returns the local volumes that Pods have mounted, or whose devices they have, with the UID of one such Pod each. A
/// link to a device counts even if it leads nowhere, as after a restart of the machine.
fn users(pods: &Path) -> BTreeMap<String, String> {
    let names = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let mut users = BTreeMap::new();
    for uid in names(pods) {
        for directory in ["volumes", DEVICES] {
            let volumes = names(&pods.join(&uid).join(directory).join(PLUGIN));
            users.extend(volumes.map(|volume| (volume, uid.clone())));
        }
    }
    users
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_requested_volumes() {
        let annotations = [
            ("remove.windlass.local/pvc-1", "asked"),
            ("remove.windlass.local/pvc-2", "removed"),
            ("remove.windlass.local/pvc-3", "failed: it is busy"),
            ("remove.windlass.local/..", "asked"),
            ("remove.windlass.local/../pods", "asked"),
            ("remove.windlass.local/", "asked"),
            ("windlass.local/volumes", "asked"),
        ];
        let annotations =
            annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        assert_eq!(requested_names(&annotations), ["pvc-1"]);
    }

    #[test]
    fn finds_pod_that_has_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let user = |volume: &str| users(dir.path()).remove(volume);
        assert_eq!(user("pvc-1"), None);
        let at = dir.path().join("uid/volumes").join(PLUGIN).join("pvc-1");
        std::fs::create_dir_all(at).unwrap();
        assert_eq!(user("pvc-1").as_deref(), Some("uid"));
        assert_eq!(user("pvc-2"), None);
        let devices = dir.path().join("other/volumeDevices").join(PLUGIN);
        std::fs::create_dir_all(&devices).unwrap();
        std::os::unix::fs::symlink("/dev/none", devices.join("pvc-2")).unwrap();
        assert_eq!(user("pvc-2").as_deref(), Some("other"));
    }
}

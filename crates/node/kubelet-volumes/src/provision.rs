//! The node's part in provisioning local volumes: publishes their directory and removes volumes on request.
//!
//! `local-volume-provisioner-controller` creates the PersistentVolumes. A volume's directory is created when a Pod
//! first mounts it. A node may not write PersistentVolumes, so both sides use annotations of the Node: the node
//! publishes its directory, the controller names a volume to remove, and the node answers in the same annotation.

use std::{collections::BTreeMap, path::Path};

use client::{PatchKind, PatchTarget, Resource};
use serde_json::{Value, json};
use sys::mount::Mounts;

use crate::{
    local::PLUGIN,
    operations::{EarlierResult, OperationError},
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
        let (root, pods) = (self.local_directory(), self.root.join("pods"));
        let (name, mounts) = (volume.to_owned(), self.mounts.clone());
        let work = move || remove(&root, &pods, &name, mounts.as_ref());
        let key = (LOCAL_DIRECTORY, volume);
        self.operations.run(key, EarlierResult::Discard, work).await?
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
    System(#[from] sys::Error),
    #[error(transparent)]
    Operation(#[from] OperationError),
}

fn remove(root: &Path, pods: &Path, name: &str, mounts: &dyn Mounts) -> Result<(), RemoveError> {
    if let Some(pod) = user(pods, name) {
        return Err(RemoveError::InUse(pod));
    }
    // Unmount first: otherwise a file system that a container mounted in the volume would be emptied too.
    let at = root.join(name);
    mounts.unmount_below(&at)?;
    if !mounts.below(&at)?.is_empty() {
        return Err(RemoveError::Mounted);
    }
    Ok(sys::remove_beneath(root, name)?)
}

/// Returns the UID of a Pod that has the volume mounted.
fn user(pods: &Path, volume: &str) -> Option<String> {
    let entries = std::fs::read_dir(pods).into_iter().flatten().flatten();
    let mut uids = entries.map(|entry| entry.file_name());
    let mounts = |uid: &std::ffi::OsString| {
        pods.join(uid).join("volumes").join(PLUGIN).join(volume).exists()
    };
    uids.find(mounts).map(|uid| uid.to_string_lossy().into_owned())
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
        assert_eq!(user(dir.path(), "pvc-1"), None);
        let at = dir.path().join("uid/volumes").join(PLUGIN).join("pvc-1");
        std::fs::create_dir_all(at).unwrap();
        assert_eq!(user(dir.path(), "pvc-1").as_deref(), Some("uid"));
        assert_eq!(user(dir.path(), "pvc-2"), None);
    }
}

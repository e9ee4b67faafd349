//! The mirror Pods that the API server has.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::{Mutex, MutexGuard};
use pod_core::namespaced_name;
use tokio::sync::Notify;

use crate::annotations::{HASH, MIRROR};

/// Returns the hash of the static Pod that this Pod mirrors, or `None` for any other Pod.
pub(crate) fn hash(pod: &Pod) -> Option<&String> {
    pod.metadata.annotations.as_ref()?.get(MIRROR)
}

/// The mirror Pods at the API server, by namespace and name.
#[derive(Default)]
pub(crate) struct Mirrors {
    mirrors: Mutex<HashMap<String, Mirror>>,
    changed: Notify,
}

/// A mirror Pod.
#[derive(Clone)]
pub(crate) struct Mirror {
    pub(crate) uid: String,
    hash: String,
    pub(crate) deleting: bool,
    version: Option<String>,
    status: Option<PodStatus>,
}

impl Mirrors {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Mirror>> {
        self.mirrors.lock()
    }

    /// Returns all mirror Pods by namespace and name.
    pub(crate) fn all(&self) -> HashMap<String, Mirror> {
        self.lock().clone()
    }

    /// Waits for a change.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn set(&self, pod: &Pod) {
        let mirror = Mirror {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            hash: hash(pod).cloned().unwrap_or_default(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            version: pod.metadata.resource_version.clone(),
            status: pod.status.clone(),
        };
        self.lock().insert(namespaced_name(pod), mirror);
        self.changed.notify_one();
    }

    pub(crate) fn remove(&self, pod: &Pod) {
        self.lock().remove(&namespaced_name(pod));
        self.changed.notify_one();
    }

    /// Returns the UID of a static Pod's mirror, if the mirror shows the present version of the Pod.
    pub(crate) fn uid(&self, pod: &Pod) -> Option<String> {
        let hash = pod.metadata.annotations.as_ref()?.get(HASH)?;
        self.lock().get(&namespaced_name(pod)).filter(|m| m.hash == *hash).map(|m| m.uid.clone())
    }

    /// Returns a Pod's status at the API server: its own, or that of its mirror if the Pod is static.
    pub(crate) fn api_status(&self, pod: &Pod) -> Option<PodStatus> {
        self.api_version_and_status(pod).1
    }

    /// Returns the resourceVersion and the status of the Pod or its mirror.
    pub(crate) fn api_version_and_status(&self, pod: &Pod) -> (Option<String>, Option<PodStatus>) {
        if !pod_core::is_static(pod) {
            return (pod.metadata.resource_version.clone(), pod.status.clone());
        }
        let hash = pod.metadata.annotations.as_ref().and_then(|a| a.get(HASH));
        let mirrors = self.lock();
        let mirror = mirrors.get(&namespaced_name(pod)).filter(|m| Some(&m.hash) == hash);
        mirror.map(|m| (m.version.clone(), m.status.clone())).unwrap_or_default()
    }
}

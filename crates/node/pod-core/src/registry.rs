//! The Pods of the node, as the parts of the kubelet see them that do not run Pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::observed::Observed;

/// A Pod with its latest status, and its last observed containers.
#[derive(Clone, Debug)]
pub struct KnownPod {
    /// The Pod.
    pub pod: Pod,
    /// The Pod's sandboxes and containers.
    pub observed: Observed,
}

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    /// The UID of the Pod.
    pub uid: String,
    /// The container's name in the Pod.
    pub name: String,
    /// The container's ID in the runtime.
    pub id: String,
}

/// The Pods of the node. The kubelet implements it by its workers.
pub trait PodRegistry: Send + Sync {
    /// Returns all Pods with their latest statuses.
    fn list(&self) -> Vec<Pod>;

    /// Returns the Pods that are not ending and that hold resources of the node.
    fn active(&self) -> Vec<Arc<Pod>>;

    /// Returns the Pod of a name. The UID, if any, must be that of the Pod or of its mirror.
    fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<KnownPod>;

    /// Returns the running containers of all Pods.
    fn running(&self) -> Vec<RunningContainer>;

    /// Reports whether a Pod has a worker.
    fn has_pod(&self, uid: &str) -> bool;

    /// Wakes a Pod's worker.
    fn wake(&self, uid: &str);
}

//! Cluster changes after which waiting Pods may be retried.

use crate::{devices::ClaimChange, index::NodeIx, pod::Pod};

/// A change that may let a waiting Pod run.
pub enum Event<'a> {
    /// A node was added or changed.
    Node {
        /// The index of the node.
        ix: NodeIx,
        /// The changed parts.
        change: NodeChange,
    },
    /// A Pod was bound, or a bound Pod changed.
    PodPlaced {
        /// The Pod that uses the node.
        pod: &'a Pod,
    },
    /// A Pod left its node, or uses less of it.
    PodGone {
        /// The Pod that used the node.
        pod: &'a Pod,
        /// The index of the node.
        node: NodeIx,
    },
    /// A claim or volume was added or changed.
    Volumes,
    /// A ResourceClaim was added, changed or deleted.
    DeviceClaim {
        /// The namespace of the claim.
        namespace: &'a str,
        /// The name of the claim.
        name: &'a str,
        /// The effect of the change on devices.
        change: ClaimChange,
    },
    /// A DeviceClass or ResourceSlice was added or changed.
    Devices,
    /// A PodGroup was added, or has as many Pods as it needs.
    PodGroup {
        /// The namespace of the group.
        namespace: &'a str,
        /// The name of the group.
        name: &'a str,
    },
}

impl Event<'_> {
    /// Reports whether the event may change which nodes a Pod's volumes can be reached from.
    pub(crate) fn moves_volumes(&self) -> bool {
        match self {
            Self::Volumes => true,
            Self::Node { change, .. } => change.added || change.labels,
            _ => false,
        }
    }

    /// Reports whether the event may end the wait of a Pod that a plugin holds back.
    pub(crate) fn may_release(&self, pod: &Pod) -> bool {
        match self {
            Self::DeviceClaim { .. } => true,
            Self::PodGroup { namespace, name } => {
                *pod.id.namespace == **namespace && pod.group.as_deref() == Some(name)
            }
            _ => false,
        }
    }

    /// Returns the name of the event in metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Node { change, .. } if change.added => "NodeAdd",
            Self::Node { change, .. } if change.allocatable => "NodeUpdateNodeAllocatable",
            Self::Node { change, .. } if change.labels => "NodeUpdateNodeLabel",
            Self::Node { change, .. } if change.taints => "NodeUpdateNodeTaint",
            Self::Node { change, .. } if change.features => "NodeUpdateNodeDeclaredFeature",
            Self::Node { .. } => "NodeUpdate",
            Self::PodPlaced { .. } => "AssignedPodAdd",
            Self::PodGone { .. } => "AssignedPodDelete",
            Self::Volumes => "StorageUpdate",
            Self::DeviceClaim { .. } => "ResourceClaimUpdate",
            Self::Devices => "ResourceSliceUpdate",
            Self::PodGroup { .. } => "PodGroupAdd",
        }
    }
}

/// The changed parts of a node, which decide which Pods are retried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// `true` for a new node.
    pub added: bool,
    /// `true` if the allocatable resources changed.
    pub allocatable: bool,
    /// `true` if the labels changed.
    pub labels: bool,
    /// `true` if the taints changed.
    pub taints: bool,
    /// `true` if the declared features changed.
    pub features: bool,
}

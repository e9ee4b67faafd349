//! Volumes, their claims and classes, and CSI drivers.

use std::collections::BTreeMap;

use api_meta::{Quantity, null_default};
use serde::Deserialize;

use super::{
    affinity::NodeSelectorView,
    meta::{LabelSelectorView, Text, TextMap},
};

/// The metadata of a claim or volume. Annotations hold the state of the binding.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingMetaView {
    /// The uid.
    pub uid: Text,
    /// The time of the deletion request; `None` if the object is not being deleted.
    pub deletion_timestamp: Option<Text>,
    /// The labels.
    #[serde(deserialize_with = "null_default")]
    pub labels: TextMap,
    /// The annotations.
    #[serde(deserialize_with = "null_default")]
    pub annotations: TextMap,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeClaimView {
    /// The metadata.
    pub metadata: BindingMetaView,
    /// The spec.
    pub spec: VolumeClaimSpecView,
    /// The status.
    pub status: PhaseView,
}

/// The phase of a claim or volume, such as `Bound` or `Available`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseView {
    /// The phase.
    pub phase: Text,
}

/// The requirements of a claim, and its volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeClaimSpecView {
    /// The bound volume; `None` before binding.
    pub volume_name: Option<Text>,
    /// The access modes that the volume must have.
    #[serde(deserialize_with = "null_default")]
    pub access_modes: Vec<Text>,
    /// The name of the StorageClass.
    pub storage_class_name: Option<Text>,
    /// `Filesystem` (also if `None`) or `Block`.
    pub volume_mode: Option<Text>,
    /// The selector of volumes by their labels.
    pub selector: Option<LabelSelectorView>,
    /// The requested size.
    pub resources: ClaimResourcesView,
}

/// The requested storage of a claim (`storage`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimResourcesView {
    /// The requested amounts by resource name.
    #[serde(deserialize_with = "null_default")]
    pub requests: BTreeMap<Text, Quantity>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeView {
    /// The metadata.
    pub metadata: BindingMetaView,
    /// The spec.
    pub spec: PersistentVolumeSpecView,
    /// The status.
    pub status: PhaseView,
}

/// The properties of a volume, its nodes, and its claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeSpecView {
    /// The nodes that can reach the volume; `None` for all nodes.
    pub node_affinity: Option<VolumeNodeAffinityView>,
    /// The capacity by resource name (`storage`).
    #[serde(deserialize_with = "null_default")]
    pub capacity: BTreeMap<Text, Quantity>,
    /// The supported access modes.
    #[serde(deserialize_with = "null_default")]
    pub access_modes: Vec<Text>,
    /// The name of the StorageClass.
    pub storage_class_name: Option<Text>,
    /// `Filesystem` (also if `None`) or `Block`.
    pub volume_mode: Option<Text>,
    /// The claim that the volume is bound to or reserved for.
    pub claim_ref: Option<ClaimRefView>,
    /// The CSI source of the volume, if it has one.
    pub csi: Option<CsiVolumeView>,
}

/// The CSI driver of a volume and its handle.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiVolumeView {
    /// The name of the driver.
    pub driver: Text,
    /// The identifier of the volume in its driver.
    pub volume_handle: Text,
}

/// A CSINode, which limits the number of volumes of each driver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeView {
    /// The spec.
    pub spec: CsiNodeSpecView,
}

/// The drivers of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpecView {
    /// The drivers.
    #[serde(deserialize_with = "null_default")]
    pub drivers: Vec<CsiNodeDriverView>,
}

/// A driver of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeDriverView {
    /// The name of the driver.
    pub name: Text,
    /// The limit for volumes of the driver; `None` for no limit.
    pub allocatable: Option<CsiAllocatableView>,
}

/// The number of volumes that a node can have of a driver; `None` for no limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiAllocatableView {
    /// The number of volumes.
    pub count: Option<u32>,
}

/// A CSIDriver, which may publish its storage capacity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriverView {
    /// The spec.
    pub spec: CsiDriverSpecView,
}

/// The spec of a CSIDriver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpecView {
    /// `true` if the driver publishes CSIStorageCapacity objects.
    pub storage_capacity: Option<bool>,
}

/// A CSIStorageCapacity: the capacity for volumes of a class on some nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageCapacityView {
    /// The name of the StorageClass.
    pub storage_class_name: Text,
    /// The nodes that have the capacity; `None` for no node.
    pub node_topology: Option<LabelSelectorView>,
    /// The total capacity.
    pub capacity: Option<Quantity>,
    /// The largest volume; `None` falls back to `capacity`.
    pub maximum_volume_size: Option<Quantity>,
}

/// The claim that a volume is reserved for; without a uid, it is identified by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRefView {
    /// The namespace of the claim.
    pub namespace: Text,
    /// The name of the claim.
    pub name: Text,
    /// The uid of the claim; `None` before it is bound.
    pub uid: Option<Text>,
}

/// A StorageClass. With `WaitForFirstConsumer`, the scheduler chooses the volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClassView {
    /// The name of the provisioner.
    pub provisioner: Text,
    /// `Immediate` (also if `None`) or `WaitForFirstConsumer`.
    pub volume_binding_mode: Option<Text>,
    /// The alternative topologies; empty for all nodes.
    #[serde(deserialize_with = "null_default")]
    pub allowed_topologies: Vec<TopologyTermView>,
}

/// Topologies in which a provisioner can create volumes; all expressions must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyTermView {
    /// The requirements on node labels.
    #[serde(deserialize_with = "null_default")]
    pub match_label_expressions: Vec<TopologyView>,
}

/// The allowed values of a node label.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyView {
    /// The key of the label.
    pub key: Text,
    /// The allowed values.
    #[serde(deserialize_with = "null_default")]
    pub values: Vec<Text>,
}

/// The nodes that can reach a volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeNodeAffinityView {
    /// The terms of which one must match; `None` for all nodes.
    pub required: Option<NodeSelectorView>,
}

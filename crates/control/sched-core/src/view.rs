//! The fields of API objects that scheduling reads; all others are skipped while decoding.
//!
//! Fields have the API's names and meaning; only special uses by the scheduler are documented here.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{Quantity, null_default};
use serde::Deserialize;

type Text = Box<str>;
pub(crate) type TextMap = BTreeMap<Text, Text>;

/// The metadata of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetaView {
    pub name: Arc<str>,
    pub namespace: Arc<str>,
    pub uid: Arc<str>,
    pub resource_version: Text,
    #[serde(deserialize_with = "null_default")]
    pub labels: TextMap,
    pub creation_timestamp: Option<Text>,
    pub deletion_timestamp: Option<Text>,
    #[serde(deserialize_with = "null_default")]
    pub owner_references: Vec<OwnerView>,
}

/// An owner reference; the controller decides how its Pods are spread.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerView {
    pub kind: Text,
    pub name: Text,
    pub controller: Option<bool>,
}

/// A Pod as the API has it; [`crate::Pod`] is compiled from it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodView {
    pub metadata: MetaView,
    pub spec: PodSpecView,
    pub status: PodStatusView,
}

/// The fields of a Pod's spec that plugins read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    pub node_name: Option<Arc<str>>,
    /// The scheduler, which selects a profile; `default-scheduler` if `None`.
    pub scheduler_name: Option<Arc<str>>,
    pub priority: Option<i32>,
    /// `Never` prevents preemption for this Pod.
    pub preemption_policy: Option<Text>,
    #[serde(deserialize_with = "null_default")]
    pub containers: Vec<ContainerView>,
    /// Init containers, including sidecars.
    #[serde(deserialize_with = "null_default")]
    pub init_containers: Vec<ContainerView>,
    pub resources: Option<RequirementsView>,
    /// The overhead of the RuntimeClass, added to the requests.
    #[serde(deserialize_with = "null_default")]
    pub overhead: BTreeMap<Text, Quantity>,
    #[serde(deserialize_with = "null_default")]
    pub node_selector: TextMap,
    pub affinity: Option<AffinityView>,
    #[serde(deserialize_with = "null_default")]
    pub tolerations: Vec<TolerationView>,
    #[serde(deserialize_with = "null_default")]
    pub topology_spread_constraints: Vec<SpreadView>,
    /// Gates that hold the Pod until all are removed.
    #[serde(deserialize_with = "null_default")]
    pub scheduling_gates: Vec<GateView>,
    #[serde(deserialize_with = "null_default")]
    pub volumes: Vec<VolumeView>,
    #[serde(deserialize_with = "null_default")]
    pub resource_claims: Vec<PodClaimView>,
    /// `true` if the Pod uses the network of the host.
    pub host_network: Option<bool>,
}

/// An entry of a Pod's ResourceClaims. Without a name, the Pod's status names the claim made from the template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodClaimView {
    pub name: Text,
    pub resource_claim_name: Option<Text>,
}

/// The phase of the Pod and its nominated node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatusView {
    pub phase: Text,
    /// The node that preemption nominated for the Pod.
    pub nominated_node_name: Option<Arc<str>>,
    pub start_time: Option<Text>,
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<ConditionView>,
    /// The claims created from templates.
    #[serde(deserialize_with = "null_default")]
    pub resource_claim_statuses: Vec<PodClaimView>,
}

/// A condition; the scheduler writes `PodScheduled`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConditionView {
    pub r#type: Text,
    pub status: Text,
    pub reason: Text,
    pub message: Text,
}

/// A container or init container: its requests and host ports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerView {
    pub image: Text,
    /// `Always` marks a sidecar among the init containers.
    pub restart_policy: Option<Text>,
    pub resources: Option<RequirementsView>,
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<PortView>,
}

/// The requests of a container. Limits are not read, because the API server derives requests from them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequirementsView {
    #[serde(deserialize_with = "null_default")]
    pub requests: BTreeMap<Text, Quantity>,
}

/// A port of a container, which matters for scheduling if it has a `hostPort`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortView {
    /// The port on the node; only this matters for scheduling.
    pub host_port: Option<u16>,
    /// The address on the node; `None` for all addresses.
    #[serde(rename = "hostIP")]
    pub host_ip: Option<Text>,
    pub protocol: Option<Text>,
}

/// A scheduling gate.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GateView {
    pub name: Text,
}

/// A volume. Only claims limit a Pod's nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeView {
    pub name: Text,
    pub persistent_volume_claim: Option<ClaimSourceView>,
    /// Present for a generic ephemeral volume, which has a claim.
    pub ephemeral: Option<serde::de::IgnoredAny>,
}

/// The claim of a volume, in the Pod's namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSourceView {
    pub claim_name: Text,
}

/// A toleration of node taints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TolerationView {
    pub key: Option<Text>,
    pub operator: Option<Text>,
    pub value: Option<Text>,
    pub effect: Option<Text>,
}

/// A label selector.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelectorView {
    #[serde(deserialize_with = "null_default")]
    pub match_labels: TextMap,
    #[serde(deserialize_with = "null_default")]
    pub match_expressions: Vec<ExpressionView>,
}

/// A requirement on a label or on a field of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExpressionView {
    pub key: Text,
    pub operator: Text,
    #[serde(deserialize_with = "null_default")]
    pub values: Vec<Text>,
}

/// A topology spread constraint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreadView {
    /// The largest allowed difference between two domains.
    pub max_skew: i32,
    pub topology_key: Text,
    pub when_unsatisfiable: Text,
    pub label_selector: Option<LabelSelectorView>,
    /// The number of domains below which the minimum counts as 0.
    pub min_domains: Option<i32>,
    /// `Ignore` counts nodes that the Pod does not select.
    pub node_affinity_policy: Option<Text>,
    /// `Honor` excludes nodes with untolerated taints.
    pub node_taints_policy: Option<Text>,
    /// Keys whose values on the Pod are added to the selector.
    #[serde(deserialize_with = "null_default")]
    pub match_label_keys: Vec<Text>,
}

/// The node affinity, Pod affinity and Pod anti-affinity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinityView {
    pub node_affinity: Option<NodeAffinityView>,
    pub pod_affinity: Option<PodAffinityView>,
    pub pod_anti_affinity: Option<PodAffinityView>,
}

/// Required and preferred node terms.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinityView {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelectorView>,
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_default"
    )]
    pub preferred: Vec<PreferredNodeView>,
}

/// Node terms of which one must match.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorView {
    #[serde(deserialize_with = "null_default")]
    pub node_selector_terms: Vec<NodeTermView>,
}

/// Expressions that must all hold; a term without any matches no node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTermView {
    #[serde(deserialize_with = "null_default")]
    pub match_expressions: Vec<ExpressionView>,
    /// Requirements on `metadata.name`.
    #[serde(deserialize_with = "null_default")]
    pub match_fields: Vec<ExpressionView>,
}

/// A node term with its weight (1 to 100).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreferredNodeView {
    pub weight: i64,
    pub preference: NodeTermView,
}

/// Required and preferred Pod terms, of affinity or anti-affinity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAffinityView {
    #[serde(
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_default"
    )]
    pub required: Vec<PodTermView>,
    #[serde(
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        deserialize_with = "null_default"
    )]
    pub preferred: Vec<PreferredPodView>,
}

/// A Pod term with its weight (1 to 100).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreferredPodView {
    pub weight: i64,
    pub pod_affinity_term: PodTermView,
}

/// A term that selects Pods by labels and namespaces within a topology.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTermView {
    pub label_selector: Option<LabelSelectorView>,
    /// Namespaces by name; if empty and without a selector, the Pod's own.
    #[serde(deserialize_with = "null_default")]
    pub namespaces: Vec<Text>,
    pub namespace_selector: Option<LabelSelectorView>,
    pub topology_key: Text,
    /// Keys whose values on the Pod must match.
    #[serde(deserialize_with = "null_default")]
    pub match_label_keys: Vec<Text>,
    /// Keys whose values on the Pod must not match.
    #[serde(deserialize_with = "null_default")]
    pub mismatch_label_keys: Vec<Text>,
}

/// A node as the API has it; [`crate::Node`] is compiled from it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeView {
    pub metadata: MetaView,
    pub spec: NodeSpecView,
    pub status: NodeStatusView,
}

/// The taints of the node, and whether it is cordoned.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpecView {
    pub unschedulable: Option<bool>,
    #[serde(deserialize_with = "null_default")]
    pub taints: Vec<TaintView>,
}

/// A taint of a node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct TaintView {
    pub key: Text,
    pub value: Option<Text>,
    pub effect: Text,
}

/// The allocatable resources of the node, and its images.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusView {
    #[serde(deserialize_with = "null_default")]
    pub allocatable: BTreeMap<Text, Quantity>,
    #[serde(deserialize_with = "null_default")]
    pub images: Vec<ImageView>,
}

/// An image with all its names and its size in bytes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageView {
    #[serde(deserialize_with = "null_default")]
    pub names: Vec<Text>,
    pub size_bytes: i64,
}

/// A Service, ReplicationController, ReplicaSet or StatefulSet, which groups Pods for default spreading.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreaderView {
    pub metadata: MetaView,
    pub spec: SpreaderSpecView,
}

/// The selector of a spreader.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreaderSpecView {
    pub selector: Option<SpreaderSelectorView>,
}

/// The map of a Service or ReplicationController, or the label selector of other kinds.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum SpreaderSelectorView {
    Map(TextMap),
    Selector(LabelSelectorView),
}

/// The metadata of a claim or volume. Annotations hold the state of the binding.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingMetaView {
    pub uid: Text,
    pub deletion_timestamp: Option<Text>,
    #[serde(deserialize_with = "null_default")]
    pub labels: TextMap,
    #[serde(deserialize_with = "null_default")]
    pub annotations: TextMap,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeClaimView {
    pub metadata: BindingMetaView,
    pub spec: VolumeClaimSpecView,
    pub status: PhaseView,
}

/// The phase of a claim or volume, such as `Bound` or `Available`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseView {
    pub phase: Text,
}

/// The requirements of a claim, and its volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeClaimSpecView {
    pub volume_name: Option<Text>,
    #[serde(deserialize_with = "null_default")]
    pub access_modes: Vec<Text>,
    pub storage_class_name: Option<Text>,
    pub volume_mode: Option<Text>,
    pub selector: Option<LabelSelectorView>,
    pub resources: ClaimResourcesView,
}

/// The requested storage of a claim (`storage`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimResourcesView {
    #[serde(deserialize_with = "null_default")]
    pub requests: BTreeMap<Text, Quantity>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeView {
    pub metadata: BindingMetaView,
    pub spec: PersistentVolumeSpecView,
    pub status: PhaseView,
}

/// The properties of a volume, its nodes, and its claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeSpecView {
    pub node_affinity: Option<VolumeNodeAffinityView>,
    #[serde(deserialize_with = "null_default")]
    pub capacity: BTreeMap<Text, Quantity>,
    #[serde(deserialize_with = "null_default")]
    pub access_modes: Vec<Text>,
    pub storage_class_name: Option<Text>,
    pub volume_mode: Option<Text>,
    /// The claim that the volume is bound to or reserved for.
    pub claim_ref: Option<ClaimRefView>,
    pub csi: Option<CsiVolumeView>,
}

/// The CSI driver of a volume and its handle.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiVolumeView {
    pub driver: Text,
    pub volume_handle: Text,
}

/// A CSINode, which limits the number of volumes of each driver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeView {
    pub spec: CsiNodeSpecView,
}

/// The drivers of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpecView {
    #[serde(deserialize_with = "null_default")]
    pub drivers: Vec<CsiNodeDriverView>,
}

/// A driver of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeDriverView {
    pub name: Text,
    pub allocatable: Option<CsiAllocatableView>,
}

/// The number of volumes that a node can have of a driver; `None` for no limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiAllocatableView {
    pub count: Option<u32>,
}

/// A CSIDriver, which may publish its storage capacity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriverView {
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
    pub storage_class_name: Text,
    pub node_topology: Option<LabelSelectorView>,
    pub capacity: Option<Quantity>,
    /// The largest volume; `None` falls back to `capacity`.
    pub maximum_volume_size: Option<Quantity>,
}

/// The claim that a volume is reserved for; without a uid, it is identified by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRefView {
    pub namespace: Text,
    pub name: Text,
    pub uid: Option<Text>,
}

/// A StorageClass. With `WaitForFirstConsumer`, the scheduler chooses the volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClassView {
    pub provisioner: Text,
    pub volume_binding_mode: Option<Text>,
    #[serde(deserialize_with = "null_default")]
    pub allowed_topologies: Vec<TopologyTermView>,
}

/// Topologies in which a provisioner can create volumes; all expressions must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyTermView {
    #[serde(deserialize_with = "null_default")]
    pub match_label_expressions: Vec<TopologyView>,
}

/// The allowed values of a node label.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyView {
    pub key: Text,
    #[serde(deserialize_with = "null_default")]
    pub values: Vec<Text>,
}

/// The nodes that can reach a volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeNodeAffinityView {
    pub required: Option<NodeSelectorView>,
}

/// A PodDisruptionBudget: its selector, the allowed disruptions, and the Pods already counted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetView {
    pub metadata: MetaView,
    pub spec: BudgetSpecView,
    pub status: BudgetStatusView,
}

/// The selector of a budget.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpecView {
    pub selector: Option<LabelSelectorView>,
}

/// The disruptions that the disruption controller allows now.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatusView {
    /// The number of evictions allowed now.
    pub disruptions_allowed: i64,
    /// Pods whose eviction is already counted.
    #[serde(deserialize_with = "null_default")]
    pub disrupted_pods: BTreeMap<Text, serde::de::IgnoredAny>,
}

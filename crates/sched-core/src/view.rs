//! The fields of API objects that scheduling reads; everything else is skipped while decoding.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{Quantity, null_default};
use serde::Deserialize;

type Text = Box<str>;
pub(crate) type TextMap = BTreeMap<Text, Text>;

/// What is read of any object's metadata.
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

/// An owner; the controlling one says what the Pod is spread with.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerView {
    pub kind: Text,
    pub name: Text,
    pub controller: Option<bool>,
}

/// A Pod as the API shows it; [`crate::Pod`] is what is made of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodView {
    pub metadata: MetaView,
    pub spec: PodSpecView,
    pub status: PodStatusView,
}

/// Whatever in a Pod's spec a plugin reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    pub node_name: Option<Arc<str>>,
    pub scheduler_name: Option<Arc<str>>,
    pub priority: Option<i32>,
    pub preemption_policy: Option<Text>,
    #[serde(deserialize_with = "null_default")]
    pub containers: Vec<ContainerView>,
    #[serde(deserialize_with = "null_default")]
    pub init_containers: Vec<ContainerView>,
    pub resources: Option<RequirementsView>,
    #[serde(deserialize_with = "null_default")]
    pub overhead: BTreeMap<Text, Quantity>,
    #[serde(deserialize_with = "null_default")]
    pub node_selector: TextMap,
    pub affinity: Option<AffinityView>,
    #[serde(deserialize_with = "null_default")]
    pub tolerations: Vec<TolerationView>,
    #[serde(deserialize_with = "null_default")]
    pub topology_spread_constraints: Vec<SpreadView>,
    #[serde(deserialize_with = "null_default")]
    pub scheduling_gates: Vec<GateView>,
    #[serde(deserialize_with = "null_default")]
    pub volumes: Vec<VolumeView>,
    #[serde(deserialize_with = "null_default")]
    pub resource_claims: Vec<PodClaimView>,
    pub host_network: Option<bool>,
}

/// One of the Pod's ResourceClaims; one without a name is made from a template, and its status says its name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodClaimView {
    pub name: Text,
    pub resource_claim_name: Option<Text>,
}

/// How far the Pod has come, and the node that was nominated for it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatusView {
    pub phase: Text,
    pub nominated_node_name: Option<Arc<str>>,
    pub start_time: Option<Text>,
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<ConditionView>,
    #[serde(deserialize_with = "null_default")]
    pub resource_claim_statuses: Vec<PodClaimView>,
}

/// A condition; `PodScheduled` is the one that the scheduler writes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConditionView {
    pub r#type: Text,
    pub status: Text,
    pub reason: Text,
    pub message: Text,
}

/// A container or init container: what it asks for, and the node's ports that it takes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerView {
    pub image: Text,
    pub restart_policy: Option<Text>,
    pub resources: Option<RequirementsView>,
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<PortView>,
}

/// Limits are not read: the API server has made requests of those without.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequirementsView {
    #[serde(deserialize_with = "null_default")]
    pub requests: BTreeMap<Text, Quantity>,
}

/// A port of the container, which concerns a node where it has a `hostPort`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortView {
    pub host_port: Option<u16>,
    #[serde(rename = "hostIP")]
    pub host_ip: Option<Text>,
    pub protocol: Option<Text>,
}

/// A reason to wait that somebody else takes away.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GateView {
    pub name: Text,
}

/// A volume, of which claims alone bind a Pod to nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeView {
    pub name: Text,
    pub persistent_volume_claim: Option<ClaimSourceView>,
    pub ephemeral: Option<serde::de::IgnoredAny>,
}

/// The claim of a volume, in the Pod's namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSourceView {
    pub claim_name: Text,
}

/// Which taints the Pod does not mind.
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

/// A requirement of a label's value, or of a node's field.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExpressionView {
    pub key: Text,
    pub operator: Text,
    #[serde(deserialize_with = "null_default")]
    pub values: Vec<Text>,
}

/// How Pods are to be spread over the values of a node label.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreadView {
    pub max_skew: i32,
    pub topology_key: Text,
    pub when_unsatisfiable: Text,
    pub label_selector: Option<LabelSelectorView>,
    pub min_domains: Option<i32>,
    pub node_affinity_policy: Option<Text>,
    pub node_taints_policy: Option<Text>,
    #[serde(deserialize_with = "null_default")]
    pub match_label_keys: Vec<Text>,
}

/// Which nodes the Pod is drawn to, and which Pods it is to be with or apart from.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinityView {
    pub node_affinity: Option<NodeAffinityView>,
    pub pod_affinity: Option<PodAffinityView>,
    pub pod_anti_affinity: Option<PodAffinityView>,
}

/// Required and preferred nodes.
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

/// Terms of which one must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorView {
    #[serde(deserialize_with = "null_default")]
    pub node_selector_terms: Vec<NodeTermView>,
}

/// Expressions that must all hold; a term without any holds for no node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTermView {
    #[serde(deserialize_with = "null_default")]
    pub match_expressions: Vec<ExpressionView>,
    #[serde(deserialize_with = "null_default")]
    pub match_fields: Vec<ExpressionView>,
}

/// A term, and how much it counts for (1 to 100).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreferredNodeView {
    pub weight: i64,
    pub preference: NodeTermView,
}

/// Required and preferred Pods, for affinity as for anti-affinity.
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

/// A term, and how much it counts for (1 to 100).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreferredPodView {
    pub weight: i64,
    pub pod_affinity_term: PodTermView,
}

/// Which Pods, in which namespaces, and within which topology.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTermView {
    pub label_selector: Option<LabelSelectorView>,
    #[serde(deserialize_with = "null_default")]
    pub namespaces: Vec<Text>,
    pub namespace_selector: Option<LabelSelectorView>,
    pub topology_key: Text,
    #[serde(deserialize_with = "null_default")]
    pub match_label_keys: Vec<Text>,
    #[serde(deserialize_with = "null_default")]
    pub mismatch_label_keys: Vec<Text>,
}

/// A node as the API shows it; [`crate::Node`] is what is made of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeView {
    pub metadata: MetaView,
    pub spec: NodeSpecView,
    pub status: NodeStatusView,
}

/// What keeps Pods off the node.
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

/// What the node has to give, and the images that are on it already.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusView {
    #[serde(deserialize_with = "null_default")]
    pub allocatable: BTreeMap<Text, Quantity>,
    #[serde(deserialize_with = "null_default")]
    pub images: Vec<ImageView>,
}

/// An image by all of its names, with its size in bytes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageView {
    #[serde(deserialize_with = "null_default")]
    pub names: Vec<Text>,
    pub size_bytes: i64,
}

/// A Service, ReplicationController, ReplicaSet or StatefulSet: what groups Pods for default spreading.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreaderView {
    pub metadata: MetaView,
    pub spec: SpreaderSpecView,
}

/// Its selector alone.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreaderSpecView {
    pub selector: Option<SpreaderSelectorView>,
}

/// Services and ReplicationControllers select by a map, the others by a label selector.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum SpreaderSelectorView {
    Map(TextMap),
    Selector(LabelSelectorView),
}

/// The metadata of a claim or volume, in which annotations say how far binding has come.
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

/// A claim's or volume's phase, such as `Bound` or `Available`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseView {
    pub phase: Text,
}

/// What the claim wants of a volume, and the one that it has.
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

/// How much room the claim wants (`storage`).
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

/// What the volume offers, on which nodes, and whose it is.
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
    pub claim_ref: Option<ClaimRefView>,
    pub csi: Option<CsiVolumeView>,
}

/// A volume that a CSI driver has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiVolumeView {
    pub driver: Text,
    pub volume_handle: Text,
}

/// A CSINode: how many volumes of each driver its node can have.
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

/// One driver of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeDriverView {
    pub name: Text,
    pub allocatable: Option<CsiAllocatableView>,
}

/// How many volumes a node can have of a driver; any number where none is said.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiAllocatableView {
    pub count: Option<u32>,
}

/// A CSIDriver, which may tell of the room that it has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriverView {
    pub spec: CsiDriverSpecView,
}

/// Whether it does.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriverSpecView {
    pub storage_capacity: Option<bool>,
}

/// A CSIStorageCapacity: how much room there is for volumes of a class on some nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageCapacityView {
    pub storage_class_name: Text,
    pub node_topology: Option<LabelSelectorView>,
    pub capacity: Option<Quantity>,
    pub maximum_volume_size: Option<Quantity>,
}

/// The claim that a volume is kept for; without a UID by name alone.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRefView {
    pub namespace: Text,
    pub name: Text,
    pub uid: Option<Text>,
}

/// A StorageClass; `WaitForFirstConsumer` leaves the choice of a volume to the scheduler.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClassView {
    pub provisioner: Text,
    pub volume_binding_mode: Option<Text>,
    #[serde(deserialize_with = "null_default")]
    pub allowed_topologies: Vec<TopologyTermView>,
}

/// Topologies that a provisioner may make volumes in; all expressions must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyTermView {
    #[serde(deserialize_with = "null_default")]
    pub match_label_expressions: Vec<TopologyView>,
}

/// The values that a node's label may have.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyView {
    pub key: Text,
    #[serde(deserialize_with = "null_default")]
    pub values: Vec<Text>,
}

/// The nodes from which a volume can be reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeNodeAffinityView {
    pub required: Option<NodeSelectorView>,
}

/// A PodDisruptionBudget: its selector, how many disruptions it allows, and which Pods already count.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetView {
    pub metadata: MetaView,
    pub spec: BudgetSpecView,
    pub status: BudgetStatusView,
}

/// Which Pods the budget is of.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpecView {
    pub selector: Option<LabelSelectorView>,
}

/// What the disruption controller allows at present.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatusView {
    pub disruptions_allowed: i64,
    #[serde(deserialize_with = "null_default")]
    pub disrupted_pods: BTreeMap<Text, serde::de::IgnoredAny>,
}

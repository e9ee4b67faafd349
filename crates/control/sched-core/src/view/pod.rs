//! Pods.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{Quantity, null_default};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    affinity::AffinityView,
    meta::{ConditionView, LabelSelectorView, MetaView, Text, TextMap},
    pod_group::SchedulingGroupView,
};

/// A Pod as the API has it; [`crate::Pod`] is compiled from it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodView {
    /// The metadata.
    pub metadata: MetaView,
    /// The spec.
    pub spec: PodSpecView,
    /// The status.
    pub status: PodStatusView,
}

/// The fields of a Pod's spec that plugins read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    /// The node; `None` before binding.
    pub node_name: Option<Arc<str>>,
    /// The scheduler, which selects a profile; `default-scheduler` if `None`.
    pub scheduler_name: Option<Arc<str>>,
    /// The priority; 0 if `None`.
    pub priority: Option<i32>,
    /// `Never` prevents preemption for this Pod.
    pub preemption_policy: Option<Text>,
    /// The containers.
    #[serde(deserialize_with = "null_default")]
    pub containers: Vec<ContainerView>,
    /// Init containers, including sidecars.
    #[serde(deserialize_with = "null_default")]
    pub init_containers: Vec<ContainerView>,
    /// The requests of the Pod as a whole.
    pub resources: Option<RequirementsView>,
    /// The overhead of the RuntimeClass, added to the requests.
    #[serde(deserialize_with = "null_default")]
    pub overhead: BTreeMap<Text, Quantity>,
    /// The labels that a node must have.
    #[serde(deserialize_with = "null_default")]
    pub node_selector: TextMap,
    /// The affinity to nodes and other Pods.
    pub affinity: Option<AffinityView>,
    /// The tolerations of taints.
    #[serde(deserialize_with = "null_default")]
    pub tolerations: Vec<TolerationView>,
    /// The constraints that spread Pods over topology domains.
    #[serde(deserialize_with = "null_default")]
    pub topology_spread_constraints: Vec<SpreadView>,
    /// Gates that hold the Pod until all are removed.
    #[serde(deserialize_with = "null_default")]
    pub scheduling_gates: Vec<GateView>,
    /// The volumes.
    #[serde(deserialize_with = "null_default")]
    pub volumes: Vec<VolumeView>,
    /// The ResourceClaims.
    #[serde(deserialize_with = "null_default")]
    pub resource_claims: Vec<PodClaimView>,
    /// The PodGroup that the Pod belongs to.
    pub scheduling_group: Option<SchedulingGroupView>,
    /// `true` if the Pod uses the network of the host.
    pub host_network: Option<bool>,
}

/// An entry of a Pod's ResourceClaims. Without a name, the Pod's status names the claim made from the template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodClaimView {
    /// The name of the entry within the Pod.
    pub name: Text,
    /// The name of the claim.
    pub resource_claim_name: Option<Text>,
}

/// The phase of the Pod and its nominated node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatusView {
    /// The phase, such as `Pending` or `Succeeded`.
    pub phase: Text,
    /// The node that preemption nominated for the Pod.
    pub nominated_node_name: Option<Arc<str>>,
    /// The start time in RFC 3339; `None` before the start.
    pub start_time: Option<Text>,
    /// The conditions.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<ConditionView>,
    /// The claims created from templates.
    #[serde(deserialize_with = "null_default")]
    pub resource_claim_statuses: Vec<PodClaimView>,
}

/// A container or init container: its requests and host ports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerView {
    /// The name.
    pub name: Text,
    /// The image.
    pub image: Text,
    /// `Always` marks a sidecar among the init containers.
    pub restart_policy: Option<Text>,
    /// The rules for restarts after certain exit codes.
    #[serde(deserialize_with = "null_default")]
    pub restart_policy_rules: Vec<RestartRuleView>,
    /// The requests.
    pub resources: Option<RequirementsView>,
    /// The ports.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<PortView>,
}

/// A rule for restarts after certain exit codes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RestartRuleView {
    /// `Restart` or `RestartAllContainers`.
    pub action: Text,
}

/// The requests and limits of a container or a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequirementsView {
    /// The requested amounts by resource name.
    #[serde(deserialize_with = "null_default")]
    pub requests: BTreeMap<Text, Quantity>,
    /// The limits by resource name. Only metrics show them: the API server derives requests from them.
    #[serde(deserialize_with = "null_default")]
    pub limits: BTreeMap<Text, Quantity>,
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
    /// The protocol; `TCP` if `None`.
    pub protocol: Option<Text>,
}

/// A scheduling gate.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GateView {
    /// The name.
    pub name: Text,
}

/// A volume. Only claims limit a Pod's nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeView {
    /// The name within the Pod.
    pub name: Text,
    /// The claim of the volume, if it has one.
    pub persistent_volume_claim: Option<ClaimSourceView>,
    /// Present for a generic ephemeral volume, which has a claim.
    pub ephemeral: Option<IgnoredAny>,
}

/// The claim of a volume, in the Pod's namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSourceView {
    /// The name of the claim.
    pub claim_name: Text,
}

/// A toleration of node taints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TolerationView {
    /// The key of the taint; `None` or empty for every key.
    pub key: Option<Text>,
    /// `Equal` (also if `None`), `Exists`, `Gt` or `Lt`.
    pub operator: Option<Text>,
    /// The value that the operator compares with.
    pub value: Option<Text>,
    /// The effect of the taint; `None` for every effect.
    pub effect: Option<Text>,
}

/// A topology spread constraint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreadView {
    /// The largest allowed difference between two domains.
    pub max_skew: i32,
    /// The node label whose values are the domains.
    pub topology_key: Text,
    /// `DoNotSchedule` for a hard constraint, or `ScheduleAnyway` for a soft one.
    pub when_unsatisfiable: Text,
    /// The Pods that are counted; `None` counts no Pods.
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

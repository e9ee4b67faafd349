//! PodGroups.

use std::sync::Arc;

use api_meta::null_default;
use serde::Deserialize;

use super::meta::{ConditionView, MetaView};

/// A group of Pods with a scheduling policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupView {
    /// The metadata.
    pub metadata: MetaView,
    /// The spec.
    pub spec: PodGroupSpecView,
    /// The status.
    pub status: PodGroupStatusView,
}

/// The spec of a PodGroup.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupSpecView {
    /// The policy.
    pub scheduling_policy: SchedulingPolicyView,
}

/// The policy by which the Pods of a group are scheduled.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingPolicyView {
    /// Present if a minimum of Pods is scheduled together or not at all.
    pub gang: Option<GangView>,
}

/// The gang policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangView {
    /// The number of Pods that must fit at the same time.
    pub min_count: i32,
}

/// The status of a PodGroup.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupStatusView {
    /// The conditions.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<ConditionView>,
}

/// The group that a Pod belongs to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingGroupView {
    /// The name of the PodGroup in the Pod's namespace.
    pub pod_group_name: Option<Arc<str>>,
}

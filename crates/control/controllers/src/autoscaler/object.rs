//! The fields of a HorizontalPodAutoscaler (autoscaling/v2) that the controller reads.

use api_meta::{LabelSelector, ObjectMeta, Quantity, null_default};
use serde::{Deserialize, Serialize};

use crate::views::Condition;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Autoscaler {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Spec,
    pub(super) status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    pub(super) scale_target_ref: ObjectReference,
    pub(super) min_replicas: Option<i32>,
    pub(super) max_replicas: i32,
    #[serde(deserialize_with = "null_default")]
    pub(super) metrics: Vec<Metric>,
    pub(super) behavior: Option<Behavior>,
}

impl Spec {
    pub(super) fn min(&self) -> i32 {
        self.min_replicas.unwrap_or(1)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ObjectReference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
}

/// A metric; `type` names the field that is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metric {
    pub(super) r#type: String,
    pub(super) resource: Option<ResourceMetric>,
    pub(super) container_resource: Option<ResourceMetric>,
    pub(super) pods: Option<NamedMetric>,
    pub(super) object: Option<NamedMetric>,
    pub(super) external: Option<NamedMetric>,
}

/// A resource metric of Pods, or of one of their containers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ResourceMetric {
    pub(super) name: String,
    pub(super) container: String,
    pub(super) target: Target,
}

/// A metric from an adapter: of Pods, of one object, or from outside the cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NamedMetric {
    pub(super) metric: Identifier,
    pub(super) target: Target,
    pub(super) described_object: ObjectReference,
}

/// A metric's name and the selector of its series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Identifier {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Target {
    pub(super) r#type: String,
    pub(super) value: Option<Quantity>,
    pub(super) average_value: Option<Quantity>,
    pub(super) average_utilization: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Behavior {
    pub(super) scale_up: Option<Rules>,
    pub(super) scale_down: Option<Rules>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Rules {
    pub(super) stabilization_window_seconds: Option<u32>,
    pub(super) select_policy: Option<String>,
    #[serde(deserialize_with = "null_default")]
    pub(super) policies: Vec<Policy>,
    pub(super) tolerance: Option<Quantity>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Policy {
    pub(super) r#type: String,
    pub(super) value: i32,
    pub(super) period_seconds: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    pub(super) desired_replicas: i32,
    #[serde(deserialize_with = "null_default")]
    pub(super) conditions: Vec<Condition>,
}

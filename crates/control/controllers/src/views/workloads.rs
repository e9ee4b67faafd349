//! Workloads: the kinds that own Pods.

use api_meta::{LabelSelector, ObjectMeta, Selector, Timestamp, null_default};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{
    condition::{Condition, condition},
    labels::selector,
};

/// A ReplicaSet or a ReplicationController.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReplicaSet {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: ReplicaSetSpec,
    pub(crate) status: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReplicaSetSpec {
    pub(crate) replicas: Option<i64>,
    pub(crate) min_ready_seconds: i64,
    #[serde(deserialize_with = "map_or_selector")]
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) template: Value,
}

/// Decodes the plain map of a ReplicationController or the label selector of other kinds.
fn map_or_selector<'de, D: Deserializer<'de>>(d: D) -> Result<Option<LabelSelector>, D::Error> {
    let Some(value) = Option::<Value>::deserialize(d)? else { return Ok(None) };
    let selector = ["matchLabels", "matchExpressions"].iter().any(|field| !value[*field].is_null());
    let value = if selector { value } else { serde_json::json!({"matchLabels": value}) };
    serde_json::from_value(value).map(Some).map_err(serde::de::Error::custom)
}

impl ReplicaSet {
    pub(crate) fn replicas(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }

    pub(crate) fn selector(&self) -> Selector {
        selector(self.spec.selector.as_ref())
    }

    /// Returns a count from the status.
    pub(crate) fn counted(&self, field: &str) -> i64 {
        self.status[field].as_i64().unwrap_or(0)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Deployment {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: DeploymentSpec,
    pub(crate) status: Value,
}

impl Deployment {
    pub(crate) fn selector(&self) -> Selector {
        selector(self.spec.selector.as_ref())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeploymentSpec {
    pub(crate) replicas: Option<i64>,
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) template: Value,
    pub(crate) strategy: DeploymentStrategy,
    pub(crate) min_ready_seconds: i64,
    pub(crate) revision_history_limit: Option<i64>,
    pub(crate) paused: bool,
    pub(crate) progress_deadline_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeploymentStrategy {
    pub(crate) r#type: String,
    pub(crate) rolling_update: Option<RollingUpdate>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RollingUpdate {
    pub(crate) max_surge: Option<api_meta::IntOrString>,
    pub(crate) max_unavailable: Option<api_meta::IntOrString>,
    pub(crate) partition: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ControllerRevision {
    pub(crate) metadata: ObjectMeta,
    pub(crate) revision: i64,
    pub(crate) data: Value,
}

/// A DaemonSet or a StatefulSet, with the fields of both.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Set {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: SetSpec,
    pub(crate) status: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SetSpec {
    pub(crate) replicas: Option<i64>,
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) template: Value,
    pub(crate) min_ready_seconds: i64,
    pub(crate) revision_history_limit: Option<i64>,
    pub(crate) update_strategy: DeploymentStrategy,
    pub(crate) service_name: Option<String>,
    pub(crate) pod_management_policy: Option<String>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) volume_claim_templates: Vec<Value>,
    pub(crate) ordinals: Option<Ordinals>,
    pub(crate) persistent_volume_claim_retention_policy: RetentionPolicy,
}

/// The claim retention policy of a StatefulSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RetentionPolicy {
    #[serde(deserialize_with = "null_default")]
    pub(crate) when_deleted: String,
    #[serde(deserialize_with = "null_default")]
    pub(crate) when_scaled: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Ordinals {
    pub(crate) start: i64,
}

impl Set {
    pub(crate) fn selector(&self) -> Selector {
        selector(self.spec.selector.as_ref())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Job {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: JobSpec,
    pub(crate) status: JobStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct JobSpec {
    pub(crate) parallelism: Option<i64>,
    pub(crate) completions: Option<i64>,
    pub(crate) completion_mode: Option<String>,
    pub(crate) backoff_limit: Option<i64>,
    pub(crate) backoff_limit_per_index: Option<i64>,
    pub(crate) max_failed_indexes: Option<i64>,
    pub(crate) success_policy: Option<Rules<SuccessRule>>,
    pub(crate) pod_failure_policy: Option<Rules<FailureRule>>,
    pub(crate) active_deadline_seconds: Option<i64>,
    pub(crate) ttl_seconds_after_finished: Option<i64>,
    pub(crate) suspend: bool,
    pub(crate) managed_by: Option<String>,
    pub(crate) pod_replacement_policy: Option<String>,
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) template: Value,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(bound = "R: Deserialize<'de>")]
pub(crate) struct Rules<R> {
    #[serde(default = "Vec::new", deserialize_with = "null_default")]
    pub(crate) rules: Vec<R>,
}

/// The indexes, or the number of indexes, that must succeed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SuccessRule {
    pub(crate) succeeded_indexes: Option<String>,
    pub(crate) succeeded_count: Option<i64>,
}

/// A rule that matches failed Pods by their containers' exit codes or their conditions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FailureRule {
    pub(crate) action: String,
    pub(crate) on_exit_codes: Option<OnExitCodes>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) on_pod_conditions: Vec<OnPodCondition>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OnExitCodes {
    pub(crate) container_name: Option<String>,
    pub(crate) operator: String,
    pub(crate) values: Vec<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct OnPodCondition {
    pub(crate) r#type: String,
    pub(crate) status: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct JobStatus {
    pub(crate) start_time: Option<Timestamp>,
    pub(crate) completion_time: Option<Timestamp>,
    pub(crate) active: i64,
    pub(crate) ready: Option<i64>,
    pub(crate) terminating: Option<i64>,
    pub(crate) succeeded: i64,
    pub(crate) failed: i64,
    pub(crate) completed_indexes: Option<String>,
    pub(crate) failed_indexes: Option<String>,
    pub(crate) uncounted_terminated_pods: Option<UncountedPods>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) conditions: Vec<Condition>,
}

/// The uids of ended Pods that still have their finalizer and are not counted yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UncountedPods {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) succeeded: Vec<String>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) failed: Vec<String>,
}

impl Job {
    pub(crate) fn selector(&self) -> Selector {
        selector(self.spec.selector.as_ref())
    }

    /// Returns whether the Job completed or failed, and when.
    pub(crate) fn finished(&self) -> Option<(bool, Option<Timestamp>)> {
        let of = |kind| condition(&self.status.conditions, kind).filter(|c| c.status == "True");
        let complete = of("Complete").map(|c| (true, c.last_transition_time));
        complete.or_else(|| of("Failed").map(|c| (false, c.last_transition_time)))
    }

    /// Reports whether a terminating Pod is replaced only after it has ended.
    pub(crate) fn replaces_late(&self) -> bool {
        self.spec.pod_failure_policy.is_some()
            || self.spec.pod_replacement_policy.as_deref() == Some("Failed")
    }

    pub(crate) fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }
}

//! The fields that controllers read. Informers cache nothing else, so each field costs memory for every object.

mod devices;
mod storage;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};

use api_meta::{LabelSelector, ObjectMeta, Selector, Timestamp, null_default};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub(crate) use devices::*;
pub(crate) use storage::*;
pub(crate) use workloads::*;

pub(crate) type Labels = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Namespace {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: NamespaceSpec,
    pub(crate) status: NamespaceStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NamespaceSpec {
    #[serde(deserialize_with = "null_default")]
    pub(crate) finalizers: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NamespaceStatus {
    pub(crate) phase: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Pod {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: PodSpec,
    pub(crate) status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    pub(crate) node_name: Option<String>,
    pub(crate) restart_policy: Option<String>,
    pub(crate) hostname: Option<String>,
    pub(crate) subdomain: Option<String>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) containers: Vec<Container>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) init_containers: Vec<Container>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) tolerations: Vec<Toleration>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) volumes: Vec<Volume>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) resource_claims: Vec<PodClaim>,
    /// The node that the Pod's required affinity names, as a daemon Pod's does.
    #[serde(rename = "affinity", deserialize_with = "daemon_node")]
    pub(crate) daemon_node: Option<String>,
}

/// Returns the node of a required affinity for exactly one node name.
fn daemon_node<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    let affinity = Value::deserialize(d)?;
    let required = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let field = &required["nodeSelectorTerms"][0]["matchFields"][0];
    let named = field["key"] == "metadata.name" && field["operator"] == "In";
    let node = field["values"][0].as_str().filter(|_| named);
    Ok(node.map(str::to_owned))
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) restart_policy: Option<String>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) ports: Vec<ContainerPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerPort {
    pub(crate) name: Option<String>,
    pub(crate) container_port: i32,
    pub(crate) protocol: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) persistent_volume_claim: Option<ClaimSource>,
    pub(crate) ephemeral: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimSource {
    pub(crate) claim_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Toleration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) toleration_seconds: Option<i64>,
}

impl Toleration {
    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        let given = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
        given(&self.effect).is_none_or(|effect| effect == taint.effect)
            && given(&self.key).is_none_or(|key| key == taint.key)
            && match self.operator.as_deref() {
                Some("Exists") => true,
                None | Some("" | "Equal") => self.value.as_deref().unwrap_or("") == taint.value(),
                _ => false,
            }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Taint {
    pub(crate) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    pub(crate) effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_added: Option<Timestamp>,
}

impl Taint {
    pub(crate) fn value(&self) -> &str {
        self.value.as_deref().unwrap_or("")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    pub(crate) phase: String,
    pub(crate) reason: Option<String>,
    #[serde(rename = "podIP")]
    pub(crate) pod_ip: Option<String>,
    #[serde(rename = "podIPs", deserialize_with = "null_default")]
    pub(crate) pod_ips: Vec<PodIp>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) conditions: Vec<Condition>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
    pub(crate) start_time: Option<Timestamp>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) resource_claim_statuses: Vec<PodClaimStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct PodIp {
    pub(crate) ip: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerStatus {
    pub(crate) name: String,
    pub(crate) restart_count: i64,
    pub(crate) state: ContainerState,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerState {
    pub(crate) terminated: Option<TerminatedState>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TerminatedState {
    pub(crate) exit_code: i32,
    pub(crate) finished_at: Option<Timestamp>,
}

/// A condition of any object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    pub(crate) r#type: String,
    pub(crate) status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_transition_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_update_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_heartbeat_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) observed_generation: Option<i64>,
}

pub(crate) fn condition<'a>(all: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    all.iter().find(|c| c.r#type == kind)
}

pub(crate) fn is_true(all: &[Condition], kind: &str) -> bool {
    condition(all, kind).is_some_and(|c| c.status == "True")
}

impl Pod {
    /// Returns the names of the Pod's claims, including those of ephemeral volumes.
    pub(crate) fn claims(&self) -> impl Iterator<Item = String> {
        self.spec.volumes.iter().filter_map(|volume| match &volume.persistent_volume_claim {
            Some(source) => Some(source.claim_name.clone()),
            None => volume.ephemeral.as_ref().map(|_| self.ephemeral_claim(volume)),
        })
    }

    /// Returns the keys of the Pod's claims.
    pub(crate) fn claim_keys(&self) -> Vec<String> {
        self.claims().map(|name| format!("{}/{name}", self.metadata.namespace)).collect()
    }

    /// Returns the name of the claim of an ephemeral volume.
    pub(crate) fn ephemeral_claim(&self, volume: &Volume) -> String {
        format!("{}-{}", self.metadata.name, volume.name)
    }

    pub(crate) fn ready(&self) -> bool {
        is_true(&self.status.conditions, "Ready")
    }

    /// Returns the time at which the Pod became ready.
    pub(crate) fn ready_since(&self) -> Option<Timestamp> {
        let ready = condition(&self.status.conditions, "Ready").filter(|c| c.status == "True")?;
        ready.last_transition_time
    }

    pub(crate) fn finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Reports whether the Pod counts towards a controller's replicas.
    pub(crate) fn active(&self) -> bool {
        !self.finished() && !self.metadata.terminating()
    }

    pub(crate) fn available(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        self.ready()
            && (min_ready_seconds == 0
                || self.ready_since().is_some_and(|at| at.unix() + min_ready_seconds <= now.unix()))
    }

    pub(crate) fn restarts(&self) -> i64 {
        self.status.container_statuses.iter().map(|c| c.restart_count).sum()
    }

    pub(crate) fn node(&self) -> &str {
        self.spec.node_name.as_deref().unwrap_or("")
    }

    pub(crate) fn ips(&self) -> impl Iterator<Item = &str> {
        let listed = self.status.pod_ips.iter().map(|ip| ip.ip.as_str());
        let single =
            self.status.pod_ips.is_empty().then_some(self.status.pod_ip.as_deref()).flatten();
        listed.chain(single)
    }
}

/// Converts a selector. An invalid or empty one selects nothing, because selecting all Pods would do more harm.
pub(crate) fn selector(of: Option<&LabelSelector>) -> Selector {
    let selector = of.filter(|s| !s.is_empty()).map(LabelSelector::to_selector);
    selector.and_then(Result::ok).unwrap_or_else(Selector::nothing)
}

pub(crate) fn conditions(status: &Value) -> Vec<Condition> {
    serde_json::from_value(status["conditions"].clone()).unwrap_or_default()
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Service {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceSpec {
    pub(crate) r#type: String,
    #[serde(deserialize_with = "null_default")]
    pub(crate) selector: Labels,
    #[serde(deserialize_with = "null_default")]
    pub(crate) ports: Vec<ServicePort>,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<String>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) ip_families: Vec<String>,
    pub(crate) publish_not_ready_addresses: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServicePort {
    pub(crate) name: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) port: i32,
    pub(crate) target_port: Option<api_meta::IntOrString>,
    pub(crate) app_protocol: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Node {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: NodeSpec,
    pub(crate) status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pub(crate) pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs", deserialize_with = "null_default")]
    pub(crate) pod_cidrs: Vec<String>,
    pub(crate) unschedulable: bool,
    #[serde(deserialize_with = "null_default")]
    pub(crate) taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStatus {
    #[serde(deserialize_with = "null_default")]
    pub(crate) conditions: Vec<Condition>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) volumes_attached: Vec<AttachedVolume>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) volumes_in_use: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct AttachedVolume {
    pub(crate) name: String,
}

impl NodeStatus {
    pub(crate) fn attached(&self) -> BTreeSet<String> {
        self.volumes_attached.iter().map(|volume| volume.name.clone()).collect()
    }
}

impl Service {
    /// Returns the selector. An empty one selects nothing.
    pub(crate) fn selector(&self) -> Selector {
        let match_labels = self.spec.selector.clone();
        selector(Some(&LabelSelector { match_labels, ..LabelSelector::default() }))
    }
}

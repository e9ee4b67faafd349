//! Pods: the spec and status fields that controllers read.

use api_meta::{ObjectMeta, Timestamp, exact_list};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{
    condition::{Condition, condition, is_true},
    devices::{PodClaim, PodClaimStatus},
    taint::Toleration,
};

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
    #[serde(deserialize_with = "exact_list")]
    pub(crate) containers: Vec<Container>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) init_containers: Vec<Container>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) tolerations: Vec<Toleration>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) volumes: Vec<Volume>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) resource_claims: Vec<PodClaim>,
    /// The PodGroup that the Pod belongs to.
    pub(crate) scheduling_group: Option<SchedulingGroup>,
    /// The node that the Pod's required affinity names, as a daemon Pod's does.
    #[serde(rename = "affinity", deserialize_with = "daemon_node")]
    pub(crate) daemon_node: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SchedulingGroup {
    pub(crate) pod_group_name: Option<String>,
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
    #[serde(deserialize_with = "exact_list")]
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

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    pub(crate) phase: String,
    pub(crate) reason: Option<String>,
    #[serde(rename = "podIP")]
    pub(crate) pod_ip: Option<String>,
    #[serde(rename = "podIPs", deserialize_with = "exact_list")]
    pub(crate) pod_ips: Vec<PodIp>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) conditions: Vec<Condition>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
    pub(crate) start_time: Option<Timestamp>,
    #[serde(deserialize_with = "exact_list")]
    pub(crate) resource_claim_statuses: Vec<PodClaimStatus>,
    pub(crate) extended_resource_claim_status: Option<ExtendedClaimStatus>,
}

/// The claim that the scheduler created for the Pod's extended resources.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ExtendedClaimStatus {
    pub(crate) resource_claim_name: String,
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

impl Pod {
    /// Returns the names of the Pod's claims, including those of ephemeral volumes.
    pub(crate) fn claims(&self) -> impl Iterator<Item = String> {
        self.spec.volumes.iter().filter_map(|volume| match &volume.persistent_volume_claim {
            Some(source) => Some(source.claim_name.clone()),
            None => volume.ephemeral.as_ref().map(|_| self.ephemeral_claim(volume)),
        })
    }

    /// Returns the key of the Pod's PodGroup.
    pub(crate) fn group_key(&self) -> Option<String> {
        let name = self.spec.scheduling_group.as_ref()?.pod_group_name.as_ref()?;
        Some(format!("{}/{name}", self.metadata.namespace))
    }

    /// Returns the keys of the Pod's claims.
    pub(crate) fn claim_keys(&self) -> Vec<String> {
        self.claims().map(|name| format!("{}/{name}", self.metadata.namespace)).collect()
    }

    /// Returns the name of the claim of an ephemeral volume.
    pub(crate) fn ephemeral_claim(&self, volume: &Volume) -> String {
        format!("{}-{}", self.metadata.name, volume.name)
    }

    /// Returns the name of the claim for a Pod's entry, and whether it was created from a template.
    pub(crate) fn device_claim(&self, claim: &PodClaim) -> Option<(String, bool)> {
        if let Some(name) = &claim.resource_claim_name {
            return Some((name.clone(), false));
        }
        let claim_status =
            self.status.resource_claim_statuses.iter().find(|s| s.name == claim.name)?;
        claim_status.resource_claim_name.clone().map(|name| (name, true))
    }

    /// Returns the keys of the Pod's existing claims.
    pub(crate) fn device_claim_keys(&self) -> Vec<String> {
        let claims = self.spec.resource_claims.iter().filter_map(|claim| self.device_claim(claim));
        let extended = self.status.extended_resource_claim_status.iter();
        let extended = extended.map(|status| status.resource_claim_name.clone());
        let names = claims.map(|(name, _)| name).chain(extended);
        names.map(|name| format!("{}/{name}", self.metadata.namespace)).collect()
    }

    /// Reports whether the Pod has claims for devices.
    pub(crate) fn uses_device_claims(&self) -> bool {
        !self.spec.resource_claims.is_empty()
            || self.status.extended_resource_claim_status.is_some()
    }

    /// Reports whether the Pod has ended, or is terminating without ever having had a node.
    pub(crate) fn is_done(&self) -> bool {
        self.is_finished() || self.metadata.terminating() && self.node().is_empty()
    }

    pub(crate) fn is_ready(&self) -> bool {
        is_true(&self.status.conditions, "Ready")
    }

    /// Returns the time at which the Pod became ready.
    pub(crate) fn ready_since(&self) -> Option<Timestamp> {
        let ready = condition(&self.status.conditions, "Ready").filter(|c| c.status == "True")?;
        ready.last_transition_time
    }

    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Reports whether the Pod counts towards a controller's replicas.
    pub(crate) fn is_active(&self) -> bool {
        !self.is_finished() && !self.metadata.terminating()
    }

    pub(crate) fn is_available(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        self.is_ready()
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

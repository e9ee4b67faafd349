//! ResourceClaims, and how Pods refer to them.

use std::sync::Arc;

use api_meta::{ObjectMeta, null_default};
use serde::Deserialize;

use super::Pod;
use crate::shared::Watched;

/// An entry of a Pod's ResourceClaims: a claim's name, or a template's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodClaim {
    pub(crate) name: String,
    pub(crate) resource_claim_name: Option<String>,
    pub(crate) resource_claim_template_name: Option<String>,
}

/// The name of the claim for a Pod's entry; `None` if no claim is needed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodClaimStatus {
    pub(crate) name: String,
    pub(crate) resource_claim_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ResourceClaim {
    pub(crate) metadata: ObjectMeta,
    pub(crate) status: ResourceClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ResourceClaimStatus {
    pub(crate) allocation: Option<sched_core::Allocation>,
    #[serde(deserialize_with = "null_default")]
    pub(crate) reserved_for: Vec<Consumer>,
}

impl ResourceClaim {
    /// Returns the Pods that use the claim and have not ended.
    pub(crate) fn active_pods(&self, pods: &Watched<Pod>) -> Vec<Arc<Pod>> {
        let users = self.status.reserved_for.iter().filter(|user| user.is_pod());
        let pod = |user: &Consumer| {
            let pod = pods.get(&format!("{}/{}", self.metadata.namespace, user.name));
            pod.filter(|pod| pod.metadata.uid == user.uid && pod.is_active())
        };
        users.filter_map(pod).collect()
    }
}

/// A user of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Consumer {
    pub(crate) api_group: String,
    pub(crate) resource: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Consumer {
    pub(crate) fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }
}

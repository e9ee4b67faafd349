//! ResourceClaims, and how Pods refer to them.

use api_meta::{ObjectMeta, null_default};
use serde::Deserialize;

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

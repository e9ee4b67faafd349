use api_meta::{ObjectMeta, null_default};
use serde::Deserialize;

/// One of a Pod's ResourceClaims: by name, or to be made from a template.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodClaim {
    pub(crate) name: String,
    pub(crate) resource_claim_name: Option<String>,
    pub(crate) resource_claim_template_name: Option<String>,
}

/// The claim that was made for one of a Pod's, or that none is needed.
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

/// Somebody who uses a claim.
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

impl super::Pod {
    /// The name of the claim that is there for one of the Pod's, and whether it was made for the Pod.
    pub(crate) fn device_claim(&self, claim: &PodClaim) -> Option<(String, bool)> {
        if let Some(name) = &claim.resource_claim_name {
            return Some((name.clone(), false));
        }
        let made = self.status.resource_claim_statuses.iter().find(|s| s.name == claim.name)?;
        made.resource_claim_name.clone().map(|name| (name, true))
    }

    /// The keys of the claims that are there.
    pub(crate) fn device_claim_keys(&self) -> Vec<String> {
        let known = self.spec.resource_claims.iter().filter_map(|claim| self.device_claim(claim));
        known.map(|(name, _)| format!("{}/{name}", self.metadata.namespace)).collect()
    }

    /// It has ended, or ends without ever having had a node.
    pub(crate) fn is_done(&self) -> bool {
        self.finished() || self.metadata.terminating() && self.node().is_empty()
    }
}

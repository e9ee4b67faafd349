//! Expansions of volumes on the node: the claim's status and Events that report them.
//!
//! The resizer of the volume's driver sets `allocatedResourceStatuses` of the claim to `NodeResizePending`. The kubelet
//! answers in the same field, so that a user can request a smaller size after a failure. Older resizers do not use it.

use client::{PatchKind, PatchTarget, Resource};
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use kubelet_objects::Events;
use pod_core::{Timestamp, resources::whole};
use serde_json::{Value, json};

use crate::volumes::Volumes;

/// A claim whose capacity is smaller than that of its volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Growth {
    claim: PersistentVolumeClaim,
    to: Quantity,
    /// The new size, in bytes.
    pub(crate) bytes: i64,
    /// The state in which the resizer or this kubelet left the claim, if the resizer follows the expansion.
    state: Option<String>,
}

const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
/// The condition of a claim whose expansion failed on the node.
const FAILED: &str = "NodeResizeError";

/// The conditions of a claim that are removed after an expansion.
const EXPANSION_CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", FAILED];

impl Growth {
    pub(crate) fn of(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Self> {
        let to = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
        let status = claim.status.as_ref()?;
        let has = status.capacity.as_ref()?.get("storage")?;
        let allocated = status.allocated_resources.as_ref().and_then(|all| all.get("storage"));
        let state = status.allocated_resource_statuses.as_ref().and_then(|all| all.get("storage"));
        if allocated.is_some() || state.is_some() {
            // In any other state, the resizer has to do something first.
            state.filter(|state| [PENDING, IN_PROGRESS].contains(&state.as_str()))?;
        }
        let to = allocated.unwrap_or(to);
        let (bytes, has) = (whole(to), whole(has));
        let state = state.cloned();
        (bytes > has).then(|| Self { claim: claim.clone(), to: to.clone(), bytes, state })
    }

    fn conditions(&self) -> impl Iterator<Item = &PersistentVolumeClaimCondition> {
        self.claim.status.iter().flat_map(|status| status.conditions.iter().flatten())
    }

    /// Returns the patch of the claim's status before the expansion.
    fn start(&self) -> Option<Value> {
        let patch = || json!({"status": {"allocatedResourceStatuses": {"storage": IN_PROGRESS}}});
        (self.state.as_deref() == Some(PENDING)).then(patch)
    }

    /// Returns the patch of the claim's status after a failure. If the user has requested another size since an earlier
    /// failure, the expansion is infeasible, so that the resizer decides.
    fn failure(&self, error: &csi::Error, now: Timestamp) -> Option<Value> {
        if self.state.is_none() || !error.is_final() {
            return None;
        }
        let failed_before = self.conditions().any(|condition| condition.type_ == FAILED);
        let requests = self.claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let requests = requests.and_then(|resources| resources.requests.as_ref()?.get("storage"));
        let differs = requests.is_some_and(|requested| whole(requested) != self.bytes);
        let is_infeasible = error.is_infeasible() || failed_before && differs;
        if failed_before && !is_infeasible {
            return None;
        }
        let condition = json!({
            "type": FAILED, "status": "True", "lastTransitionTime": now.to_string(),
            "message": format!("failed to expand pvc with {error}"),
        });
        let others = self.conditions().filter(|condition| condition.type_ != FAILED);
        let conditions: Vec<Value> =
            others.map(|condition| json!(condition)).chain([condition]).collect();
        let state = if is_infeasible { INFEASIBLE } else { IN_PROGRESS };
        let states = json!({"storage": state});
        Some(json!({"status": {"conditions": conditions, "allocatedResourceStatuses": states}}))
    }

    /// Returns the patch of the claim's status after the expansion.
    fn patch(&self) -> Value {
        let conditions =
            self.conditions().filter(|c| !EXPANSION_CONDITIONS.contains(&c.type_.as_str()));
        json!({"status": {
            "capacity": {"storage": self.to.0},
            "conditions": conditions.map(|condition| json!(condition)).collect::<Vec<_>>(),
            "allocatedResourceStatuses": {"storage": null},
        }})
    }
}

/// Reports expansions to the API server.
#[derive(Clone)]
pub(crate) struct GrowthReporter {
    api: Option<client::Client>,
    events: Events,
}

impl GrowthReporter {
    pub(crate) fn of(volumes: &Volumes) -> Self {
        Self { api: volumes.objects.client().cloned(), events: volumes.events.clone() }
    }

    /// Writes the claim's status before an expansion.
    pub(crate) async fn start(&self, growth: &Growth) -> Result<(), client::Error> {
        self.write(growth, growth.start()).await
    }

    /// Writes the claim's status after the driver's error.
    pub(crate) async fn fail(
        &self,
        growth: &Growth,
        error: &csi::Error,
        now: Timestamp,
    ) -> Result<(), client::Error> {
        self.write(growth, growth.failure(error, now)).await
    }

    async fn write(&self, growth: &Growth, patch: Option<Value>) -> Result<(), client::Error> {
        let (Some(api), Some(patch)) = (&self.api, patch) else { return Ok(()) };
        let meta = &growth.claim.metadata;
        let at = PatchTarget {
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            name: meta.name.as_deref().unwrap_or_default(),
            subresource: "status",
        };
        let resource = &Resource::PERSISTENT_VOLUME_CLAIMS;
        api.patch::<Value>(resource, at, PatchKind::Merge, &patch).await.map(drop)
    }

    /// Writes the claim's status after an expansion, and records Events about the Pod and the claim, as upstream.
    pub(crate) async fn report(
        &self,
        growth: &Growth,
        pod: &Pod,
        volume: &str,
    ) -> Result<(), client::Error> {
        self.write(growth, Some(growth.patch())).await?;
        let message = format!("MountVolume.NodeExpandVolume succeeded for volume {volume:?}");
        self.events.normal(pod, "FileSystemResizeSuccessful", message.clone());
        self.events.of_claim(&growth.claim, "FileSystemResizeSuccessful", message);
        Ok(())
    }
}

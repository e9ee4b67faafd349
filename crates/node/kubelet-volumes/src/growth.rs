//! Expansions of volumes on the node: the claim's status and Events that report them.

use client::{PatchKind, PatchTarget, Resource};
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use kubelet_objects::Events;
use pod_core::resources::whole;
use serde_json::{Value, json};

use crate::volumes::Volumes;

/// A claim whose capacity is smaller than that of its volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Growth {
    claim: PersistentVolumeClaim,
    to: Quantity,
    /// The new size, in bytes.
    pub(crate) bytes: i64,
}

/// The conditions of a claim that are removed after an expansion.
const EXPANSION_CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

impl Growth {
    pub(crate) fn of(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Self> {
        let to = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
        let has = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
        let (bytes, has) = (whole(to), whole(has));
        (bytes > has).then(|| Self { claim: claim.clone(), to: to.clone(), bytes })
    }

    /// Returns the patch of the claim's status after the expansion.
    fn patch(&self) -> Value {
        let status = self.claim.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let conditions = conditions.filter(|c| !EXPANSION_CONDITIONS.contains(&c.type_.as_str()));
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

    /// Writes the claim's status after an expansion, and records Events about the Pod and the claim, as upstream.
    pub(crate) async fn report(
        &self,
        growth: &Growth,
        pod: &Pod,
        volume: &str,
    ) -> Result<(), client::Error> {
        let Some(api) = &self.api else { return Ok(()) };
        let meta = &growth.claim.metadata;
        let at = PatchTarget {
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            name: meta.name.as_deref().unwrap_or_default(),
            subresource: "status",
        };
        let resource = &Resource::PERSISTENT_VOLUME_CLAIMS;
        api.patch::<Value>(resource, at, PatchKind::Merge, &growth.patch()).await?;
        let message = format!("MountVolume.NodeExpandVolume succeeded for volume {volume:?}");
        self.events.normal(pod, "FileSystemResizeSuccessful", message.clone());
        self.events.of_claim(&growth.claim, "FileSystemResizeSuccessful", message);
        Ok(())
    }
}

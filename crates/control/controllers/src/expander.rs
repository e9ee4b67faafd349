//! Claims that request more storage (persistentvolume-expander-controller).
//!
//! The resizer of the volume's CSI driver does the work. This controller only records an Event that it waits for it.

use client::{Resource, WorkQueue};

use crate::{
    context::{Context, synced},
    pods::OwnerOf,
    views::{PersistentVolume, VolumeClaim},
};

const CLAIMS: Resource = Resource::PERSISTENT_VOLUME_CLAIMS;

/// Reports whether a bound claim requests more than its capacity.
fn needs_expansion(claim: &VolumeClaim, volume: &PersistentVolume) -> bool {
    let bound = volume.spec.claim_ref.as_ref().is_some_and(|r| r.names(&claim.metadata));
    let has = claim.status.capacity.get("storage");
    bound && has.is_some_and(|has| claim.size() > *has)
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let claims = context.watch::<VolumeClaim>(CLAIMS);
    let volumes = context.watch::<PersistentVolume>(Resource::PERSISTENT_VOLUMES);
    claims.on_key_if(&queue, |change| {
        change.old.zip(change.new).is_some_and(|(old, new)| new.size() > old.size())
    });
    let waits = vec![synced(&claims), synced(&volumes)];
    let state = (context.clone(), claims, volumes);
    context.run(&queue, 1, waits, state, |(context, claims, volumes), key| async move {
        let Some(claim) = claims.get(&key) else { return Ok(()) };
        let volume = volumes.get(&claim.spec.volume_name);
        if volume.is_some_and(|volume| needs_expansion(&claim, &volume)) {
            let object = OwnerOf::new(CLAIMS, &claim.metadata).object();
            let text = "waiting for an external controller to expand this PVC";
            context.events.normal(object, "ExternalExpanding", text);
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expands_bound_claim_that_requests_more() {
        let claim = |asks: &str| -> VolumeClaim {
            serde_json::from_value(json!({
                "metadata": {"namespace": "n", "name": "c", "uid": "u"},
                "spec": {"resources": {"requests": {"storage": asks}}},
                "status": {"capacity": {"storage": "1Gi"}}}))
            .unwrap()
        };
        let volume = |uid: &str| -> PersistentVolume {
            let claim = json!({"namespace": "n", "name": "c", "uid": uid});
            serde_json::from_value(json!({"spec": {"claimRef": claim}})).unwrap()
        };
        assert!(needs_expansion(&claim("2Gi"), &volume("u")));
        assert!(!needs_expansion(&claim("1024Mi"), &volume("u")));
        assert!(!needs_expansion(&claim("2Gi"), &volume("other")));
    }
}

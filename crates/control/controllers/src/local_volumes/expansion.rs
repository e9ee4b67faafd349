//! Plans the expansion of a volume: first the volume's capacity, then the claim's status. The node's kubelet does the
//! rest at the volume's next mount.

use api_meta::{Quantity, Timestamp};
use serde_json::{Value, json};

use super::plan::{PROVISIONED_BY, PROVISIONER, size_problem};
use crate::views::{PersistentVolume, VolumeClaim, is_true};

/// The condition of a claim whose volume the kubelet has to expand.
const PENDING: &str = "FileSystemResizePending";

/// The next step of an expansion.
#[derive(Debug, PartialEq)]
pub(super) enum Expansion {
    Nothing,
    /// The volume cannot have the size.
    Refused(String),
    /// Changes the volume's capacity.
    Volume(Value),
    /// Changes the claim's status.
    Claim(Value),
}

/// Plans the next step for a claim that requests more than its capacity.
pub(super) fn expand(claim: &VolumeClaim, volume: &PersistentVolume, now: Timestamp) -> Expansion {
    let own = |key: &str| volume.metadata.annotations.get(key).is_some_and(|by| by == PROVISIONER);
    let is_bound = claim.spec.volume_name == volume.metadata.name
        && volume.spec.claim_ref.as_ref().is_some_and(|r| r.names(&claim.metadata));
    let size = claim.size();
    let grows = claim.status.capacity.get("storage").is_some_and(|has| size > *has);
    if !own(PROVISIONED_BY) || !is_bound || !grows || claim.metadata.terminating() {
        return Expansion::Nothing;
    }
    if let Some(message) = size_problem(size) {
        return Expansion::Refused(message);
    }
    if volume.size() < size {
        return Expansion::Volume(json!({"spec": {"capacity": {"storage": size}}}));
    }
    let allocated = claim.status.allocated_resources.get("storage");
    if allocated == Some(&size) && is_true(&claim.status.conditions, PENDING) {
        return Expansion::Nothing;
    }
    Expansion::Claim(pending(claim, size, now))
}

fn pending(claim: &VolumeClaim, size: Quantity, now: Timestamp) -> Value {
    let others = claim.status.conditions.iter().filter(|c| c.r#type != PENDING);
    let mut conditions: Vec<Value> = others.map(|condition| json!(condition)).collect();
    conditions.push(json!({
        "type": PENDING,
        "status": "True",
        "lastTransitionTime": now.to_seconds(),
        "message": "Waiting for user to (re-)start a pod to finish file system resize of volume on node.",
    }));
    json!({"status": {
        "conditions": conditions,
        "allocatedResources": {"storage": size},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(request: &str, status: Value) -> VolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "c", "uid": "u"},
            "spec": {"volumeName": "pvc-u", "resources": {"requests": {"storage": request}}},
            "status": status}))
        .unwrap()
    }

    fn volume(size: &str, provisioner: &str, uid: &str) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": "pvc-u", "annotations": {PROVISIONED_BY: provisioner}},
            "spec": {"capacity": {"storage": size},
                "claimRef": {"namespace": "n", "name": "c", "uid": uid}}}))
        .unwrap()
    }

    #[test]
    fn expands_own_bound_volume_before_claim() {
        let status = json!({"capacity": {"storage": "1Gi"}});
        let own = volume("1Gi", PROVISIONER, "u");
        let now = Timestamp::from_unix(0, 0);
        let plan =
            |request: &str, of: &PersistentVolume| expand(&claim(request, status.clone()), of, now);
        assert_eq!(plan("1Gi", &own), Expansion::Nothing);
        assert_eq!(plan("512Mi", &own), Expansion::Nothing);
        let to = json!({"spec": {"capacity": {"storage": "2Gi"}}});
        assert_eq!(plan("2Gi", &own), Expansion::Volume(to));
        assert!(matches!(plan("8Ei", &own), Expansion::Refused(_)));
        assert_eq!(plan("2Gi", &volume("1Gi", "other/p", "u")), Expansion::Nothing);
        assert_eq!(plan("2Gi", &volume("1Gi", PROVISIONER, "thief")), Expansion::Nothing);
        let grown = volume("2Gi", PROVISIONER, "u");
        let Expansion::Claim(change) = plan("2Gi", &grown) else {
            panic!("no change of the claim")
        };
        assert_eq!(change["status"]["allocatedResourceStatuses"]["storage"], "NodeResizePending");
        let mut status = status.clone();
        status.as_object_mut().unwrap().extend(change["status"].as_object().unwrap().clone());
        assert_eq!(expand(&claim("2Gi", status.clone()), &grown, now), Expansion::Nothing);
        let more = expand(&claim("3Gi", status), &volume("3Gi", PROVISIONER, "u"), now);
        let Expansion::Claim(change) = more else { panic!("no change of the claim") };
        assert_eq!(change["status"]["conditions"].as_array().unwrap().len(), 1);
    }
}

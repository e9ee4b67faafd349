//! Applies the claim retention policy of a StatefulSet by owner references.

use api_meta::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

use crate::views::Set;

/// The owner with which a Pod's claim is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimOwner {
    None,
    Set,
    Pod,
}

fn claim_owner(set: &Set, condemned: bool) -> ClaimOwner {
    let policy = &set.spec.persistent_volume_claim_retention_policy;
    match (policy.when_scaled == "Delete", policy.when_deleted == "Delete") {
        (true, _) if condemned => ClaimOwner::Pod,
        (_, true) => ClaimOwner::Set,
        _ => ClaimOwner::None,
    }
}

/// The owner references that a claim may get.
#[derive(Clone)]
pub(super) struct ClaimOwners {
    pub(super) set: OwnerReference,
    pub(super) pod: OwnerReference,
}

/// Returns the claim's owner references if they must change. A claim of another owner stays as it is.
pub(super) fn references(
    set: &Set,
    own: ClaimOwners,
    condemned: bool,
    claim: &ObjectMeta,
) -> Option<Value> {
    let ours = |owner: &OwnerReference| owner.uid == own.set.uid || owner.uid == own.pod.uid;
    if claim.terminating() || claim.controller().is_some_and(|owner| !ours(owner)) {
        return None;
    }
    let mut owners: Vec<OwnerReference> =
        claim.owner_references.iter().filter(|owner| !ours(owner)).cloned().collect();
    match claim_owner(set, condemned) {
        ClaimOwner::None => {}
        ClaimOwner::Set => owners.push(own.set),
        ClaimOwner::Pod => owners.push(own.pod),
    }
    // A reference to the set that is no controller's is replaced.
    let roles = |owners: &[OwnerReference]| {
        let role = |owner: &OwnerReference| (owner.uid.clone(), owner.controller == Some(true));
        owners.iter().map(role).collect::<Vec<_>>()
    };
    (roles(&owners) != roles(&claim.owner_references))
        .then(|| json!({"metadata": {"ownerReferences": owners}}))
}

/// Reports whether the claim is deleted with the former Pod of this name. The successor must not use it.
pub(super) fn is_deleted_with_pod(claim: &ObjectMeta) -> bool {
    claim.terminating() || claim.controller().is_some_and(|owner| owner.kind == "Pod")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(kind: &str, uid: &str) -> OwnerReference {
        OwnerReference {
            kind: kind.to_owned(),
            uid: uid.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }
    }

    #[test]
    fn sets_owner_references_by_policy() {
        for (scaled, deleted, condemned, refers) in [
            ("Retain", "Retain", false, ""),
            ("Retain", "Retain", true, ""),
            ("Retain", "Delete", false, "set"),
            ("Retain", "Delete", true, "set"),
            ("Delete", "Retain", false, ""),
            ("Delete", "Retain", true, "pod"),
            ("Delete", "Delete", false, "set"),
            ("Delete", "Delete", true, "pod"),
            ("", "", true, ""),
        ] {
            let set: Set = serde_json::from_value(json!({"metadata": {"uid": "set"}, "spec": {
                "persistentVolumeClaimRetentionPolicy": {"whenScaled": scaled, "whenDeleted": deleted}}}))
            .unwrap();
            for had in ["", "set", "pod", "other"] {
                let owned = (!had.is_empty()).then(|| owner("x", had));
                let claim = ObjectMeta {
                    owner_references: owned.into_iter().collect(),
                    ..ObjectMeta::default()
                };
                let own =
                    ClaimOwners { set: owner("StatefulSet", "set"), pod: owner("Pod", "pod") };
                let change = references(&set, own, condemned, &claim);
                let case = format!("{scaled} {deleted} {condemned} {had}");
                if had == "other" || had == refers {
                    assert_eq!(change, None, "{case}");
                    continue;
                }
                let change = change.unwrap_or_default();
                let left = &change["metadata"]["ownerReferences"];
                assert_eq!(left[0]["uid"].as_str().unwrap_or_default(), refers, "{case}");
            }
        }
    }

    #[test]
    fn makes_set_the_controller_again() {
        let set: Set = serde_json::from_value(json!({"metadata": {"uid": "set"}, "spec": {
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Retain", "whenDeleted": "Delete"}}}))
        .unwrap();
        let plain = OwnerReference { controller: Some(false), ..owner("StatefulSet", "set") };
        let claim = ObjectMeta { owner_references: vec![plain], ..ObjectMeta::default() };
        let own = ClaimOwners { set: owner("StatefulSet", "set"), pod: owner("Pod", "pod") };
        let change = references(&set, own, false, &claim).unwrap();
        assert_eq!(change["metadata"]["ownerReferences"][0]["controller"], true);
    }
}

//! Which of a StatefulSet's claims go with it, or with a Pod that is scaled away: an owner reference says so.

use api_meta::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

use crate::views::Set;

/// Who the claim of a Pod is to go with, as the set's policy has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    Nobody,
    Set,
    Pod,
}

fn wanted(set: &Set, condemned: bool) -> With {
    let policy = &set.spec.persistent_volume_claim_retention_policy;
    match (policy.when_scaled == "Delete", policy.when_deleted == "Delete") {
        (true, _) if condemned => With::Pod,
        (_, true) => With::Set,
        _ => With::Nobody,
    }
}

/// The claim's owner references, if they are to change. Somebody else's claim is left alone.
pub(super) fn references(
    (set, own): (&Set, OwnerReference),
    (pod, of_pod): (&ObjectMeta, OwnerReference),
    condemned: bool,
    claim: &ObjectMeta,
) -> Option<Value> {
    let ours = |owner: &OwnerReference| owner.uid == own.uid || owner.uid == pod.uid;
    if claim.terminating() || claim.controller().is_some_and(|owner| !ours(owner)) {
        return None;
    }
    let mut owners: Vec<OwnerReference> =
        claim.owner_references.iter().filter(|owner| !ours(owner)).cloned().collect();
    match wanted(set, condemned) {
        With::Nobody => {}
        With::Set => owners.push(own),
        With::Pod => owners.push(of_pod),
    }
    let uids = |owners: &[OwnerReference]| owners.iter().map(|o| o.uid.clone()).collect::<Vec<_>>();
    (uids(&owners) != uids(&claim.owner_references))
        .then(|| json!({"metadata": {"ownerReferences": owners}}))
}

/// Whether the claim is about to go with the former Pod of its name, whose successor must not be given it.
pub(super) fn is_going(claim: &ObjectMeta) -> bool {
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
    fn the_policy_says_with_whom_a_claim_goes() {
        let pod = ObjectMeta { uid: "pod".to_owned(), ..ObjectMeta::default() };
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
                let ours = (&set, owner("StatefulSet", "set"));
                let change = references(ours, (&pod, owner("Pod", "pod")), condemned, &claim);
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
}

use api_meta::{GroupResource, Tree as _};
use api_rules::amounts::quantity;
use serde_json::Value;

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

/// Rejects the growth of a claim unless its storage class allows expansion.
pub(crate) struct PersistentVolumeClaimResize;

fn class_of(claim: &Value) -> &str {
    claim
        .annotation("volume.beta.kubernetes.io/storage-class")
        .unwrap_or_else(|| claim.text("spec.storageClassName"))
}

impl Plugin for PersistentVolumeClaimResize {
    fn validate(&self, request: &Request<'_>, claim: &Value, _: &mut Outcome) -> AdmissionResult {
        let (true, true, Some(old)) =
            (request.is(&GroupResource::PERSISTENT_VOLUME_CLAIMS), request.updates(), request.old)
        else {
            return Ok(());
        };
        let size = |claim: &Value| quantity(claim.at("spec.resources.requests.storage"));
        if size(claim) <= size(old) {
            return Ok(());
        }
        if old.text("status.phase") != "Bound" {
            return Err(
                request.forbidden(claim, "Only bound persistent volume claims can be expanded")
            );
        }
        let class = class_of(claim);
        let grows = !class.is_empty()
            && class == class_of(old)
            && request
                .objects
                .get(&GroupResource::STORAGE_CLASSES, "", class)
                .is_some_and(|class| class.opt_flag("allowVolumeExpansion") == Some(true));
        if grows {
            return Ok(());
        }
        Err(request.forbidden(
            claim,
            "only dynamically provisioned pvc can be resized and the \
            storageclass that provisions the pvc must support resize",
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try};

    #[test]
    fn allows_growth_if_class_allows_expansion() {
        let class = |name: &str, grows: bool| json!({"metadata": {"name": name}, "allowVolumeExpansion": grows});
        let cluster = Cluster::default()
            .with(&GroupResource::STORAGE_CLASSES, class("elastic", true))
            .with(&GroupResource::STORAGE_CLASSES, class("rigid", false));
        let claim = |class: &str, size: &str, phase: &str| json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}}, "status": {"phase": phase}});
        let ask = |old: Value, new: Value| {
            Try::update(&cluster, &GroupResource::PERSISTENT_VOLUME_CLAIMS, old)
                .refusal(&PersistentVolumeClaimResize, new)
        };
        assert!(
            ask(claim("elastic", "1Gi", "Bound"), claim("elastic", "2Gi", "Bound"))
                .starts_with("admitted")
        );
        assert!(
            ask(claim("rigid", "1Gi", "Bound"), claim("rigid", "1Gi", "Bound"))
                .starts_with("admitted")
        );
        assert!(
            ask(claim("rigid", "1Gi", "Bound"), claim("rigid", "2Gi", "Bound"))
                .contains("must support resize")
        );
        assert!(
            ask(claim("elastic", "1Gi", "Pending"), claim("elastic", "2Gi", "Pending"))
                .contains("Only bound")
        );
    }
}

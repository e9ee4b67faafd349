use api_meta::{GroupResource, Tree as _};
use serde_json::Value;

use crate::request::{AdmissionResult, Plugin, Request};

/// Adds the finalizer that keeps volumes, claims and volume attributes classes from being deleted while in use.
pub(crate) struct StorageObjectInUseProtection;

const FINALIZERS: [(GroupResource, &str); 3] = [
    (GroupResource::PERSISTENT_VOLUMES, "kubernetes.io/pv-protection"),
    (GroupResource::PERSISTENT_VOLUME_CLAIMS, "kubernetes.io/pvc-protection"),
    (
        GroupResource {
            group: std::borrow::Cow::Borrowed("storage.k8s.io"),
            resource: std::borrow::Cow::Borrowed("volumeattributesclasses"),
        },
        "kubernetes.io/vac-protection",
    ),
];

impl Plugin for StorageObjectInUseProtection {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.creates() && FINALIZERS.iter().any(|(resource, _)| request.is(resource))
    }

    fn mutate(&self, request: &Request<'_>, object: &mut Value) -> AdmissionResult {
        for (resource, finalizer) in &FINALIZERS {
            if request.is(resource)
                && object.items("metadata.finalizers").iter().all(|f| f != finalizer)
            {
                object.push("metadata.finalizers", *finalizer);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try};

    #[test]
    fn adds_the_finalizer_once() {
        let cluster = Cluster::default();
        let create = Try::create(&cluster, &GroupResource::PERSISTENT_VOLUME_CLAIMS);
        let once =
            create.admitted(&StorageObjectInUseProtection, json!({"metadata": {"name": "c"}}));
        assert_eq!(once["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
        assert_eq!(create.admitted(&StorageObjectInUseProtection, once.clone()), once);
    }
}

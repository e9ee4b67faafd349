use std::sync::Arc;

use api_meta::{GroupResource, Timestamp, Tree as _};
use serde_json::Value;

use crate::request::{AdmissionResult, Plugin, Request};

/// Sets the default storage class of a claim that names none.
pub(crate) struct DefaultStorageClass;

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const IS_DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

impl Plugin for DefaultStorageClass {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::PERSISTENT_VOLUME_CLAIMS) && request.creates()
    }

    fn mutate(&self, request: &Request<'_>, claim: &mut Value) -> AdmissionResult {
        if claim.has("spec.storageClassName") || claim.annotation(CLASS).is_some() {
            return Ok(());
        }
        if let Some(class) = newest_default(request, &GroupResource::STORAGE_CLASSES, &IS_DEFAULT) {
            claim.put(&["spec", "storageClassName"], class.name());
        }
        Ok(())
    }
}

/// Returns the newest object that is marked as the default. Of several with the same age, the first by name.
pub(super) fn newest_default(
    request: &Request<'_>,
    resource: &GroupResource,
    marks: &[&str],
) -> Option<Arc<Value>> {
    let all = request.objects.list(resource, "");
    let marked =
        all.into_iter().filter(|o| marks.iter().any(|mark| o.annotation(mark) == Some("true")));
    marked.min_by_key(|object| {
        let made: Timestamp = object.text("metadata.creationTimestamp").parse().unwrap_or_default();
        (std::cmp::Reverse(made), object.name().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try};

    #[test]
    fn uses_newest_default_class() {
        let class = |name: &str, year: u32, default: &str| json!({"metadata": {"name": name, "creationTimestamp": format!("{year}-01-01T00:00:00Z"), "annotations": {IS_DEFAULT[0]: default}}});
        let cluster = Cluster::default()
            .with(&GroupResource::STORAGE_CLASSES, class("a", 2021, "true"))
            .with(&GroupResource::STORAGE_CLASSES, class("c", 2022, "true"))
            .with(&GroupResource::STORAGE_CLASSES, class("b", 2022, "true"))
            .with(&GroupResource::STORAGE_CLASSES, class("d", 2023, "false"));
        let made = |spec: Value| {
            let claim = json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": spec});
            Try::create(&cluster, &GroupResource::PERSISTENT_VOLUME_CLAIMS)
                .admitted(&DefaultStorageClass, claim)["spec"]["storageClassName"]
                .clone()
        };
        assert_eq!(made(json!({})), "b");
        assert_eq!(made(json!({"storageClassName": ""})), "");
    }
}

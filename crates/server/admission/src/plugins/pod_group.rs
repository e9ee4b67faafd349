//! The plugins for PodGroups, which exist only with the feature gate `GenericWorkload`.

use api_meta::{GroupResource, Status, Tree as _};
use serde_json::Value;

use crate::request::{Outcome, Plugin, Request};

const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

/// Adds the finalizer that keeps PodGroups from being deleted while Pods that have not ended belong to them.
pub(crate) struct PodGroupProtection;

impl Plugin for PodGroupProtection {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.creates() && request.is(&GroupResource::POD_GROUPS)
    }

    fn mutate(&self, _: &Request<'_>, group: &mut Value) -> Result<(), Status> {
        if group.items("metadata.finalizers").iter().all(|finalizer| finalizer != FINALIZER) {
            group.push("metadata.finalizers", FINALIZER);
        }
        Ok(())
    }
}

/// Rejects PodGroups that refer to a template that does not exist.
pub(crate) struct PodGroupWorkloadExists;

impl Plugin for PodGroupWorkloadExists {
    fn validate(
        &self,
        request: &Request<'_>,
        group: &Value,
        _: &mut Outcome,
    ) -> Result<(), Status> {
        let reference = group.at("spec.podGroupTemplateRef.workload");
        if !request.creates() || !request.is(&GroupResource::POD_GROUPS) || reference.is_null() {
            return Ok(());
        }
        let (name, template) =
            (reference.text("workloadName"), reference.text("podGroupTemplateName"));
        let reject =
            |cause: String| request.forbidden(group, format!("PodGroup rejected: {cause}"));
        let objects = request.objects;
        let workload = objects.get(&GroupResource::WORKLOADS, request.namespace, name);
        let workload = workload.ok_or_else(|| reject(format!("Workload {name:?} not found")))?;
        if workload.has("metadata.deletionTimestamp") {
            return Err(reject(format!("Workload {name:?} is being deleted")));
        }
        if workload.items("spec.podGroupTemplates").iter().all(|t| t.text("name") != template) {
            let cause = format!("PodGroupTemplate {template:?} not found in Workload {name:?}");
            return Err(reject(cause));
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
    fn adds_finalizer_once() {
        let cluster = Cluster::default();
        let create = Try::create(&cluster, &GroupResource::POD_GROUPS);
        let once = create.admitted(&PodGroupProtection, json!({"metadata": {"name": "g"}}));
        assert_eq!(once["metadata"]["finalizers"], json!([FINALIZER]));
        assert_eq!(create.admitted(&PodGroupProtection, once.clone()), once);
    }

    #[test]
    fn rejects_references_to_missing_templates() {
        let workload = |name: &str, gone: Value| {
            json!({"metadata": {"name": name, "namespace": "ns", "deletionTimestamp": gone},
                "spec": {"podGroupTemplates": [{"name": "a"}]}})
        };
        let cluster = Cluster::default()
            .with(&GroupResource::WORKLOADS, workload("w", Value::Null))
            .with(&GroupResource::WORKLOADS, workload("old", json!("2026-01-01T00:00:00Z")));
        let create = Try::create(&cluster, &GroupResource::POD_GROUPS);
        let message = |name: &str, template: &str| {
            let reference = json!({"workloadName": name, "podGroupTemplateName": template});
            let group = json!({"metadata": {"name": "g", "namespace": "ns"},
                "spec": {"podGroupTemplateRef": {"workload": reference}}});
            let admitted = create.admit(&PodGroupWorkloadExists, &mut group.clone());
            admitted.err().map(|status| status.message)
        };
        assert_eq!(message("w", "a"), None);
        for (name, template, expected) in [
            ("none", "a", "Workload \"none\" not found"),
            ("old", "a", "Workload \"old\" is being deleted"),
            ("w", "b", "PodGroupTemplate \"b\" not found in Workload \"w\""),
        ] {
            let message = message(name, template).unwrap();
            assert!(message.ends_with(&format!("PodGroup rejected: {expected}")), "{message}");
        }
        let mut alone = json!({"metadata": {"name": "g", "namespace": "ns"}, "spec": {}});
        assert!(create.admit(&PodGroupWorkloadExists, &mut alone).is_ok());
    }
}

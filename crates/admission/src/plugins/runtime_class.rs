use api_meta::{GroupResource, Status, go_quote};
use api_rules::amounts::amounts;
use serde_json::Value;

use crate::{
    Outcome, Plugin, Request,
    tree::{at, entries, is_set, items, list_at, text},
};

/// Adds to a Pod what its RuntimeClass costs and where it can run.
pub(crate) struct RuntimeClass;

impl Plugin for RuntimeClass {
    fn mutate(
        &self,
        request: &Request<'_>,
        pod: &mut Value,
        _: &mut Outcome,
    ) -> Result<(), Status> {
        let name = text(pod, "/spec/runtimeClassName");
        if !request.is(&GroupResource::PODS) || !request.creates() || name.is_empty() {
            return Ok(());
        }
        let Some(class) = request.objects.get(&GroupResource::RUNTIME_CLASSES, "", name) else {
            return Err(request.forbidden(
                pod,
                format!("pod rejected: RuntimeClass {} not found", go_quote(name)),
            ));
        };
        if is_set(&class, "/overhead/podFixed") {
            if is_set(pod, "/spec/overhead")
                && amounts(&pod["spec"]["overhead"]) != amounts(&class["overhead"]["podFixed"])
            {
                let cause =
                    "pod rejected: Pod's overhead doesn't match RuntimeClass's defined overhead";
                return Err(request.forbidden(pod, cause));
            }
            *at(pod, &["spec", "overhead"]) = class["overhead"]["podFixed"].clone();
        }
        schedule(&class, pod).map_err(|cause| request.forbidden(pod, cause))
    }

    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> Result<(), Status> {
        if !request.is(&GroupResource::PODS) || !request.creates() || !is_set(pod, "/spec/overhead")
        {
            return Ok(());
        }
        let class = request.objects.get(
            &GroupResource::RUNTIME_CLASSES,
            "",
            text(pod, "/spec/runtimeClassName"),
        );
        if class.is_some_and(|class| is_set(&class, "/overhead")) {
            return Ok(());
        }
        let cause =
            "pod rejected: Pod overhead set without corresponding RuntimeClass defined Overhead";
        Err(request.forbidden(pod, cause))
    }
}

fn schedule(class: &Value, pod: &mut Value) -> Result<(), String> {
    for (key, value) in entries(class, "/scheduling/nodeSelector") {
        let slot = at(pod, &["spec", "nodeSelector", key]);
        if !slot.is_null() && slot != value {
            let (wanted, given) = (value.as_str().unwrap_or(""), slot.as_str().unwrap_or(""));
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {given}"
            ));
        }
        *slot = value.clone();
    }
    for toleration in items(class, "/scheduling/tolerations") {
        if items(pod, "/spec/tolerations").all(|have| have != toleration) {
            list_at(pod, &["spec", "tolerations"]).push(toleration.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try, pod};

    #[test]
    fn takes_over_what_the_class_says() {
        let class = json!({
            "metadata": {"name": "vm"}, "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm"}]}
        });
        let cluster = Cluster::default().with(&GroupResource::RUNTIME_CLASSES, class);
        let create = Try::create(&cluster, &GroupResource::PODS);
        let made = create.admitted(
            &RuntimeClass,
            pod(json!({"runtimeClassName": "vm", "nodeSelector": {"a": "b"}})),
        );
        let want = json!({"runtimeClassName": "vm", "nodeSelector": {"a": "b", "vm": "yes"}, "tolerations": [{"key": "vm"}], "overhead": {"cpu": "250m"}});
        assert_eq!(made["spec"], want);
        let refused = |spec: Value| create.refusal(&RuntimeClass, pod(spec));
        assert!(
            refused(json!({"runtimeClassName": "x"}))
                .ends_with("pod rejected: RuntimeClass \"x\" not found")
        );
        assert!(
            refused(json!({"overhead": {"cpu": "1"}}))
                .contains("without corresponding RuntimeClass")
        );
        assert!(
            refused(json!({"runtimeClassName": "vm", "overhead": {"cpu": "1"}}))
                .contains("doesn't match")
        );
        assert!(
            refused(json!({"runtimeClassName": "vm", "nodeSelector": {"vm": "no"}}))
                .contains("conflict: ")
        );
    }
}

use api_meta::{GroupResource, Tree as _, go_quote};
use api_rules::amounts::amounts;
use serde_json::Value;

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

/// Adds the overhead and scheduling constraints of a Pod's RuntimeClass.
pub(crate) struct RuntimeClass;

impl Plugin for RuntimeClass {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::PODS) && request.creates()
    }

    fn mutate(&self, request: &Request<'_>, pod: &mut Value) -> AdmissionResult {
        let name = pod.text("spec.runtimeClassName");
        if name.is_empty() {
            return Ok(());
        }
        let Some(class) = request.objects.get(&GroupResource::RUNTIME_CLASSES, "", name) else {
            return Err(request.forbidden(
                pod,
                format!("pod rejected: RuntimeClass {} not found", go_quote(name)),
            ));
        };
        if class.has("overhead.podFixed") {
            if pod.has("spec.overhead")
                && amounts(pod.at("spec.overhead")) != amounts(class.at("overhead.podFixed"))
            {
                let cause =
                    "pod rejected: Pod's overhead doesn't match RuntimeClass's defined overhead";
                return Err(request.forbidden(pod, cause));
            }
            pod.put(&["spec", "overhead"], class.at("overhead.podFixed").clone());
        }
        schedule(&class, pod).map_err(|cause| request.forbidden(pod, cause))
    }

    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> AdmissionResult {
        if !request.is(&GroupResource::PODS) || !request.creates() || !pod.has("spec.overhead") {
            return Ok(());
        }
        let class = request.objects.get(
            &GroupResource::RUNTIME_CLASSES,
            "",
            pod.text("spec.runtimeClassName"),
        );
        if class.is_some_and(|class| class.has("overhead")) {
            return Ok(());
        }
        let cause =
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
        Err(request.forbidden(pod, cause))
    }
}

/// The error for a node selector that contradicts its class, with upstream's message.
#[derive(Debug, thiserror::Error)]
#[error(
    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {class}; pod.spec.nodeSelector[{key}] = {pod}"
)]
struct NodeSelectorConflict {
    key: String,
    class: String,
    pod: String,
}

fn schedule(class: &Value, pod: &mut Value) -> Result<(), NodeSelectorConflict> {
    for (key, value) in class.pairs("scheduling.nodeSelector") {
        let way = &["spec", "nodeSelector", key];
        if pod.has(way) && pod.at(way) != value {
            return Err(NodeSelectorConflict {
                key: key.to_string(),
                class: value.text("").to_owned(),
                pod: pod.text(way).to_owned(),
            });
        }
        pod.put(way, value.clone());
    }
    for toleration in class.items("scheduling.tolerations") {
        if pod.items("spec.tolerations").iter().all(|have| have != toleration) {
            pod.push("spec.tolerations", toleration.clone());
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
    fn adds_overhead_and_scheduling_of_class() {
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

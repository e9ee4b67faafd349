use std::collections::HashMap;

use api_meta::{GroupResource, Status, Tree as _};
use serde_json::Value;

use crate::request::{Outcome, Plugin, Request};

/// Rejects updates of a Pod that its node's kubelet would not carry out, because it does not declare the feature.
pub(crate) struct NodeDeclaredFeatureValidator;

/// Returns the features that a node needs to carry out the change of a Pod's spec.
fn required(new: &Value, old: &Value) -> Vec<&'static str> {
    let mut features = Vec::new();
    if new.at("resources") != old.at("resources") {
        features.push("InPlacePodLevelResourcesVerticalScaling");
    }
    let resources: HashMap<&str, &Value> = old
        .items("initContainers")
        .iter()
        .map(|container| (container.text("name"), container.at("resources")))
        .collect();
    let is_changed = |container: &Value| {
        let is_sidecar = container.text("restartPolicy") == "Always";
        let before = resources.get(container.text("name"));
        !is_sidecar && before.is_some_and(|before| *before != container.at("resources"))
    };
    if new.items("initContainers").iter().any(is_changed) {
        features.push("InPlacePodVerticalScalingInitContainers");
    }
    features
}

impl Plugin for NodeDeclaredFeatureValidator {
    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> Result<(), Status> {
        let concerns =
            request.is(&GroupResource::PODS) || request.is_sub(&GroupResource::PODS, "resize");
        let name = pod.text("spec.nodeName");
        let Some(old) = request.old.filter(|_| concerns && request.updates() && !name.is_empty())
        else {
            return Ok(());
        };
        let mut features = required(pod.at("spec"), old.at("spec"));
        if features.is_empty() {
            return Ok(());
        }
        let Some(node) = request.objects.get(&GroupResource::NODES, "", name) else {
            return Err(request.forbidden(pod, format!("node {name:?} not found")));
        };
        let declared = node.items("status.declaredFeatures");
        features.retain(|feature| declared.iter().all(|declared| declared != feature));
        if features.is_empty() {
            return Ok(());
        }
        let features = features.join(", ");
        let cause = format!(
            "pod update requires features {features} which are not available on node {name:?}"
        );
        Err(request.forbidden(pod, cause))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try};

    const POD_LEVEL: &str = "InPlacePodLevelResourcesVerticalScaling";
    const INIT: &str = "InPlacePodVerticalScalingInitContainers";

    fn pod(node: &str, level: &str, init: &str, sidecar: &str) -> Value {
        let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
        json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"nodeName": node,
            "resources": resources(level),
            "initContainers": [{"name": "i", "resources": resources(init)},
                {"name": "s", "restartPolicy": "Always", "resources": resources(sidecar)}]}})
    }

    fn message(declared: &[&str], node: &str, new: Value) -> Option<String> {
        let object = json!({"metadata": {"name": "n"}, "status": {"declaredFeatures": declared}});
        let cluster = Cluster::default().with(&GroupResource::NODES, object);
        let request = Try::update(&cluster, &GroupResource::PODS, pod(node, "1", "1", "1"));
        let admitted = request.sub("resize").admit(&NodeDeclaredFeatureValidator, &mut new.clone());
        admitted.err().map(|status| status.message)
    }

    #[test]
    fn rejects_changes_that_the_node_cannot_carry_out() {
        for (declared, new) in [
            (&[][..], pod("n", "1", "1", "1")),
            (&[][..], pod("n", "1", "1", "2")),
            (&[][..], pod("", "2", "2", "2")),
            (&[POD_LEVEL, INIT][..], pod("n", "2", "2", "2")),
        ] {
            let node = new["spec"]["nodeName"].as_str().unwrap().to_owned();
            assert_eq!(message(declared, &node, new.clone()), None, "{new}");
        }
        let told = message(&[POD_LEVEL], "n", pod("n", "2", "2", "1")).unwrap();
        let expected =
            format!("pod update requires features {INIT} which are not available on node \"n\"");
        assert!(told.ends_with(&expected), "{told}");
        let told = message(&[], "n", pod("n", "2", "2", "1")).unwrap();
        assert!(told.contains(&format!("features {POD_LEVEL}, {INIT} which")), "{told}");
        let told = message(&[], "none", pod("none", "2", "1", "1")).unwrap();
        assert!(told.ends_with("node \"none\" not found"), "{told}");
    }
}

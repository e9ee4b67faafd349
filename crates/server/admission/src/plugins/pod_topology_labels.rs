use api_meta::{GroupResource, Tree as _};
use serde_json::Value;

use crate::request::{AdmissionResult, Plugin, Request};

/// Copies the node's zone and region labels to a Binding, and so to the bound Pod.
pub(crate) struct PodTopologyLabels;

const LABELS: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

impl Plugin for PodTopologyLabels {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.creates()
            && (request.is(&GroupResource::PODS) || request.is_sub(&GroupResource::PODS, "binding"))
    }

    fn mutate(&self, request: &Request<'_>, object: &mut Value) -> AdmissionResult {
        let node = match request.subresource {
            "" => object.text("spec.nodeName"),
            _ if object.text("target.kind") == "Node" => object.text("target.name"),
            _ => "",
        };
        if node.is_empty() {
            return Ok(());
        }
        let Some(node) = request.objects.get(&GroupResource::NODES, "", node) else {
            return Ok(());
        };
        for label in LABELS {
            if let Some(value) = node.at("metadata.labels").get(label) {
                object.put(&["metadata", "labels", label], value.clone());
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
    fn copies_zone_to_binding() {
        let node = json!({"metadata": {"name": "n", "labels": {LABELS[1]: "z1", "other": "x"}}});
        let cluster = Cluster::default().with(&GroupResource::NODES, node);
        let binding = json!({"metadata": {"name": "p", "namespace": "ns"}, "target": {"kind": "Node", "name": "n"}});
        let made = Try::create(&cluster, &GroupResource::PODS)
            .sub("binding")
            .admitted(&PodTopologyLabels, binding);
        assert_eq!(made["metadata"]["labels"], json!({LABELS[1]: "z1"}));
    }
}

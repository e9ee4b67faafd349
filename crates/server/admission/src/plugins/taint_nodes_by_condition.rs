use api_meta::{GroupResource, Tree as _};
use serde_json::{Value, json};

use crate::request::{AdmissionResult, Plugin, Request};

/// Taints a new node as not ready, so that no Pod is scheduled to it before the kubelet reports it ready.
pub(crate) struct TaintNodesByCondition;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

impl Plugin for TaintNodesByCondition {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::NODES) && request.creates()
    }

    fn mutate(&self, _: &Request<'_>, node: &mut Value) -> AdmissionResult {
        let tainted = node
            .items("spec.taints")
            .iter()
            .any(|taint| taint.text("key") == NOT_READY && taint.text("effect") == "NoSchedule");
        if !tainted {
            node.push("spec.taints", json!({"key": NOT_READY, "effect": "NoSchedule"}));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, Try};

    #[test]
    fn taints_once() {
        let cluster = Cluster::default();
        let create = Try::create(&cluster, &GroupResource::NODES);
        let once = create.admitted(&TaintNodesByCondition, json!({"metadata": {"name": "n"}}));
        assert_eq!(once["spec"]["taints"], json!([{"key": NOT_READY, "effect": "NoSchedule"}]));
        assert_eq!(create.admitted(&TaintNodesByCondition, once.clone()), once);
    }
}

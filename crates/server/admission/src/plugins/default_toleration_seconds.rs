use api_meta::{GroupResource, Tree as _};
use serde_json::{Value, json};

use crate::request::{AdmissionResult, Plugin, Request};

/// Adds tolerations of five minutes for nodes that are not ready or unreachable, unless the Pod sets its own.
pub(crate) struct DefaultTolerationSeconds;

const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const SECONDS: i64 = 300;

impl Plugin for DefaultTolerationSeconds {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::PODS) && (request.creates() || request.updates())
    }

    fn mutate(&self, _: &Request<'_>, pod: &mut Value) -> AdmissionResult {
        for taint in TAINTS {
            let tolerated = pod.items("spec.tolerations").iter().any(|toleration| {
                ["", taint].contains(&toleration.text("key"))
                    && ["", "NoExecute"].contains(&toleration.text("effect"))
            });
            if !tolerated {
                pod.push(&["spec", "tolerations"], json!({
                    "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS
                }));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, Try, pod};

    #[test]
    fn adds_missing_tolerations() {
        let cluster = Cluster::default();
        let admitted = |tolerations: Value| {
            let made = Try::create(&cluster, &GroupResource::PODS)
                .admitted(&DefaultTolerationSeconds, pod(json!({"tolerations": tolerations})));
            made.items("spec.tolerations")
                .iter()
                .map(|t| format!("{}:{}", t.text("key"), t["tolerationSeconds"]))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            admitted(Value::Null),
            ["node.kubernetes.io/not-ready:300", "node.kubernetes.io/unreachable:300"]
        );
        assert_eq!(admitted(json!([{"operator": "Exists"}])), [":null"]);
        assert_eq!(
            admitted(
                json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "tolerationSeconds": 1}, {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}])
            ),
            [
                "node.kubernetes.io/not-ready:1",
                "node.kubernetes.io/unreachable:null",
                "node.kubernetes.io/unreachable:300"
            ]
        );
    }
}

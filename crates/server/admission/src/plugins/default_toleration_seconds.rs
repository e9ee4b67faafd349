use api_meta::{GroupResource, Tree as _};
use serde_json::{Value, json};

use crate::request::{AdmissionResult, Plugin, Request};

/// The plugin that adds tolerations for nodes that are not ready or unreachable, unless the Pod sets its own.
#[derive(Clone, Copy, Debug)]
pub struct DefaultTolerationSeconds {
    /// The seconds on a node that is not ready.
    pub not_ready: i64,
    /// The seconds on a node that is unreachable.
    pub unreachable: i64,
}

impl Default for DefaultTolerationSeconds {
    fn default() -> Self {
        Self { not_ready: 300, unreachable: 300 }
    }
}

impl Plugin for DefaultTolerationSeconds {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::PODS) && (request.creates() || request.updates())
    }

    fn mutate(&self, _: &Request<'_>, pod: &mut Value) -> AdmissionResult {
        for (taint, seconds) in [
            ("node.kubernetes.io/not-ready", self.not_ready),
            ("node.kubernetes.io/unreachable", self.unreachable),
        ] {
            let tolerated = pod.items("spec.tolerations").iter().any(|toleration| {
                ["", taint].contains(&toleration.text("key"))
                    && ["", "NoExecute"].contains(&toleration.text("effect"))
            });
            if !tolerated {
                pod.push(&["spec", "tolerations"], json!({
                    "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds
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
        let plugin = DefaultTolerationSeconds::default();
        let admitted = |tolerations: Value| {
            let made = Try::create(&cluster, &GroupResource::PODS)
                .admitted(&plugin, pod(json!({"tolerations": tolerations})));
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

    #[test]
    fn takes_configured_seconds() {
        let cluster = Cluster::default();
        let plugin = DefaultTolerationSeconds { not_ready: 20, unreachable: 30 };
        let made = Try::create(&cluster, &GroupResource::PODS).admitted(&plugin, pod(json!({})));
        let seconds = made.items("spec.tolerations").iter().map(|t| t["tolerationSeconds"].clone());
        assert_eq!(seconds.collect::<Vec<_>>(), [json!(20), json!(30)]);
    }
}

//! The signs of life of machines in a cluster. A Node outlives its machine, and stays Ready for a while.

use api_meta::{Timestamp, Tree as _};
use serde_json::Value;

/// Returns whether a Node is Ready, and the time of the condition's last transition.
pub fn readiness(node: &Value) -> (bool, Option<Timestamp>) {
    let ready = condition(node);
    let is_ready = ready.is_some_and(|ready| ready.text("status") == "True");
    (is_ready, ready.and_then(|ready| time(ready.text("lastTransitionTime"))))
}

/// Returns the last sign of life of a Node's machine: its registration, its last report, or its Lease's renewal.
pub fn last_sign(node: &Value, lease: Option<&Value>) -> Option<Timestamp> {
    // Only the control plane writes `Unknown`, when the kubelet is silent.
    let reported = condition(node).filter(|ready| ready.text("status") != "Unknown");
    let signs = [
        Some(node.text("metadata.creationTimestamp")),
        reported.map(|ready| ready.text("lastHeartbeatTime")),
        lease.map(|lease| lease.text("spec.renewTime")),
    ];
    signs.into_iter().flatten().filter_map(time).max()
}

fn condition(node: &Value) -> Option<&Value> {
    node.items("status.conditions").iter().find(|condition| condition.text("type") == "Ready")
}

fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn last_sign_ignores_the_control_planes_updates() {
        let node = |status: &str| {
            json!({
                "metadata": {"creationTimestamp": "2026-11-23T10:00:00Z"},
                "status": {"conditions": [
                    {"type": "DiskPressure", "status": "False", "lastHeartbeatTime": "2026-11-23T11:59:00Z"},
                    {"type": "Ready", "status": status, "lastHeartbeatTime": "2026-11-23T10:05:00Z",
                     "lastTransitionTime": "2026-11-23T10:01:00Z"},
                ]},
            })
        };
        let lease = json!({"spec": {"renewTime": "2026-11-23T10:06:00.500000Z"}});
        let sign = |node: &Value, lease| last_sign(node, lease).map(|at| at.exact());
        assert_eq!(sign(&node("True"), Some(&lease)).as_deref(), Some("2026-11-23T10:06:00.5Z"));
        assert_eq!(sign(&node("False"), None).as_deref(), Some("2026-11-23T10:05:00Z"));
        // The control plane wrote this condition, because the kubelet was silent.
        assert_eq!(sign(&node("Unknown"), None).as_deref(), Some("2026-11-23T10:00:00Z"));
        assert_eq!(sign(&json!({}), None), None);
        let (ready, since) = readiness(&node("True"));
        assert!(ready && since == "2026-11-23T10:01:00Z".parse().ok());
        assert!(!readiness(&node("Unknown")).0 && !readiness(&json!({})).0);
    }
}

//! The health of a node by its heartbeats, with the conditions and taints that follow.

use std::time::Duration;

use api_meta::{Timestamp, Tree as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::views::{Node, Taint, condition};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    NotReady,
    Unknown,
}

pub(super) fn readiness(node: &Node) -> Readiness {
    match condition(&node.status.conditions, "Ready").map(|c| c.status.as_str()) {
        Some("True") => Readiness::Ready,
        Some("False") => Readiness::NotReady,
        _ => Readiness::Unknown,
    }
}

/// The last heartbeat of a node and the local time of its arrival. Clocks of other machines are not trusted.
#[derive(Debug, Default)]
pub(super) struct LastContact {
    heartbeat: Option<Timestamp>,
    renewed: Option<Box<str>>,
    at: Option<Instant>,
}

impl LastContact {
    pub(super) fn is_silent(
        &mut self,
        node: &Node,
        renewed: Option<&str>,
        grace: Duration,
        now: Instant,
    ) -> bool {
        let ready = condition(&node.status.conditions, "Ready");
        let heartbeat = ready.and_then(|c| c.last_heartbeat_time);
        let news = self.heartbeat != heartbeat || self.renewed.as_deref() != renewed;
        if news || self.at.is_none() {
            self.heartbeat = heartbeat;
            self.renewed = renewed.map(Box::from);
            self.at = Some(now);
        }
        self.at.is_some_and(|at| now - at > grace)
    }
}

const KUBELET_CONDITIONS: &[&str] = &["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// Returns the conditions of a silent node that must become Unknown.
pub(super) fn unknown_conditions(node: &Node, now: Timestamp) -> Vec<Value> {
    let mut out = Vec::new();
    for kind in KUBELET_CONDITIONS {
        let current = condition(&node.status.conditions, kind);
        if current.is_some_and(|c| c.status == "Unknown") {
            continue;
        }
        let (reason, message) = match current {
            None => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
            Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
        };
        let mut condition = json!({"type": kind, "status": "Unknown", "reason": reason, "message": message,
            "lastTransitionTime": now});
        let heartbeat =
            current.and_then(|c| c.last_heartbeat_time).or(node.metadata.creation_timestamp);
        if let Some(heartbeat) = heartbeat {
            condition.put(&["lastHeartbeatTime"], json!(heartbeat));
        }
        out.push(condition);
    }
    out
}

/// Condition type, status, and the taint that follows.
const BY_CONDITION: &[(&str, &str, &str)] = &[
    ("Ready", "False", "node.kubernetes.io/not-ready"),
    ("Ready", "Unknown", "node.kubernetes.io/unreachable"),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Reports whether this controller manages the taint.
pub(super) fn is_ours(taint: &Taint) -> bool {
    let by_condition = BY_CONDITION.iter().any(|(_, _, key)| taint.key == *key);
    let evicts = taint.effect == "NoExecute"
        && BY_CONDITION[..2].iter().any(|(_, _, key)| taint.key == *key);
    (taint.effect == "NoSchedule" && (by_condition || taint.key == UNSCHEDULABLE)) || evicts
}

/// Returns the managed taints that the node should have.
pub(super) fn wanted_taints(node: &Node, now: Timestamp) -> Vec<Taint> {
    let mut out = Vec::new();
    let taint = |key: &str, effect: &str| Taint {
        key: key.to_owned(),
        value: None,
        effect: effect.to_owned(),
        time_added: Some(now),
    };
    for (kind, status, key) in BY_CONDITION {
        if condition(&node.status.conditions, kind).is_some_and(|c| c.status == *status) {
            out.push(taint(key, "NoSchedule"));
            if *kind == "Ready" {
                out.push(taint(key, "NoExecute"));
            }
        }
    }
    if node.spec.unschedulable {
        out.push(taint(UNSCHEDULABLE, "NoSchedule"));
    }
    out
}

/// Returns the node's taints with the managed ones replaced. Existing taints keep their `timeAdded`.
pub(super) fn with_taints(current: &[Taint], desired: Vec<Taint>) -> Vec<Taint> {
    let same = |a: &Taint, b: &Taint| a.key == b.key && a.effect == b.effect;
    let mut out: Vec<Taint> = current
        .iter()
        .filter(|t| !is_ours(t) || desired.iter().any(|w| same(w, t)))
        .cloned()
        .collect();
    out.extend(desired.into_iter().filter(|w| !current.iter().any(|t| same(w, t))));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ready: &str, heartbeat: u8) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": [
            {"type": "Ready", "status": ready, "lastHeartbeatTime": format!("2026-01-01T00:00:{heartbeat:02}Z")}]}}))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn node_is_silent_without_status_and_lease_updates() {
        let (grace, start) = (Duration::from_secs(40), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut heard = LastContact::default();
        assert!(!heard.is_silent(&node("True", 1), Some("a"), grace, start));
        assert!(!heard.is_silent(&node("True", 1), Some("b"), grace, at(39)));
        assert!(!heard.is_silent(&node("True", 1), Some("b"), grace, at(79)));
        assert!(heard.is_silent(&node("True", 1), Some("b"), grace, at(80)));
        assert!(!heard.is_silent(&node("True", 2), Some("b"), grace, at(81)));
    }

    #[test]
    fn derives_taints_from_conditions_and_keeps_others() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let keys = |node: &Node| {
            let taints = with_taints(&node.spec.taints, wanted_taints(node, now));
            taints
                .into_iter()
                .map(|t| {
                    format!("{}:{}", t.key.trim_start_matches("node.kubernetes.io/"), t.effect)
                })
                .collect::<Vec<_>>()
        };
        let mut sick = node("Unknown", 1);
        sick.spec.taints =
            vec![Taint { key: "mine".into(), effect: "NoExecute".into(), ..Taint::default() }];
        sick.spec.unschedulable = true;
        assert_eq!(
            keys(&sick),
            [
                "mine:NoExecute",
                "unreachable:NoSchedule",
                "unreachable:NoExecute",
                "unschedulable:NoSchedule"
            ]
        );
        let mut well = node("True", 1);
        well.spec.taints = with_taints(&[], wanted_taints(&sick, now));
        assert_eq!(keys(&well), Vec::<String>::new());
    }

    #[test]
    fn sets_conditions_unknown_once() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let changed = unknown_conditions(&node("True", 1), now);
        assert_eq!(changed.len(), 4);
        assert_eq!(
            (&changed[0]["reason"], &changed[1]["reason"]),
            (&json!("NodeStatusUnknown"), &json!("NodeStatusNeverUpdated"))
        );
        assert!(unknown_conditions(&node("Unknown", 1), now).iter().all(|c| c["type"] != "Ready"));
    }
}

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

/// What was last heard of a node, and when by our own clock: other machines' clocks are not trusted.
#[derive(Debug, Default)]
pub(super) struct Heard {
    heartbeat: Option<Timestamp>,
    renewed: Option<Box<str>>,
    at: Option<Instant>,
}

impl Heard {
    pub(super) fn silent(
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

const TOLD_BY_KUBELET: &[&str] = &["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The conditions of a silent node that do not say Unknown yet, as they ought to be.
pub(super) fn unknown_conditions(node: &Node, now: Timestamp) -> Vec<Value> {
    let mut out = Vec::new();
    for kind in TOLD_BY_KUBELET {
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

/// A condition's value and the taint that it means.
const BY_CONDITION: &[(&str, &str, &str)] = &[
    ("Ready", "False", "node.kubernetes.io/not-ready"),
    ("Ready", "Unknown", "node.kubernetes.io/unreachable"),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Whether the taint is one that this controller sets and takes off.
pub(super) fn is_ours(taint: &Taint) -> bool {
    let by_condition = BY_CONDITION.iter().any(|(_, _, key)| taint.key == *key);
    let evicts = taint.effect == "NoExecute"
        && BY_CONDITION[..2].iter().any(|(_, _, key)| taint.key == *key);
    (taint.effect == "NoSchedule" && (by_condition || taint.key == UNSCHEDULABLE)) || evicts
}

/// The taints of ours that the node ought to have.
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

/// The node's taints with ours as wanted; those it has keep the time they were added.
pub(super) fn with_taints(current: &[Taint], wanted: Vec<Taint>) -> Vec<Taint> {
    let same = |a: &Taint, b: &Taint| a.key == b.key && a.effect == b.effect;
    let mut out: Vec<Taint> = current
        .iter()
        .filter(|t| !is_ours(t) || wanted.iter().any(|w| same(w, t)))
        .cloned()
        .collect();
    out.extend(wanted.into_iter().filter(|w| !current.iter().any(|t| same(w, t))));
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
    async fn a_node_is_silent_when_neither_status_nor_lease_moves() {
        let (grace, start) = (Duration::from_secs(40), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut heard = Heard::default();
        assert!(!heard.silent(&node("True", 1), Some("a"), grace, start));
        assert!(!heard.silent(&node("True", 1), Some("b"), grace, at(39)));
        assert!(!heard.silent(&node("True", 1), Some("b"), grace, at(79)));
        assert!(heard.silent(&node("True", 1), Some("b"), grace, at(80)));
        assert!(!heard.silent(&node("True", 2), Some("b"), grace, at(81)));
    }

    #[test]
    fn taints_follow_conditions_and_others_stay() {
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
    fn silence_makes_every_condition_unknown_once() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let told = unknown_conditions(&node("True", 1), now);
        assert_eq!(told.len(), 4);
        assert_eq!(
            (&told[0]["reason"], &told[1]["reason"]),
            (&json!("NodeStatusUnknown"), &json!("NodeStatusNeverUpdated"))
        );
        assert!(unknown_conditions(&node("Unknown", 1), now).iter().all(|c| c["type"] != "Ready"));
    }
}

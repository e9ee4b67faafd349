//! Decides which nodes to attach a volume to and which to detach it from.

use std::{collections::BTreeMap, time::Duration};

/// The time that an unhealthy node may keep a volume in use before it is detached by force. Upstream's value.
pub(super) const FORCE: Duration = Duration::from_secs(6 * 60);

/// A volume's attachment to one node, complete or in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attachment {
    /// The VolumeAttachment's name and uid.
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) node: String,
    pub(super) terminating: bool,
}

/// A node's health and its use of the volume.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeState {
    pub(super) in_use: bool,
    pub(super) healthy: bool,
    pub(super) out_of_service: bool,
    /// The time since the volume was first due for detaching.
    pub(super) waited: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Attach {
        node: String,
    },
    /// Detaches the volume from a node. If `safely`, re-reads the Node first and gives up if the volume is in use.
    Detach {
        attachment: Attachment,
        safely: bool,
    },
    /// The node still uses the volume; check again after `retry_after`.
    Wait {
        node: String,
        retry_after: Duration,
    },
    /// Another node has the volume, which only one node may use.
    Refuse {
        node: String,
    },
}

/// Plans the steps for one volume, detaching first. `desired` holds the Pods that use the volume, by node.
pub(super) fn plan<P>(
    many_nodes: bool,
    desired: &BTreeMap<String, P>,
    attachments: &[Attachment],
    state: impl Fn(&str) -> NodeState,
    force: bool,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for attachment in attachments {
        let node = &attachment.node;
        if desired.contains_key(node) || attachment.terminating {
            continue;
        }
        let now = state(node);
        let forced = force && !now.healthy && now.waited >= FORCE;
        steps.push(if now.in_use && !forced && !now.out_of_service {
            Step::Wait { node: node.clone(), retry_after: FORCE.saturating_sub(now.waited) }
        } else {
            let safely = !forced && !now.out_of_service;
            Step::Detach { attachment: attachment.clone(), safely }
        });
    }
    let mut used = !attachments.is_empty();
    for node in desired.keys() {
        if attachments.iter().any(|attachment| attachment.node == *node) {
            continue;
        }
        let node = node.clone();
        let step = if used && !many_nodes { Step::Refuse { node } } else { Step::Attach { node } };
        steps.push(step);
        used = true;
    }
    steps
}

/// Reports whether a volume may be attached to several nodes. A volume without access modes may.
pub(super) fn many_nodes(access_modes: &[String]) -> bool {
    let many = |mode: &String| matches!(mode.as_str(), "ReadWriteMany" | "ReadOnlyMany");
    access_modes.is_empty() || access_modes.iter().any(many)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(node: &str, terminating: bool) -> Attachment {
        let (name, uid) = (format!("csi-{node}"), node.to_owned());
        Attachment { name, uid, node: node.to_owned(), terminating }
    }

    fn steps(many: bool, wanted: &[&str], on: &[Attachment], state: NodeState) -> Vec<Step> {
        let wanted = wanted.iter().map(|node| ((*node).to_owned(), ())).collect();
        plan(many, &wanted, on, |_| state, true)
    }

    fn attach(node: &str) -> Step {
        Step::Attach { node: node.to_owned() }
    }

    fn detach(node: &str, safely: bool) -> Step {
        Step::Detach { attachment: attachment(node, false), safely }
    }

    fn refuse(node: &str) -> Step {
        Step::Refuse { node: node.to_owned() }
    }

    #[test]
    fn attaches_to_one_node_unless_access_modes_allow_many() {
        let state = NodeState { healthy: true, ..NodeState::default() };
        let on = |nodes: &[&str]| nodes.iter().map(|n| attachment(n, false)).collect::<Vec<_>>();
        let cases = [
            (false, &[][..], on(&[]), vec![]),
            (false, &["a"][..], on(&[]), vec![attach("a")]),
            (false, &["a"][..], on(&["a"]), vec![]),
            (false, &["a", "b"][..], on(&[]), vec![attach("a"), refuse("b")]),
            (true, &["a", "b"][..], on(&[]), vec![attach("a"), attach("b")]),
            (false, &["b"][..], on(&["a"]), vec![detach("a", true), refuse("b")]),
            (true, &["b"][..], on(&["a"]), vec![detach("a", true), attach("b")]),
            // A VolumeAttachment that is being deleted still blocks other nodes.
            (false, &["b"][..], vec![attachment("a", true)], vec![refuse("b")]),
        ];
        for (many, wanted, on, expected) in cases {
            assert_eq!(steps(many, wanted, &on, state), expected, "{many} {wanted:?} {on:?}");
        }
    }

    #[test]
    fn force_detaches_only_from_failed_or_out_of_service_nodes() {
        let on = [attachment("a", false)];
        let half = FORCE / 2;
        for (in_use, healthy, out_of_service, waited, expected) in [
            (false, true, false, Duration::ZERO, detach("a", true)),
            (false, false, false, Duration::ZERO, detach("a", true)),
            (true, true, false, half, Step::Wait { node: "a".to_owned(), retry_after: half }),
            (true, false, false, half, Step::Wait { node: "a".to_owned(), retry_after: half }),
            (
                true,
                true,
                false,
                FORCE,
                Step::Wait { node: "a".to_owned(), retry_after: Duration::ZERO },
            ),
            (true, false, false, FORCE, detach("a", false)),
            (true, true, true, Duration::ZERO, detach("a", false)),
        ] {
            let state = NodeState { in_use, healthy, out_of_service, waited };
            assert_eq!(steps(false, &[], &on, state), [expected], "{state:?}");
        }
        let unwell = NodeState { in_use: true, waited: FORCE, ..NodeState::default() };
        let unforced = plan::<()>(false, &BTreeMap::new(), &on, |_| unwell, false);
        assert!(matches!(unforced[..], [Step::Wait { .. }]), "{unforced:?}");
    }

    #[test]
    fn access_modes_limit_number_of_nodes() {
        for (modes, many) in [
            (&[][..], true),
            (&["ReadWriteOnce"], false),
            (&["ReadWriteOncePod"], false),
            (&["ReadWriteOnce", "ReadOnlyMany"], true),
            (&["ReadWriteMany"], true),
        ] {
            let modes: Vec<String> = modes.iter().map(|m| (*m).to_owned()).collect();
            assert_eq!(many_nodes(&modes), many, "{modes:?}");
        }
    }
}

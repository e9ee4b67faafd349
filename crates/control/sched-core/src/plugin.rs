//! The interface of scheduling plugins: preparation for one Pod, then verdicts and scores for nodes.

use std::borrow::Cow;

use crate::{cluster::Cluster, event::Event, index::NodeIx, pod::Pod, prepared::PreparedPod};

/// The context of plugins while one Pod is scheduled.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// The snapshot.
    pub cluster: &'a Cluster,
    /// The Pod being scheduled.
    pub pod: &'a Pod,
    pub(crate) prepared: &'a PreparedPod,
}

/// A filter's verdict on one node. Without reasons the node passes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Verdict {
    /// A bit set of reason numbers; [`Filter::reason`] returns their texts.
    pub reasons: u32,
    /// `true` if removing Pods from the node would not help.
    pub unresolvable: bool,
}

impl Verdict {
    /// The verdict that the Pod may run on the node.
    pub const PASS: Verdict = Verdict { reasons: 0, unresolvable: false };

    /// Rejects the node; fewer Pods on it might help.
    pub(crate) const fn unschedulable(reason: u32) -> Self {
        Verdict { reasons: 1 << reason, unresolvable: false }
    }

    /// Rejects the node, whatever Pods run on it.
    pub const fn unresolvable(reason: u32) -> Self {
        Verdict { reasons: 1 << reason, unresolvable: true }
    }

    /// Returns `true` if the Pod may run on the node.
    pub fn passes(self) -> bool {
        self.reasons == 0
    }
}

/// A plugin's filter, prepared for one Pod.
pub trait Filter {
    fn check(&self, node: NodeIx) -> Verdict;
    fn reason(&self, number: u32) -> Cow<'static, str>;

    /// Returns an error that was found while checking nodes. It prevents the choice of any node.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Returns the name and uid of a ResourceClaim that keeps its only Pod from the checked nodes.
    fn blocking_claim(&self) -> Option<(Box<str>, Box<str>)> {
        None
    }
}

/// The result of preparing a filter.
pub enum Plan<'a> {
    /// Every node passes.
    Skip,
    Check(Box<dyn Filter + 'a>),
    /// Only these nodes can pass, and each must be checked.
    Only(Vec<NodeIx>, Box<dyn Filter + 'a>),
    /// The Pod can run nowhere, for this reason.
    Reject(String),
}

/// A plugin's scores for the nodes that passed the filters.
pub trait Scorer {
    fn score(&self, node: NodeIx) -> i64;

    /// Scales the scores of all nodes to 0..=100, if `score` alone cannot.
    fn normalize(&self, _nodes: &[NodeIx], _scores: &mut [i64]) {}
}

/// A scheduling plugin.
pub trait Plugin: Sync {
    /// Returns the name as upstream has it, for configuration and messages.
    fn name(&self) -> &'static str;

    fn weight(&self) -> i64 {
        0
    }

    /// Reports whether the Pod must not be tried yet.
    fn holds_back(&self, _cluster: &Cluster, _pod: &Pod) -> bool {
        false
    }

    fn plan<'a>(&self, _cx: Cx<'a>) -> Plan<'a> {
        Plan::Skip
    }

    /// Returns the scorer; `None` if all nodes would score the same.
    fn scorer<'a>(&self, _cx: Cx<'a>, _feasible: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        None
    }

    /// Reports whether the event may let a Pod pass that this plugin rejected.
    fn wakes(&self, _cluster: &Cluster, _pod: &Pod, _event: &Event<'_>) -> bool {
        false
    }
}

/// The highest score.
pub(crate) const MAX_SCORE: i64 = 100;

/// Scales scores so that the largest becomes 100, or 0 with `reverse`.
pub(crate) fn scale_to_max(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        let scaled = if max == 0 { 0 } else { *score * MAX_SCORE / max };
        *score = if reverse { MAX_SCORE - scaled } else { scaled };
    }
}

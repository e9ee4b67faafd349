//! What a plugin is: how it prepares a look at the nodes for one Pod, and what it then says of each node.

use std::borrow::Cow;

use crate::{
    cluster::{Cluster, NodeIx},
    pod::Pod,
    queue::Event,
    schedule::Prepared,
};

/// One Pod's turn: what plugins see.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    pub cluster: &'a Cluster,
    pub pod: &'a Pod,
    pub(crate) prepared: &'a Prepared,
}

/// What a filter says of one node: no reason at all means that the Pod may run there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Verdict {
    /// A set of reason numbers, which [`Filter::reason`] puts into words.
    pub reasons: u32,
    /// Removing Pods from the node would not help.
    pub hopeless: bool,
}

impl Verdict {
    /// The Pod may run there.
    pub const PASS: Verdict = Verdict { reasons: 0, hopeless: false };

    /// Not now; fewer Pods on the node might help.
    pub(crate) const fn not_now(reason: u32) -> Self {
        Verdict { reasons: 1 << reason, hopeless: false }
    }

    /// Not here, whatever Pods there are.
    pub const fn never(reason: u32) -> Self {
        Verdict { reasons: 1 << reason, hopeless: true }
    }

    /// Whether the Pod may run there.
    pub fn passes(self) -> bool {
        self.reasons == 0
    }
}

/// A plugin's look at nodes for one Pod.
pub trait Filter {
    fn check(&self, node: NodeIx) -> Verdict;
    fn reason(&self, number: u32) -> Cow<'static, str>;

    /// What is so wrong that no node is to be taken, once nodes were checked.
    fn failure(&self) -> Option<String> {
        None
    }

    /// The name and uid of a ResourceClaim that keeps its only Pod from the nodes that were checked.
    fn stuck(&self) -> Option<(Box<str>, Box<str>)> {
        None
    }
}

/// What a plugin prepared for filtering.
pub enum Plan<'a> {
    /// Every node passes.
    Skip,
    Check(Box<dyn Filter + 'a>),
    /// Only these nodes can pass, and each is still to be checked.
    Only(Vec<NodeIx>, Box<dyn Filter + 'a>),
    /// The Pod can run nowhere, for this reason.
    Reject(String),
}

/// A plugin's opinion on the nodes that passed.
pub trait Scorer {
    fn score(&self, node: NodeIx) -> i64;

    /// Brings the scores of all nodes into 0..=100, where `score` alone cannot.
    fn normalize(&self, _nodes: &[NodeIx], _scores: &mut [i64]) {}
}

/// One rule of scheduling.
pub trait Plugin: Sync {
    /// Upstream's name, which configuration and messages use.
    fn name(&self) -> &'static str;

    fn weight(&self) -> i64 {
        0
    }

    /// Whether the Pod is not even to be tried yet.
    fn holds_back(&self, _cluster: &Cluster, _pod: &Pod) -> bool {
        false
    }

    fn plan<'a>(&self, _cx: Cx<'a>) -> Plan<'a> {
        Plan::Skip
    }

    /// `None` when the opinion would be the same for every node.
    fn scorer<'a>(&self, _cx: Cx<'a>, _feasible: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        None
    }

    /// Whether a Pod that this plugin turned away may pass now that this happened.
    fn wakes(&self, _cluster: &Cluster, _pod: &Pod, _event: &Event<'_>) -> bool {
        false
    }
}

/// The highest score there is.
pub(crate) const MAX_SCORE: i64 = 100;

/// Scales scores so that the largest becomes 100, or with `reverse` 0.
pub(crate) fn scale_to_max(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        let scaled = if max == 0 { 0 } else { *score * MAX_SCORE / max };
        *score = if reverse { MAX_SCORE - scaled } else { scaled };
    }
}

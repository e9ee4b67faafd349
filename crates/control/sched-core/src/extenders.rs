//! Scheduler extenders: programs beside the scheduler that filter and score nodes and choose victims.
//!
//! The core calls no extender. It returns [`crate::Decision::Consult`] with a [`Consultation`], and continues when
//! [`crate::Core::answer`] is called with the [`Answer`].

use std::sync::Arc;

use crate::{pod::Pod, sym::Sym};

/// The calls that an extender supports, and the Pods that it is called for.
#[derive(Clone, Debug, Default)]
pub struct Extender {
    /// The extended resources that the extender manages; without any, it is called for all Pods.
    pub resources: Vec<Sym>,
    /// `true` if the extender filters nodes.
    pub filters: bool,
    /// `true` if the extender scores nodes.
    pub scores: bool,
    /// `true` if the extender chooses victims of preemption.
    pub preempts: bool,
}

impl Extender {
    /// Returns `true` if the extender is called for the Pod.
    pub fn is_interested(&self, pod: &Pod) -> bool {
        let amounts = pod.requests.extended.iter().chain(&pod.limits.extended);
        self.resources.is_empty() || amounts.clone().any(|(name, _)| self.resources.contains(name))
    }
}

/// The calls that the extenders support for one Pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) filters: bool,
    pub(crate) scores: bool,
    pub(crate) preempts: bool,
}

impl Roles {
    pub(crate) fn of(extenders: &[Extender], pod: &Pod) -> Self {
        let interested = || extenders.iter().filter(|extender| extender.is_interested(pod));
        Self {
            filters: interested().any(|extender| extender.filters),
            scores: interested().any(|extender| extender.scores),
            preempts: interested().any(|extender| extender.preempts),
        }
    }

    pub(crate) fn is_any(self) -> bool {
        self.filters || self.scores || self.preempts
    }
}

/// A question to the extenders. There is one at a time, as extenders expect it.
#[derive(Clone, Debug)]
pub struct Consultation {
    /// The number of the question, for [`crate::Core::answer`].
    pub id: u64,
    /// The Pod to schedule.
    pub pod: Arc<Pod>,
    /// The question.
    pub question: Question,
}

/// The subject of a consultation.
#[derive(Clone, Debug)]
pub enum Question {
    /// Filter and score the nodes with these names. The Pod fits on each.
    Nodes(Vec<Arc<str>>),
    /// Choose among the nodes on which the eviction of victims makes room.
    Victims(Vec<NodeVictims>),
}

/// The Pods to evict from a node.
#[derive(Clone, Debug)]
pub struct NodeVictims {
    /// The name of the node.
    pub node: Arc<str>,
    /// The victims.
    pub pods: Vec<Arc<Pod>>,
    /// The number of victims whose eviction violates a PodDisruptionBudget.
    pub violations: usize,
}

/// The answer to a consultation.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The opinions about the nodes of [`Question::Nodes`].
    Nodes(NodeOpinions),
    /// The remaining choices of [`Question::Victims`].
    Victims(Vec<NodeVictims>),
    /// There is no answer, for this reason. The Pod is retried after a backoff.
    Failed(String),
}

/// The opinions of the extenders about nodes.
#[derive(Clone, Debug, Default)]
pub struct NodeOpinions {
    /// The nodes that the Pod may use.
    pub accepted: Vec<AcceptedNode>,
    /// The nodes that the Pod may not use, with reasons.
    pub rejected: Vec<RejectedNode>,
}

/// A node that the extenders accept for a Pod.
#[derive(Clone, Debug)]
pub struct AcceptedNode {
    /// The name of the node.
    pub name: Arc<str>,
    /// The weighted scores of the extenders, to add to those of the plugins.
    pub score: i64,
}

/// A node that an extender rejects for a Pod.
#[derive(Clone, Debug)]
pub struct RejectedNode {
    /// The name of the node.
    pub name: Arc<str>,
    /// The reason.
    pub message: String,
    /// `true` if the eviction of Pods would not help.
    pub unresolvable: bool,
}

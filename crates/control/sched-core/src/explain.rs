//! Messages for Pods that fit nowhere.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write};

/// The reasons why a Pod fits nowhere, in upstream's wording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reasons {
    counts: BTreeMap<Cow<'static, str>, usize>,
}

impl Reasons {
    pub(crate) fn add(&mut self, reason: Cow<'static, str>, nodes: usize) {
        if nodes > 0 {
            *self.counts.entry(reason).or_default() += nodes;
        }
    }

    /// Formats the message: `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
    pub(crate) fn message(&self, nodes: usize) -> String {
        let mut parts: Vec<_> = self.counts.iter().map(|(text, n)| format!("{n} {text}")).collect();
        parts.sort();
        let mut out = format!("0/{nodes} nodes are available");
        if !parts.is_empty() {
            let _ = write!(out, ": {}.", parts.join(", "));
        }
        out
    }
}

/// Formats a message whose reason concerns the Pod and not a node.
pub(crate) fn whole_pod(nodes: usize, reason: &str) -> String {
    format!("0/{nodes} nodes are available: {reason}.")
}

pub(crate) const NO_NODES: &str = "no nodes available to schedule pods";

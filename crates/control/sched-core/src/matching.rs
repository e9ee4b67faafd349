//! Comparisons of compiled requirements with nodes and Pods.

use crate::{
    node::Node,
    nodeaffinity::{NodeSelector, NodeTerm, Op},
    pod::Pod,
    sym::Sym,
    taints::{Effect, untolerated},
    terms::{Namespaces, PodTerm},
};

impl NodeTerm {
    /// Reports whether all requirements of the term hold.
    pub(crate) fn matches(&self, node: &Node) -> bool {
        !(self.labels.is_empty() && self.names.is_empty())
            && self.labels.iter().all(|(key, op)| {
                let number = || node.number(*key);
                holds(op, node.labels.get(*key), number)
            })
            && self.names.iter().all(|op| holds(op, Some(node.symbol), || None))
    }
}

fn holds(op: &Op, value: Option<Sym>, number: impl Fn() -> Option<i64>) -> bool {
    match op {
        Op::In(values) => value.is_some_and(|v| values.contains(&v)),
        Op::NotIn(values) => value.is_none_or(|v| !values.contains(&v)),
        Op::Exists => value.is_some(),
        Op::Absent => value.is_none(),
        Op::Above(bound) => number().is_some_and(|n| n > *bound),
        Op::Below(bound) => number().is_some_and(|n| n < *bound),
        Op::Never => false,
    }
}

impl NodeSelector {
    /// Reports whether the labels and one of the terms match.
    pub(crate) fn matches(&self, node: &Node) -> bool {
        self.labels.matches(&node.labels)
            && self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(node)))
    }
}

impl Pod {
    /// Reports whether the Pod's node selector, node affinity and node name allow the node.
    pub fn selects(&self, node: &Node) -> bool {
        self.node_selector.as_ref().is_none_or(|selector| selector.matches(node))
            && self.node_name.as_ref().is_none_or(|name| *name == node.name)
    }

    /// Reports whether an untolerated taint prevents the Pod from starting on the node.
    pub fn has_untolerated_taint(&self, node: &Node) -> bool {
        untolerated(&node.taints, &self.tolerations).is_some()
    }

    /// Reports whether an untolerated NoExecute taint evicts the Pod from the node.
    pub fn is_evicted_by_taint(&self, node: &Node) -> bool {
        let taints: Vec<_> =
            node.taints.iter().filter(|taint| taint.effect == Effect::NoExecute).cloned().collect();
        untolerated(&taints, &self.tolerations).is_some()
    }
}

impl PodTerm {
    /// Reports whether the term selects the Pod.
    pub(crate) fn matches(&self, pod: &Pod, namespaces: &Namespaces) -> bool {
        self.selector.as_ref().is_some_and(|s| s.matches(&pod.labels))
            && self.namespaces.matches(pod.namespace_symbol, namespaces)
    }
}

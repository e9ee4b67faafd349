//! The plugin NodeDeclaredFeatures: nodes whose kubelets have the features that a Pod requires.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, Plan, Plugin, Verdict},
    pod::Pod,
};

/// Rejects nodes that do not declare a feature that the Pod requires.
pub(super) struct NodeDeclaredFeatures;

struct Evaluator<'a> {
    cluster: &'a Cluster,
    required: &'a [&'static str],
}

impl Evaluator<'_> {
    fn passes(&self, node: NodeIx) -> bool {
        let declared = &self.cluster.node(node).declared_features;
        self.required.iter().all(|name| declared.iter().any(|declared| **declared == **name))
    }
}

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatures"
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        let required = &cx.pod.required_features;
        if required.is_empty() {
            return Plan::Skip;
        }
        Plan::Check(Box::new(Evaluator { cluster: cx.cluster, required }))
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        let Event::Node { ix, change } = event else { return false };
        let evaluator = Evaluator { cluster, required: &pod.required_features };
        (change.added || change.features) && evaluator.passes(*ix)
    }
}

impl Filter for Evaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        if self.passes(node) { Verdict::PASS } else { Verdict::unresolvable(0) }
    }

    fn reason(&self, _: u32) -> Cow<'static, str> {
        let required = self.required.join(", ");
        format!("node declared features check failed - unsatisfied requirements: {required}").into()
    }
}

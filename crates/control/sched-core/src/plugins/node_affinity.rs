//! The plugin NodeAffinity: the node selector and the node affinity of the Pod.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    nodeaffinity::NodeSelector,
    plugin::{Cx, Filter, Plan, Plugin, Scorer, Verdict, scale_to_max},
    pod::Pod,
};

/// `nodeSelector` and node affinity, required and preferred, of the Pod and of its profile.
pub(super) struct NodeAffinity;

struct Evaluator<'a>(Cx<'a>);

const OWN: u32 = 0;
const ADDED: u32 = 1;

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn weight(&self) -> i64 {
        2
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        if cx.pod.node_selector.is_none() && cx.prepared.profile.added_required().is_none() {
            return Plan::Skip;
        }
        match cx.pod.node_selector.as_ref().and_then(NodeSelector::only_names) {
            None => Plan::Check(Box::new(Evaluator(cx))),
            Some(names) => {
                let named = |ix: &NodeIx| names.binary_search(&cx.cluster.node(*ix).symbol).is_ok();
                Plan::Only(cx.cluster.live_nodes().filter(named).collect(), Box::new(Evaluator(cx)))
            }
        }
    }

    fn scorer<'a>(&self, cx: Cx<'a>, _: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        let added = cx.prepared.profile.added_preferred();
        (!cx.pod.preferred_nodes.is_empty() || !added.is_empty())
            .then(|| Box::new(Evaluator(cx)) as _)
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        matches!(event, Event::Node { ix, change } if (change.added || change.labels)
            && pod.node_selector.as_ref().is_none_or(|s| s.matches(cluster.node(*ix))))
    }
}

impl Filter for Evaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        let Evaluator(cx) = self;
        let node = cx.cluster.node(node);
        if cx.prepared.profile.added_required().is_some_and(|added| !added.matches(node)) {
            return Verdict::unresolvable(ADDED);
        }
        match &cx.pod.node_selector {
            Some(selector) if !selector.matches(node) => Verdict::unresolvable(OWN),
            _ => Verdict::PASS,
        }
    }

    fn reason(&self, number: u32) -> Cow<'static, str> {
        match number {
            ADDED => "node(s) didn't match scheduler-enforced node affinity".into(),
            _ => "node(s) didn't match Pod's node affinity/selector".into(),
        }
    }
}

impl Scorer for Evaluator<'_> {
    fn score(&self, node: NodeIx) -> i64 {
        let node = self.0.cluster.node(node);
        let added = self.0.prepared.profile.added_preferred();
        let preferred = self.0.pod.preferred_nodes.iter().chain(added);
        preferred.filter(|p| p.1.matches(node)).map(|p| p.0).sum()
    }

    fn normalize(&self, _: &[NodeIx], scores: &mut [i64]) {
        scale_to_max(scores, false);
    }
}

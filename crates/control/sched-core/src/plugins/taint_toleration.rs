//! The plugin TaintToleration: taints that the Pod tolerates.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, Plan, Plugin, Scorer, Verdict, scale_to_max},
    pod::Pod,
    taints::{Effect, untolerated},
};

/// Rejects nodes with untolerated taints. Untolerated PreferNoSchedule taints lower the score.
pub(super) struct TaintToleration;

struct Evaluator<'a>(Cx<'a>);

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn weight(&self) -> i64 {
        3
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        Plan::Check(Box::new(Evaluator(cx)))
    }

    fn scorer<'a>(&self, cx: Cx<'a>, feasible: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        let tainted = |ix: &NodeIx| cx.cluster.hot[*ix as usize].tainted;
        feasible.iter().any(tainted).then(|| Box::new(Evaluator(cx)) as _)
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        matches!(event, Event::Node { ix, change } if (change.added || change.taints)
            && untolerated(&cluster.node(*ix).taints, &pod.tolerations).is_none())
    }
}

impl Filter for Evaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        let Evaluator(cx) = self;
        if !cx.cluster.hot[node as usize].tainted {
            return Verdict::PASS;
        }
        match untolerated(&cx.cluster.node(node).taints, &cx.pod.tolerations) {
            Some(_) => Verdict::unresolvable(0),
            None => Verdict::PASS,
        }
    }

    fn reason(&self, _: u32) -> Cow<'static, str> {
        "node(s) had untolerated taint(s)".into()
    }
}

impl Scorer for Evaluator<'_> {
    fn score(&self, node: NodeIx) -> i64 {
        let Evaluator(cx) = self;
        let tolerated = |taint| {
            cx.pod.tolerations.iter().filter(|t| t.covers_preferences()).any(|t| t.tolerates(taint))
        };
        let taints = cx.cluster.node(node).taints.iter();
        taints.filter(|t| t.effect == Effect::PreferNoSchedule && !tolerated(t)).count() as i64
    }

    fn normalize(&self, _: &[NodeIx], scores: &mut [i64]) {
        scale_to_max(scores, true);
    }
}

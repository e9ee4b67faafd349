//! The plugin NodeUnschedulable: nodes that are not cordoned.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, Plan, Plugin, Verdict},
    pod::Pod,
    sym::Sym,
    taints::{Effect, Taint},
};

/// Rejects cordoned nodes, unless the Pod tolerates the unschedulable taint.
pub(super) struct NodeUnschedulable;

struct Evaluator<'a>(&'a Cluster);

fn tolerated(pod: &Pod) -> bool {
    let taint = Taint {
        key: Sym::of("node.kubernetes.io/unschedulable"),
        value: Sym::of(""),
        number: None,
        effect: Effect::NoSchedule,
    };
    pod.tolerations.iter().any(|t| t.tolerates(&taint))
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        if tolerated(cx.pod) { Plan::Skip } else { Plan::Check(Box::new(Evaluator(cx.cluster))) }
    }

    fn wakes(&self, cluster: &Cluster, _pod: &Pod, event: &Event<'_>) -> bool {
        matches!(event, Event::Node { ix, change } if (change.added || change.taints)
            && !cluster.hot[*ix as usize].unschedulable)
    }
}

impl Filter for Evaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        if self.0.hot[node as usize].unschedulable {
            Verdict::unresolvable(0)
        } else {
            Verdict::PASS
        }
    }

    fn reason(&self, _: u32) -> Cow<'static, str> {
        "node(s) were unschedulable".into()
    }
}

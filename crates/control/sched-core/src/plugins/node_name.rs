//! The plugin NodeName: the node that the Pod names.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, Plan, Plugin, Verdict},
    pod::Pod,
};

/// Allows only the node in `spec.nodeName`, if it is set before scheduling.
pub(super) struct NodeName;

struct Evaluator(Option<NodeIx>);

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        match &cx.pod.node_name {
            None => Plan::Skip,
            Some(name) => Plan::Check(Box::new(Evaluator(cx.cluster.find_node(name)))),
        }
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        matches!(event, Event::Node { ix, change } if change.added
            && pod.node_name.as_deref() == Some(&*cluster.node(*ix).name))
    }
}

impl Filter for Evaluator {
    fn check(&self, node: NodeIx) -> Verdict {
        if self.0 == Some(node) { Verdict::PASS } else { Verdict::unresolvable(0) }
    }

    fn reason(&self, _: u32) -> Cow<'static, str> {
        "node(s) didn't match the requested node name".into()
    }
}

//! The plugin NodePorts: host ports that are not in use.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, Plan, Plugin, Verdict},
    pod::Pod,
};

/// Rejects nodes on which a requested host port is in use.
pub(super) struct NodePorts;

struct Evaluator<'a>(Cx<'a>);

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        if cx.pod.ports.is_empty() { Plan::Skip } else { Plan::Check(Box::new(Evaluator(cx))) }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        match event {
            Event::Node { change, .. } => change.added,
            Event::PodGone { pod: gone, .. } => {
                pod.ports.iter().any(|port| gone.ports.iter().any(|freed| freed.conflicts(port)))
            }
            _ => false,
        }
    }
}

impl Filter for Evaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        let used = &self.0.cluster.node(node).ports;
        let clash = self.0.pod.ports.iter().any(|port| used.iter().any(|t| t.conflicts(port)));
        if clash { Verdict::unschedulable(0) } else { Verdict::PASS }
    }

    fn reason(&self, _: u32) -> Cow<'static, str> {
        "node(s) didn't have free ports for the requested pod ports".into()
    }
}

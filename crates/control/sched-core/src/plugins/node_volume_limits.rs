//! The plugin NodeVolumeLimits: nodes that can attach more volumes of a driver.

use std::{borrow::Cow, collections::HashSet};

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, Plan, Plugin, Verdict},
    pod::Pod,
    volumes::VolumeIdentity,
};

/// Enforces the number of volumes of a CSI driver that a node can have.
pub(super) struct NodeVolumeLimits;

struct Evaluator<'a> {
    cluster: &'a Cluster,
    pod_volumes: HashSet<(&'a str, VolumeIdentity<'a>)>,
}

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        "NodeVolumeLimits"
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        let (cluster, volumes) = (cx.cluster, &cx.cluster.volumes);
        if cx.pod.claims.is_empty() || !volumes.has_limits() {
            return Plan::Skip;
        }
        let pod_volumes: HashSet<_> = volumes.of_drivers(cx.pod).collect();
        if pod_volumes.is_empty() {
            Plan::Skip
        } else {
            Plan::Check(Box::new(Evaluator { cluster, pod_volumes }))
        }
    }

    fn wakes(&self, _: &Cluster, _: &Pod, event: &Event<'_>) -> bool {
        matches!(event, Event::PodGone { .. } | Event::Volumes)
    }
}

impl Filter for Evaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        if self.cluster.volumes.within_limits(self.cluster.node(node), &self.pod_volumes) {
            Verdict::PASS
        } else {
            Verdict::unschedulable(0)
        }
    }

    fn reason(&self, _: u32) -> Cow<'static, str> {
        "node(s) exceed max volume count".into()
    }
}

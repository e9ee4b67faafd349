//! The plugin VolumeZone: nodes in the zones of the Pod's volumes.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, Plan, Plugin, Verdict},
    pod::Pod,
    volumes::Volume,
};

/// Rejects nodes outside the zones in a volume's labels.
pub(super) struct VolumeZone;

struct Evaluator<'a> {
    cluster: &'a Cluster,
    volumes: Vec<&'a Volume>,
}

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        "VolumeZone"
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        let volumes = &cx.cluster.volumes;
        let claims = cx.pod.claims.iter();
        let bound = claims.filter_map(|name| volumes.claim(cx.pod, name)?.bound());
        let all = bound.filter_map(|name| volumes.volume(name));
        let zoned: Vec<_> = all.filter(|volume| !volume.zones.is_empty()).collect();
        if zoned.is_empty() {
            Plan::Skip
        } else {
            Plan::Check(Box::new(Evaluator { cluster: cx.cluster, volumes: zoned }))
        }
    }

    fn wakes(&self, _: &Cluster, _: &Pod, event: &Event<'_>) -> bool {
        event.moves_volumes()
    }
}

impl Filter for Evaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        let node = self.cluster.node(node);
        let in_zone = |volume: &&Volume| {
            volume.zones.iter().all(|(zone, values)| {
                node.labels.get(*zone).is_some_and(|value| values.contains(&value))
            })
        };
        if self.volumes.iter().all(in_zone) { Verdict::PASS } else { Verdict::unresolvable(0) }
    }

    fn reason(&self, _: u32) -> Cow<'static, str> {
        "node(s) had no available volume zone".into()
    }
}

use std::borrow::Cow;

use crate::{
    cluster::{Cluster, NodeIx},
    nodeaffinity::NodeSelector,
    plugin::{Cx, Filter, Plan, Plugin, Verdict},
    pod::Pod,
    queue::Event,
};

/// A Pod's claims must be bound, and its volumes reachable from the node.
pub(super) struct VolumeBinding;

struct Look<'a> {
    cluster: &'a Cluster,
    selectors: Vec<&'a NodeSelector>,
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        let mut selectors = Vec::new();
        for name in &cx.pod.claims {
            let Some(claim) = cx.cluster.volumes.claim(cx.pod, name) else {
                return Plan::Reject(format!("persistentvolumeclaim \"{name}\" not found"));
            };
            let Some(volume) = &claim.volume else {
                return Plan::Reject("pod has unbound immediate PersistentVolumeClaims".into());
            };
            selectors.extend(cx.cluster.volumes.selector(volume));
        }
        if selectors.is_empty() {
            Plan::Skip
        } else {
            Plan::Check(Box::new(Look { cluster: cx.cluster, selectors }))
        }
    }

    fn wakes(&self, _: &Cluster, _: &Pod, event: &Event<'_>) -> bool {
        match event {
            Event::Volumes => true,
            Event::Node { change, .. } => change.added || change.labels,
            _ => false,
        }
    }
}

impl Filter for Look<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        let node = self.cluster.node(node);
        if self.selectors.iter().all(|s| s.matches(node)) {
            Verdict::PASS
        } else {
            Verdict::never(0)
        }
    }

    fn reason(&self, _: u32) -> Cow<'static, str> {
        "node(s) didn't match PersistentVolume's node affinity".into()
    }
}

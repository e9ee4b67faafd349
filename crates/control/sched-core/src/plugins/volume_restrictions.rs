//! The plugin VolumeRestrictions: claims that only one Pod may use.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, Plan, Plugin, Verdict},
    pod::Pod,
};

/// Rejects a Pod whose ReadWriteOncePod claim another Pod uses.
pub(super) struct VolumeRestrictions;

struct ClaimInUse;

fn is_in_use(cluster: &Cluster, pod: &Pod) -> bool {
    pod.claims.iter().any(|name| {
        let volumes = &cluster.volumes;
        volumes.claim(pod, name).is_some_and(|c| c.one_pod_only) && volumes.users(pod, name) > 0
    })
}

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        "VolumeRestrictions"
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        if is_in_use(cx.cluster, cx.pod) { Plan::Check(Box::new(ClaimInUse)) } else { Plan::Skip }
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        matches!(event, Event::PodGone { .. } | Event::Volumes) && !is_in_use(cluster, pod)
    }
}

impl Filter for ClaimInUse {
    fn check(&self, _: NodeIx) -> Verdict {
        Verdict::unschedulable(0)
    }

    fn reason(&self, _: u32) -> Cow<'static, str> {
        "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode".into()
    }
}

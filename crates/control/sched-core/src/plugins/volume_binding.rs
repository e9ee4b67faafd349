//! The plugin VolumeBinding: nodes that can reach or get the volumes of the Pod.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, Plan, Plugin, Verdict},
    pod::Pod,
    volumes::{Lack, Volume},
};

/// Requires that a node can reach the Pod's volumes, and that each unbound claim can get a volume there.
pub(super) struct VolumeBinding;

struct Evaluator<'a> {
    cluster: &'a Cluster,
    pod: &'a Pod,
    bound: Vec<&'a Volume>,
    waits: bool,
}

const AFFINITY: u32 = 0;
const NONE: u32 = 1;
const ROOM: u32 = 2;

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        let volumes = &cx.cluster.volumes;
        let mut evaluator =
            Evaluator { cluster: cx.cluster, pod: cx.pod, bound: Vec::new(), waits: false };
        for name in &cx.pod.claims {
            let Some(claim) = volumes.claim(cx.pod, name) else {
                return Plan::Reject(format!("persistentvolumeclaim \"{name}\" not found"));
            };
            if claim.lost {
                return Plan::Reject(format!(
                    "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume"
                ));
            }
            if claim.terminating {
                return Plan::Reject(format!("persistentvolumeclaim \"{name}\" is being deleted"));
            }
            match claim.bound() {
                Some(volume) => match volumes.volume(volume) {
                    Some(volume) => evaluator.bound.push(volume),
                    None => {
                        return Plan::Reject(format!(
                            "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
                        ));
                    }
                },
                None if volumes.waits_for_consumer(claim) => evaluator.waits = true,
                None => {
                    return Plan::Reject("pod has unbound immediate PersistentVolumeClaims".into());
                }
            }
        }
        evaluator.bound.retain(|volume| volume.nodes.is_some());
        if evaluator.bound.is_empty() && !evaluator.waits {
            Plan::Skip
        } else {
            Plan::Check(Box::new(evaluator))
        }
    }

    fn wakes(&self, _: &Cluster, _: &Pod, event: &Event<'_>) -> bool {
        event.moves_volumes()
    }
}

impl Filter for Evaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        let node = self.cluster.node(node);
        if !self.bound.iter().all(|volume| volume.reaches(node)) {
            return Verdict::unresolvable(AFFINITY);
        }
        match self.waits.then(|| self.cluster.volumes.choose(self.pod, node)) {
            None | Some(Ok(_)) => Verdict::PASS,
            Some(Err(Lack::Volume)) => Verdict::unresolvable(NONE),
            Some(Err(Lack::Capacity)) => Verdict::unresolvable(ROOM),
        }
    }

    fn reason(&self, number: u32) -> Cow<'static, str> {
        match number {
            AFFINITY => "node(s) didn't match PersistentVolume's node affinity".into(),
            ROOM => "node(s) did not have enough free storage".into(),
            _ => "node(s) didn't find available persistent volumes to bind".into(),
        }
    }
}

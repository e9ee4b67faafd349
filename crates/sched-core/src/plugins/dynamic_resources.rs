use std::{
    borrow::Cow,
    cell::{OnceCell, RefCell},
};

use crate::{
    cluster::{Cluster, NodeIx},
    devices::{Devices, Look, Stop},
    plugin::{Cx, Filter, Plan, Plugin, Scorer, Verdict, scale_to_max},
    pod::Pod,
    queue::Event,
};

/// The devices of a Pod's claims must be usable on the node, and there must be some for each claim without.
pub(super) struct DynamicResources;

const ELSEWHERE: u32 = 0;
const NONE: u32 = 1;
const UNSOUND: u32 = 2;

struct Checks<'a> {
    cluster: &'a Cluster,
    look: Look<'a>,
    /// Something is wrong with a claim or class, which must not look like a lack of devices.
    wrong: OnceCell<String>,
    /// A claim that only this Pod uses and whose devices are elsewhere: the last that was met.
    stuck: RefCell<Option<(Box<str>, Box<str>)>>,
    pod: &'a Pod,
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }

    fn weight(&self) -> i64 {
        2
    }

    fn holds_back(&self, cluster: &Cluster, pod: &Pod) -> bool {
        !pod.device_claims.is_empty() && cluster.devices.of_pod(pod).is_err()
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        if cx.pod.device_claims.is_empty() {
            return Plan::Skip;
        }
        match cx.cluster.devices.look(cx.pod) {
            Err(why) => Plan::Reject(why),
            Ok(look) if look.is_idle() => Plan::Skip,
            Ok(look) => Plan::Check(Box::new(Checks {
                cluster: cx.cluster,
                look,
                wrong: OnceCell::new(),
                stuck: RefCell::default(),
                pod: cx.pod,
            })),
        }
    }

    fn scorer<'a>(&self, cx: Cx<'a>, _: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        if cx.pod.device_claims.is_empty() {
            return None;
        }
        let look = cx.cluster.devices.look(cx.pod).ok()?;
        Some(Box::new(Preference { cluster: cx.cluster, look }))
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        match event {
            Event::Devices => true,
            Event::DeviceClaim { namespace, name, change } => {
                change.freed || change.changed && Devices::uses(pod, namespace, name)
            }
            // What was in flight for it is free.
            Event::PodGone { pod, .. } => !pod.device_claims.is_empty(),
            Event::Node { change, .. } => change.added || change.labels || change.allocatable,
            _ => false,
        }
    }
}

impl Filter for Checks<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        let node = self.cluster.node(node);
        let mut available = true;
        for claim in self.look.unavailable(node) {
            available = false;
            let users = &claim.status.reserved_for;
            if users.iter().all(|user| *user.uid == *self.pod.id.uid) {
                let claim =
                    (claim.metadata.name.as_str().into(), claim.metadata.uid.as_str().into());
                self.stuck.replace(Some(claim));
            }
        }
        match self.look.allocate(node) {
            Ok(_) if available => return Verdict::PASS,
            Ok(_) => return Verdict::never(ELSEWHERE),
            Err(Stop::Unsound) => return Verdict::never(UNSOUND),
            Err(Stop::Unmet) => {}
            Err(Stop::Wrong(why)) => drop(self.wrong.set(why)),
            Err(Stop::Exhausted) => {
                let why = format!("node {}: timed out trying to allocate devices", node.name);
                let _ = self.wrong.set(why);
            }
        }
        Verdict::never(NONE)
    }

    fn reason(&self, number: u32) -> Cow<'static, str> {
        match number {
            ELSEWHERE => "resourceclaim not available on the node".into(),
            UNSOUND => "invalid resource pools were encountered".into(),
            _ => "cannot allocate all claims".into(),
        }
    }

    fn failure(&self) -> Option<String> {
        self.wrong.get().cloned()
    }

    fn stuck(&self) -> Option<(Box<str>, Box<str>)> {
        self.stuck.borrow().clone()
    }
}

struct Preference<'a> {
    cluster: &'a Cluster,
    look: Look<'a>,
}

impl Scorer for Preference<'_> {
    fn score(&self, node: NodeIx) -> i64 {
        self.look.preference(self.cluster.node(node))
    }

    fn normalize(&self, _: &[NodeIx], scores: &mut [i64]) {
        scale_to_max(scores, false);
    }
}

//! The plugin DynamicResources: nodes with the devices of the Pod's claims.

use std::{
    borrow::Cow,
    cell::{OnceCell, RefCell},
};

use crate::{
    cluster::Cluster,
    devices::{ClaimEvaluator, Devices, SearchError, Stop},
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, Plan, Plugin, Scorer, Verdict, scale_to_max},
    pod::Pod,
};

/// Requires that a node can use the allocated devices of a Pod's claims and has devices for pending claims.
pub(super) struct DynamicResources;

const NOT_ON_NODE: u32 = 0;
const NONE: u32 = 1;
const UNSOUND: u32 = 2;

struct Checks<'a> {
    cluster: &'a Cluster,
    evaluator: ClaimEvaluator<'a>,
    /// The error of an invalid claim or class, which must not be reported as a lack of devices.
    error: OnceCell<SearchError>,
    /// The last claim whose devices are not on the checked node and that only this Pod uses.
    blocking_claim: RefCell<Option<(Box<str>, Box<str>)>>,
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
        if !cx.cluster.devices.concerns(cx.pod) {
            return Plan::Skip;
        }
        match cx.cluster.devices.evaluator(cx.pod) {
            Err(error) => Plan::Reject(error.to_string()),
            Ok(evaluator) if evaluator.is_idle() => Plan::Skip,
            Ok(evaluator) => Plan::Check(Box::new(Checks {
                cluster: cx.cluster,
                evaluator,
                error: OnceCell::new(),
                blocking_claim: RefCell::default(),
                pod: cx.pod,
            })),
        }
    }

    fn scorer<'a>(&self, cx: Cx<'a>, _: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        if !cx.cluster.devices.concerns(cx.pod) {
            return None;
        }
        let evaluator = cx.cluster.devices.evaluator(cx.pod).ok()?;
        Some(Box::new(Preference { cluster: cx.cluster, evaluator }))
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        match event {
            Event::Devices => true,
            Event::DeviceClaim { namespace, name, change } => {
                change.freed || change.changed && Devices::uses(pod, namespace, name)
            }
            // Allocations in flight for that Pod are released.
            Event::PodGone { pod, .. } => cluster.devices.concerns(pod),
            Event::Node { change, .. } => change.added || change.labels || change.allocatable,
            _ => false,
        }
    }
}

impl Filter for Checks<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        let node = self.cluster.node(node);
        let mut available = true;
        for claim in self.evaluator.unavailable(node) {
            available = false;
            let users = &claim.status.reserved_for;
            if users.iter().all(|user| *user.uid == *self.pod.id.uid) {
                let claim =
                    (claim.metadata.name.as_str().into(), claim.metadata.uid.as_str().into());
                self.blocking_claim.replace(Some(claim));
            }
        }
        match self.evaluator.allocate(node) {
            Ok(_) if available => return Verdict::PASS,
            Ok(_) => return Verdict::unresolvable(NOT_ON_NODE),
            Err(Stop::Unsound) => return Verdict::unresolvable(UNSOUND),
            Err(Stop::Unmet) => {}
            Err(Stop::Invalid(error)) => drop(self.error.set(error)),
            Err(Stop::Exhausted) => {
                let _ = self.error.set(SearchError::Exhausted { node: node.name.clone() });
            }
        }
        Verdict::unresolvable(NONE)
    }

    fn reason(&self, number: u32) -> Cow<'static, str> {
        match number {
            NOT_ON_NODE => "resourceclaim not available on the node".into(),
            UNSOUND => "invalid resource pools were encountered".into(),
            _ => "cannot allocate all claims".into(),
        }
    }

    fn failure(&self) -> Option<String> {
        self.error.get().map(SearchError::to_string)
    }

    fn blocking_claim(&self) -> Option<(Box<str>, Box<str>)> {
        self.blocking_claim.borrow().clone()
    }
}

struct Preference<'a> {
    cluster: &'a Cluster,
    evaluator: ClaimEvaluator<'a>,
}

impl Scorer for Preference<'_> {
    fn score(&self, node: NodeIx) -> i64 {
        self.evaluator.preference(self.cluster.node(node))
    }

    fn normalize(&self, _: &[NodeIx], scores: &mut [i64]) {
        scale_to_max(scores, false);
    }
}

//! The decision for one Pod: a node is found and the Pod assumed there, or the Pod waits.

use std::sync::Arc;

use super::{AssumedPod, Core, Decision, Failure};
use crate::{
    devices::DeviceBinding,
    event::Event,
    explain,
    index::NodeIx,
    observe::{Stage, StageResult},
    pod::{Pod, PodRef},
    schedule::{Diagnosis, Placement, check_node, schedule},
    volumes::ClaimBinding,
};

impl Core {
    /// Decides for the next Pod, and with it for its gang; `None` if no Pod is due.
    pub fn next(&mut self, now: u64) -> Option<Decision> {
        if let Some(decision) = self.pending.pop_front() {
            return Some(decision);
        }
        if let Some(pod) = self.next_to_consult() {
            return Some(self.decide_alone(pod, now));
        }
        loop {
            let pod = self.queue.pop(now)?;
            if self.waits_for_extenders(&pod) {
                continue;
            }
            if self.cluster.groups.holds_back(&pod) {
                // Its group is gone, or has lost Pods since.
                self.queue.hold(&pod.id.uid, now);
                continue;
            }
            let Some(key) = self.cluster.groups.key_of(&pod) else {
                return Some(self.decide_alone(pod, now));
            };
            self.decide_group(&key, pod, now);
            return self.pending.pop_front();
        }
    }

    /// Decides for one Pod, whatever happens to others.
    pub(super) fn decide_alone(&mut self, pod: Arc<Pod>, now: u64) -> Decision {
        let decision = self.attempt(pod, now);
        self.announce(&decision, now);
        decision
    }

    /// Decides for one Pod and assumes it on its node, without telling the Pods that wait for it.
    pub(super) fn attempt(&mut self, pod: Arc<Pod>, now: u64) -> Decision {
        self.current = Some(pod.clone());
        let decision = self.decide(pod, now);
        if let Some(pod) = self.current.take() {
            self.suspects.remove(&pod.id.uid);
        }
        decision
    }

    /// Wakes the Pods that an assumed Pod may help.
    pub(super) fn announce(&mut self, decision: &Decision, now: u64) {
        if let Decision::Bind { pod, .. } = decision {
            self.queue.on_event(&self.cluster, &Event::PodPlaced { pod }, now);
        }
    }

    fn decide(&mut self, pod: Arc<Pod>, now: u64) -> Decision {
        let roles = self.roles(&pod);
        if roles.filters || roles.scores {
            return self.consult(pod, roles, true, now);
        }
        match self.find(&pod) {
            Ok(placement) => self.place(pod, placement, now),
            Err(diagnosis) => self.give_up(pod, &diagnosis, now),
        }
    }

    /// Assumes the Pod on its node.
    pub(super) fn place(&mut self, pod: Arc<Pod>, placement: Placement, now: u64) -> Decision {
        let Placement { node, evaluated, feasible } = placement;
        let name = self.cluster.node(node).name.clone();
        let tries = self.queue.tries(&pod.id.uid, now);
        self.queue.remove(&pod.id.uid);
        self.clear_nomination(&pod.id.uid);
        self.turn.observer.begin();
        let chosen = self.choose(&pod, node);
        let result = match &chosen {
            Some(_) => StageResult::Success,
            None => StageResult::Unschedulable,
        };
        self.turn.observer.end(Stage::Reserve, result, &pod.scheduler_name);
        let Some((claims, devices)) = chosen else {
            // The node passed the filters, but the search for its devices failed now; retry later.
            self.queue.requeue(pod.clone(), tries, now);
            let message =
                explain::whole_pod(self.cluster.node_count(), "cannot allocate all claims");
            return Decision::Unschedulable(Failure::plain(pod, message));
        };
        self.cluster.volumes.reserve(&pod, &claims);
        self.cluster.devices.assume(&pod, &devices);
        self.cluster.add_pod(pod.clone(), &name);
        self.assumed.insert(pod.id.uid.clone(), AssumedPod { pod: pod.clone(), tries });
        Decision::Bind { pod, node: name, evaluated, feasible, claims, devices, tries }
    }

    /// Chooses the volumes and devices of the Pod on the node, as far as its profile enables the plugins. Returns
    /// `None` if there are not enough devices.
    fn choose(&self, pod: &Pod, node: NodeIx) -> Option<(Vec<ClaimBinding>, Vec<DeviceBinding>)> {
        let (cluster, node) = (&self.cluster, self.cluster.node(node));
        let profile = cluster.profiles.of(&pod.scheduler_name);
        let claims = if profile.filters_by("VolumeBinding") {
            cluster.volumes.choose(pod, node).unwrap_or_default()
        } else {
            Vec::new()
        };
        let devices = if profile.filters_by("DynamicResources") {
            cluster.devices.choose(pod, node)?
        } else {
            Vec::new()
        };
        Some((claims, devices))
    }

    /// Returns the time at which [`Core::next`] may return a decision that it does not return now.
    pub fn next_time(&self) -> Option<u64> {
        self.queue.next_time()
    }

    /// Removes an assumed Pod whose binding failed from its node, and requeues it with a backoff.
    pub fn bind_failed(&mut self, pod: &PodRef, now: u64) {
        let Some(AssumedPod { pod, tries }) = self.assumed.remove(&pod.uid) else { return };
        self.forget_claims(&pod.id.uid);
        if let Some((node, gone)) = self.cluster.remove_pod(&pod.id.uid) {
            self.queue.on_event(&self.cluster, &Event::PodGone { pod: &gone, node }, now);
        }
        self.queue.requeue(pod, tries, now);
    }

    pub(super) fn find(&mut self, pod: &Pod) -> Result<Placement, Diagnosis> {
        if let Some(node) = self.fitting_nomination(pod) {
            return Ok(Placement { node, evaluated: 1, feasible: 1 });
        }
        schedule(&mut self.cluster, pod, &self.nominated, &mut self.turn)
    }

    /// Returns the node that was nominated for the Pod, if the Pod fits there now.
    pub(super) fn fitting_nomination(&mut self, pod: &Pod) -> Option<NodeIx> {
        let ix = *self.nominations.get(&pod.id.uid)?;
        let is_alone = self.nominated.get(&ix).is_none_or(|all| all.len() <= 1);
        let fits = self.cluster.hot[ix as usize].live
            && is_alone
            && check_node(&mut self.cluster, pod, ix, None);
        fits.then_some(ix)
    }

    pub(super) fn nominate(&mut self, pod: Arc<Pod>, node: NodeIx) {
        self.clear_nomination(&pod.id.uid);
        self.nominations.insert(pod.id.uid.clone(), node);
        self.nominated.entry(node).or_default().push(pod);
    }

    pub(super) fn clear_nomination(&mut self, uid: &str) {
        let Some(node) = self.nominations.remove(uid) else { return };
        if let Some(pods) = self.nominated.get_mut(&node) {
            pods.retain(|pod| *pod.id.uid != *uid);
            if pods.is_empty() {
                self.nominated.remove(&node);
            }
        }
    }
}

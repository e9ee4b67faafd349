//! PodGroups: the Pods of a gang are scheduled together, or none of them is.

use std::{
    cmp::Reverse,
    sync::{Arc, LazyLock},
};

use super::{Core, Decision, Failure};
use crate::{
    event::Event,
    groups::{GroupKey, GroupOutcome},
    index::NodeIx,
    plugins::registry,
    pod::Pod,
    view::PodGroupView,
};

/// The Pods of a gang in one attempt.
#[derive(Clone, Copy)]
struct Tally {
    required: usize,
    /// The Pods that had a node before.
    placed: usize,
    /// The Pods that got a node now.
    fitting: usize,
    /// The Pods that get a node once their victims are gone.
    nominated: usize,
}

impl Tally {
    fn count(&mut self, decision: &Decision) {
        match decision {
            Decision::Bind { .. } => self.fitting += 1,
            Decision::Unschedulable(failure) if failure.nominated.is_some() => self.nominated += 1,
            Decision::Unschedulable(_) | Decision::Consult(_) => {}
        }
    }

    fn succeeds(self) -> bool {
        self.placed + self.fitting >= self.required
    }

    /// Reports whether the gang fits after preemption, if `left` further Pods fit, too.
    fn may_fit(self, left: usize) -> bool {
        self.placed + self.fitting + self.nominated + left >= self.required
    }
}

impl Core {
    /// Sets or, with `None`, removes a PodGroup. Its Pods are tried as soon as there are enough of them.
    pub fn set_pod_group(
        &mut self,
        namespace: &Arc<str>,
        name: &Arc<str>,
        view: Option<&PodGroupView>,
        now: u64,
    ) {
        if self.cluster.groups.set((namespace.clone(), name.clone()), view) {
            self.queue.on_event(&self.cluster, &Event::PodGroup { namespace, name }, now);
        }
    }

    /// Returns the results for PodGroups of the decisions so far, to be written to their status.
    pub fn take_outcomes(&mut self) -> Vec<GroupOutcome> {
        std::mem::take(&mut self.outcomes)
    }

    /// Counts a Pod as a member of its group. The Pods that have waited for it are tried.
    pub(super) fn join_group(&mut self, pod: &Pod, now: u64) {
        let Some(key) = self.cluster.groups.key_of(pod) else { return };
        if self.cluster.groups.add_member(key.clone(), &pod.id.uid) {
            let event = Event::PodGroup { namespace: &key.0, name: &key.1 };
            self.queue.on_event(&self.cluster, &event, now);
        }
    }

    pub(super) fn leave_group(&mut self, pod: &Pod) {
        if let Some(key) = self.cluster.groups.key_of(pod) {
            self.cluster.groups.remove_member(&key, &pod.id.uid);
        }
    }

    /// Decides for a Pod of a group and, if the group is a gang, for all its waiting Pods.
    pub(super) fn decide_group(&mut self, key: &GroupKey, pod: Arc<Pod>, now: u64) {
        if let Some(required) = self.cluster.groups.get(key).and_then(|group| group.gang) {
            return self.decide_gang(key, required, pod, now);
        }
        let decision = self.decide_alone(pod, now);
        let failure = failure_of(&decision).cloned();
        self.pending.push_back(decision);
        self.report_group(key, failure.as_ref());
    }

    fn decide_gang(&mut self, key: &GroupKey, required: usize, first: Arc<Pod>, now: u64) {
        let members: Vec<_> = self.cluster.groups.members(key).cloned().collect();
        let placed = members.iter().filter(|uid| self.cluster.placement(uid).is_some()).count();
        let others = members.iter().filter_map(|uid| self.queue.take(uid));
        let mut pods: Vec<_> = others.chain([first.clone()]).collect();
        pods.sort_by(|a, b| order(a).cmp(&order(b)));
        self.trial = pods.iter().map(|pod| pod.id.uid.clone()).collect();
        let mut tally = Tally { required, placed, fitting: 0, nominated: 0 };
        let mut decisions = self.attempt_all(&pods, &mut tally, now);
        let mut failure = None;
        if tally.succeeds() {
            decisions.iter().for_each(|decision| self.announce(decision, now));
        } else {
            let message = format!(
                "{} of {required} required pods of pod group {:?} can be scheduled",
                placed + tally.fitting,
                key.1
            );
            let cause = decisions.iter().find_map(failure_of).cloned();
            let whole = match &cause {
                Some(cause) => format!("{message}: {}", cause.message),
                None => message.clone(),
            };
            failure = Some(Failure {
                message: whole,
                ..cause.unwrap_or_else(|| Failure::plain(first, String::new()))
            });
            let waits = tally.nominated > 0 && tally.may_fit(0);
            for decision in &mut decisions {
                self.withdraw(decision, waits, &message, now);
            }
        }
        self.trial.clear();
        self.pending.extend(decisions);
        self.report_group(key, failure.as_ref());
    }

    /// Decides for the Pods of a gang in order. Stops if the others cannot complete the gang any more.
    fn attempt_all(&mut self, pods: &[Arc<Pod>], tally: &mut Tally, now: u64) -> Vec<Decision> {
        let mut decisions = Vec::with_capacity(pods.len());
        let scheduler = pods.first().map(|pod| pod.scheduler_name.clone());
        let differs = pods.iter().any(|pod| Some(&pod.scheduler_name) != scheduler.as_ref());
        for (at, pod) in pods.iter().enumerate() {
            let reason = if differs {
                "all pods of a pod group must have the same schedulerName"
            } else if !tally.may_fit(pods.len() - at) {
                "other pods of the pod group cannot be scheduled"
            } else {
                let decision = self.attempt(pod.clone(), now);
                tally.count(&decision);
                decisions.push(decision);
                continue;
            };
            self.queue.park(&pod.id.uid, *GANG_SCHEDULING, now);
            self.clear_nomination(&pod.id.uid);
            decisions.push(Decision::Unschedulable(Failure::plain(pod.clone(), reason.into())));
        }
        decisions
    }

    /// Undoes the decision for a Pod of a gang that does not fit. If the gang waits for victims, the Pod is nominated
    /// for its node; otherwise it does not evict any.
    fn withdraw(&mut self, decision: &mut Decision, waits: bool, message: &str, now: u64) {
        let failure = match decision {
            Decision::Bind { pod, tries, .. } => {
                let (pod, tries) = (pod.clone(), *tries);
                let node = self.remove_assumed(&pod);
                self.queue.park_again(pod.clone(), tries, *GANG_SCHEDULING, now);
                let mut failure = Failure::plain(pod, message.to_owned());
                if let Some(node) = node.filter(|_| waits) {
                    self.nominate(failure.pod.clone(), node);
                    failure.nominated = Some((self.cluster.node(node).name.clone(), Vec::new()));
                }
                failure
            }
            Decision::Unschedulable(failure) => {
                if !waits && failure.nominated.take().is_some() {
                    self.clear_nomination(&failure.pod.id.uid);
                }
                return;
            }
            // Extenders are not asked about Pods of groups.
            Decision::Consult(_) => return,
        };
        *decision = Decision::Unschedulable(failure);
    }

    /// Removes an assumed Pod from its node. No Pod is woken, because none has learnt that the Pod was there.
    fn remove_assumed(&mut self, pod: &Pod) -> Option<NodeIx> {
        self.assumed.remove(&pod.id.uid);
        self.forget_claims(&pod.id.uid);
        self.cluster.remove_pod(&pod.id.uid).map(|(node, _)| node)
    }

    /// Adds the outcome for the group's condition, unless it has that condition. A group that was scheduled stays so.
    fn report_group(&mut self, key: &GroupKey, failure: Option<&Failure>) {
        let Some(group) = self.cluster.groups.get(key) else { return };
        let is_transition = match (&group.scheduled, failure) {
            (Some((true, _)), _) => return,
            (Some((false, known)), Some(failure)) if **known == *failure.message => return,
            (Some((false, _)), failure) => failure.is_none(),
            (None, _) => true,
        };
        self.outcomes.push(GroupOutcome {
            namespace: key.0.clone(),
            name: key.1.clone(),
            uid: group.uid.clone(),
            scheduled: failure.is_none(),
            is_error: failure.is_some_and(|failure| failure.is_error),
            message: failure.map_or_else(String::new, |failure| failure.message.clone()),
            is_transition,
        });
    }
}

fn failure_of(decision: &Decision) -> Option<&Failure> {
    match decision {
        Decision::Unschedulable(failure) => Some(failure),
        Decision::Bind { .. } | Decision::Consult(_) => None,
    }
}

/// Returns the order in which the Pods of a gang are tried.
fn order(pod: &Pod) -> (Reverse<i32>, &str, &str) {
    (Reverse(pod.priority), &pod.created, &pod.id.name)
}

/// The bit of the plugin that rejects Pods because of their gang.
static GANG_SCHEDULING: LazyLock<u32> = LazyLock::new(|| {
    let at = registry().iter().position(|plugin| plugin.name() == "GangScheduling");
    at.map_or(0, |at| 1 << at)
});

//! The end of an attempt without a node: preemption and the message for the user.

use std::sync::Arc;

use super::{Core, Decision, Failure, consultations::Rejection};
use crate::{
    explain,
    observe::{Stage, StageResult},
    pod::Pod,
    preempt::{Candidate, pick, preempt},
    schedule::Diagnosis,
};

/// Upstream's message if extenders have left no node for preemption.
pub(super) const NO_CANDIDATE: &str = "no candidate node for preemption";

impl Core {
    pub(super) fn give_up(&mut self, pod: Arc<Pod>, diagnosis: &Diagnosis, now: u64) -> Decision {
        let total = self.cluster.node_count();
        if total == 0 {
            self.park(&pod, diagnosis.plugins, now);
            let message = explain::NO_NODES.into();
            return Decision::Unschedulable(Failure::plain(pod, message));
        }
        let message = match &diagnosis.whole_pod {
            Some(reason) => explain::whole_pod(total, reason),
            None => diagnosis.reasons.message(total),
        };
        let profile = self.cluster.profiles.of(&pod.scheduler_name).clone();
        let asks_devices = profile.filters_by("DynamicResources");
        let rejection = Rejection {
            message,
            devices: asks_devices.then(|| diagnosis.devices(&pod)).flatten(),
            blocking_claim: diagnosis.blocking_claim.clone(),
            plugins: diagnosis.plugins,
            is_error: diagnosis.is_error,
        };
        let candidates = profile.preempts.then(|| self.find_victims(&pod, diagnosis));
        match candidates {
            Some(Ok(candidates)) if self.roles(&pod).preempts => {
                self.ask_about_victims(pod, rejection, candidates)
            }
            Some(Ok(candidates)) => {
                let chosen = pick(candidates).ok_or_else(|| NO_CANDIDATE.to_owned());
                self.conclude(pod, rejection, Some(chosen), now)
            }
            Some(Err(reason)) => self.conclude(pod, rejection, Some(Err(reason)), now),
            None => self.conclude(pod, rejection, None, now),
        }
    }

    fn find_victims(&mut self, pod: &Pod, diagnosis: &Diagnosis) -> Result<Vec<Candidate>, String> {
        let budgets: Vec<_> = self.budgets.values().cloned().collect();
        self.turn.observer.begin();
        let (cluster, nominated) = (&mut self.cluster, &self.nominated);
        let found = preempt(cluster, pod, diagnosis, nominated, &budgets, &mut self.turn);
        let result = if found.is_ok() { StageResult::Success } else { StageResult::Unschedulable };
        self.turn.observer.end(Stage::PostFilter, result, &pod.scheduler_name);
        found
    }

    /// Parks a Pod that fits nowhere, with the result of preemption: victims or a reason, or `None` if it is disabled.
    pub(super) fn conclude(
        &mut self,
        pod: Arc<Pod>,
        rejection: Rejection,
        preemption: Option<Result<Candidate, String>>,
        now: u64,
    ) -> Decision {
        let Rejection { mut message, devices, blocking_claim, plugins, is_error } = rejection;
        self.park(&pod, plugins, now);
        let (nominated, reason) = match preemption {
            Some(Ok(candidate)) => {
                self.nominate(pod.clone(), candidate.node);
                let node = self.cluster.node(candidate.node).name.clone();
                (Some((node, candidate.victims)), None)
            }
            Some(Err(reason)) => (None, Some(format!("preemption: {reason}"))),
            None => (None, None),
        };
        if nominated.is_none() {
            self.clear_nomination(&pod.id.uid);
            let parts: Vec<_> = devices.map(str::to_owned).into_iter().chain(reason).collect();
            message = format!("{message} {}", parts.join(", ")).trim_end().to_owned();
        }
        let deallocate = blocking_claim.filter(|_| nominated.is_none());
        Decision::Unschedulable(Failure { pod, message, nominated, deallocate, is_error })
    }
}

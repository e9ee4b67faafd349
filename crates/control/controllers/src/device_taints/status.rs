//! The status of DeviceTaintRules: the condition `EvictionInProgress`, whose message counts Pods. For the effect `None`
//! it shows once what `NoExecute` would do.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api_meta::{ObjectMeta, null_default};
use client::{Change, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue};
use parking_lot::Mutex;
use sched_core::{AllocatedDevice, DeviceTaintRuleSpecView, DeviceTaintView, ResourceSliceView};
use serde::Deserialize;
use serde_json::{Value, json};

use super::taint::{active_pods, end, pool};
use crate::{
    context::{Context, synced},
    shared::Watched,
    views::{Condition, Pod, ResourceClaim, condition},
};

const CONDITION: &str = "EvictionInProgress";
/// The least time between two updates of a rule's status.
const PERIOD: Duration = Duration::from_secs(10);

/// A DeviceTaintRule, reduced to the fields that this controller reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TaintRule {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: DeviceTaintRuleSpecView,
    status: TaintRuleStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct TaintRuleStatus {
    #[serde(deserialize_with = "null_default")]
    conditions: Vec<Condition>,
}

impl TaintRule {
    pub(super) fn concerns(&self, device: &AllocatedDevice) -> bool {
        self.spec.concerns(&device.driver, &device.pool, &device.device)
    }
}

/// Reports whether a change is a new rule or a new spec.
pub(super) fn is_new(change: &Change<'_, TaintRule>) -> bool {
    let id = |rule: &TaintRule| (rule.metadata.uid.clone(), rule.metadata.generation);
    change.new.is_some() && change.new.map(|new| id(new)) != change.old.map(|old| id(old))
}

/// The rules, and the work on their status.
#[derive(Clone)]
pub(super) struct RuleStatus {
    pub(super) rules: Watched<TaintRule>,
    slices: Watched<ResourceSliceView>,
    claims: Watched<ResourceClaim>,
    pods: Watched<Pod>,
    queue: WorkQueue<String>,
    evictions: Arc<Mutex<Evictions>>,
}

/// The evictions since the start of the controller.
#[derive(Default)]
struct Evictions {
    /// The number of evicted Pods by the UID of the rule.
    by_rule: HashMap<String, u64>,
    /// The UIDs of evicted Pods that are still there.
    ending: HashSet<String>,
}

impl RuleStatus {
    /// Starts to write the status of rules that are new or have changed.
    pub(super) fn start(
        context: &Context,
        rules: Watched<TaintRule>,
        slices: Watched<ResourceSliceView>,
        claims: Watched<ResourceClaim>,
        pods: Watched<Pod>,
    ) -> Self {
        let (queue, evictions) = (WorkQueue::default(), Arc::<Mutex<Evictions>>::default());
        let (add, counts) = (queue.clone(), evictions.clone());
        rules.on(move |change| {
            if is_new(change) {
                add.add(change.key.to_owned());
            } else if let (Some(old), None) = (change.old, change.new) {
                counts.lock().by_rule.remove(&old.metadata.uid);
            }
        });
        let counts = evictions.clone();
        pods.on(move |change| {
            if let (Some(old), None) = (change.old, change.new) {
                counts.lock().ending.remove(&old.metadata.uid);
            }
        });
        let waits = vec![synced(&rules), synced(&slices), synced(&claims), synced(&pods)];
        let status = Self { rules, slices, claims, pods, queue, evictions };
        let (state, queue) = ((context.clone(), status.clone()), &status.queue);
        context.run(queue, 1, waits, state, |(context, status), name| async move {
            status.reconcile(&context, &name).await
        });
        status
    }

    /// Updates the status of rules after the changes of Pods that may follow.
    pub(super) fn update_later(&self, rules: &[&TaintRule]) {
        rules.iter().for_each(|rule| self.queue.add_after(rule.metadata.name.clone(), PERIOD));
    }

    /// Counts the eviction of a Pod for the rules that caused it.
    pub(super) fn count_eviction(&self, rules: &[&TaintRule], pod: &ObjectMeta) {
        let mut evictions = self.evictions.lock();
        // A Pod that is gone already is not evicted again, and no change of it will remove its UID.
        let gone = self.pods.get(&pod.key()).is_none_or(|now| now.metadata.uid != pod.uid);
        if gone || evictions.ending.insert(pod.uid.clone()) {
            for rule in rules {
                *evictions.by_rule.entry(rule.metadata.uid.clone()).or_default() += 1;
            }
        }
    }

    async fn reconcile(&self, context: &Context, name: &str) -> Result<(), Error> {
        let Some(rule) = self.rules.get(name) else { return Ok(()) };
        let (generation, now) = (rule.metadata.generation, context.now().to_seconds());
        let old = condition(&rule.status.conditions, CONDITION)
            .filter(|old| old.observed_generation == Some(generation));
        if let Some(old) = old {
            if &*rule.spec.taint.effect == "None" {
                return Ok(());
            }
            let age = old.last_transition_time.map_or(PERIOD, |changed| now.since(changed));
            if age < PERIOD {
                self.queue.add_after(name.to_owned(), PERIOD - age);
                return Ok(());
            }
        }
        let progress = self.progress(context, &rule);
        let Outcome { status, reason, message } = progress.outcome(&rule.spec.taint.effect);
        if progress.pods > 0 && status == "True" {
            self.queue.add_after(name.to_owned(), PERIOD);
        }
        let is_same = |old: &Condition| {
            old.status == status
                && old.reason.as_deref() == Some(reason)
                && old.message.as_deref().unwrap_or_default() == message
        };
        if old.is_some_and(is_same) {
            return Ok(());
        }
        let resource = Resource::DEVICE_TAINT_RULES;
        let condition = json!({"type": CONDITION, "status": status, "reason": reason,
            "message": message, "observedGeneration": generation, "lastTransitionTime": now});
        let applied = json!({"apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": {"name": name, "uid": rule.metadata.uid},
            "status": {"conditions": [condition]}});
        let at = PatchTarget { namespace: "", name, subresource: "status" };
        let apply = PatchKind::Apply { manager: context.name, force: true };
        let written = context.client.patch::<Value>(&resource, at, apply, &applied).await;
        written.or_none().map(drop)
    }

    /// Counts the devices of a rule, and the Pods that it evicts, or would evict with the effect `NoExecute`.
    fn progress(&self, context: &Context, rule: &TaintRule) -> Progress {
        let evicted = self.evictions.lock().by_rule.get(&rule.metadata.uid).copied();
        let mut progress = Progress { evicted: evicted.unwrap_or(0), ..Progress::default() };
        if &*rule.spec.taint.effect == "NoSchedule" {
            return progress;
        }
        if &*rule.spec.taint.effect == "None" {
            // Only the message for this effect counts the devices of ResourceSlices.
            progress.published = self.published(rule);
        }
        let taint = DeviceTaintView { effect: "NoExecute".into(), ..rule.spec.taint.clone() };
        let (mut pods, now) = (BTreeSet::new(), context.now());
        for claim in self.claims.list() {
            let Some(allocation) = &claim.status.allocation else { continue };
            let concerned = allocation.devices.results.iter().filter(|d| rule.concerns(d));
            let concerned: Vec<&AllocatedDevice> = concerned.collect();
            progress.allocated += concerned.len();
            let taint = std::slice::from_ref(&taint);
            if concerned.iter().any(|device| end(device, taint, now).is_some()) {
                let users = active_pods(&claim, &self.pods).into_iter();
                pods.extend(
                    users.map(|pod| (pod.metadata.namespace.clone(), pod.metadata.name.clone())),
                );
            }
        }
        progress.pods = pods.len();
        let namespaces: BTreeSet<&String> = pods.iter().map(|(namespace, _)| namespace).collect();
        progress.namespaces = namespaces.len();
        progress
    }

    /// Returns the number of devices in the latest generation of their pools that the rule selects.
    fn published(&self, rule: &TaintRule) -> usize {
        let slices = self.slices.list();
        let mut latest: HashMap<String, i64> = HashMap::new();
        for slice in &slices {
            let (key, generation) = (key(slice), slice.spec.pool.generation);
            let most = latest.entry(key).or_insert(generation);
            *most = generation.max(*most);
        }
        let counting =
            slices.iter().filter(|s| latest.get(&key(s)) == Some(&s.spec.pool.generation));
        let selected = counting.map(|slice| {
            let (driver, pool) = (&slice.spec.driver, &slice.spec.pool.name);
            let devices = slice.spec.devices.iter();
            devices.filter(|device| rule.spec.concerns(driver, pool, &device.name)).count()
        });
        selected.sum()
    }
}

fn key(slice: &ResourceSliceView) -> String {
    pool(&slice.spec.driver, &slice.spec.pool.name)
}

/// The numbers of a rule's devices and Pods.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The selected devices in ResourceSlices; counted for the effect `None` only.
    published: usize,
    /// The selected devices in claims.
    allocated: usize,
    /// The Pods that wait for their eviction, or would be evicted.
    pods: usize,
    /// The namespaces of these Pods.
    namespaces: usize,
    /// The Pods that were evicted since the start of the controller.
    evicted: u64,
}

/// The contents of the condition.
struct Outcome {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Progress {
    /// Returns the condition's contents in upstream's words.
    fn outcome(self, effect: &str) -> Outcome {
        let namespaces = match self.namespaces {
            1 => "1 namespace".to_owned(),
            number => format!("{number} different namespaces"),
        };
        let (status, reason, mut message) = match effect {
            "NoExecute" if self.pods > 0 => {
                let pods = count(self.pods, "pod needs", "pods need");
                ("True", "PodsPendingEviction", format!("{pods} to be evicted in {namespaces}."))
            }
            "NoExecute" if self.evicted > 0 => ("False", "Completed", String::new()),
            "NoExecute" => ("False", "NotStarted", String::new()),
            "None" => {
                let published = count(self.published, "published device", "published devices");
                let allocated = count(self.allocated, "allocated device", "allocated devices");
                let pods = count(self.pods, "pod", "pods");
                let message = format!(
                    "{published} selected. {allocated} selected. {pods} would be evicted in {namespaces} if the \
                     effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule \
                     to trigger an update."
                );
                ("False", "NoEffect", message)
            }
            _ => {
                let message = "Eviction only happens for the NoExecute effect.";
                ("False", "OtherEffect", message.to_owned())
            }
        };
        if self.evicted > 0 {
            let evicted = if self.evicted == 1 { "pod" } else { "pods" };
            let gap = if message.is_empty() { "" } else { " " };
            message +=
                &format!("{gap}{} {evicted} evicted since starting the controller.", self.evicted);
        }
        Outcome { status, reason, message }
    }
}

fn count(number: usize, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_progress_in_upstreams_words() {
        let none = Progress::default();
        let pending = Progress { pods: 1, namespaces: 1, ..none };
        let more = Progress { pods: 3, namespaces: 2, evicted: 1, ..none };
        let dry = Progress { published: 1, allocated: 2, ..more };
        for (progress, effect, want) in [
            (none, "NoExecute", ("False", "NotStarted", "")),
            (
                pending,
                "NoExecute",
                ("True", "PodsPendingEviction", "1 pod needs to be evicted in 1 namespace."),
            ),
            (
                more,
                "NoExecute",
                (
                    "True",
                    "PodsPendingEviction",
                    "3 pods need to be evicted in 2 different namespaces. 1 pod evicted since starting the controller.",
                ),
            ),
            (
                Progress { evicted: 2, ..none },
                "NoExecute",
                ("False", "Completed", "2 pods evicted since starting the controller."),
            ),
            (
                none,
                "NoSchedule",
                ("False", "OtherEffect", "Eviction only happens for the NoExecute effect."),
            ),
            (
                Progress { evicted: 0, ..dry },
                "None",
                (
                    "False",
                    "NoEffect",
                    "1 published device selected. 2 allocated devices selected. 3 pods would be evicted in 2 different \
                     namespaces if the effect was NoExecute. This information will not be updated again. Recreate the \
                     DeviceTaintRule to trigger an update.",
                ),
            ),
        ] {
            let Outcome { status, reason, message } = progress.outcome(effect);
            assert_eq!((status, reason, &*message), want);
        }
    }
}

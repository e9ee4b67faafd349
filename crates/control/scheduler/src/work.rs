//! The scheduling loop: takes decisions from the core and carries them out.

use api_meta::Tree as _;
use std::{sync::Arc, time::Duration};

use client::{Client, DeleteOptions, Error, PatchKind, PatchTarget, Resource};
use events::{EventRecorder, ObjectRef};
use sched_core::{Answer, Consultation, Core, Decision, Failure, GroupOutcome, Pod};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    extenders::{CallError, Extenders},
    metrics::{Attempt, AttemptResult, SchedulerMetrics},
    profile::Profile,
    state::Shared,
};

pub(crate) type Decide = dyn Fn(&mut Core, u64) -> Option<Decision> + Send + Sync;

/// The next decision of the core.
struct Decided {
    decision: Option<Decision>,
    outcomes: Vec<GroupOutcome>,
    /// The time after a long decision in which informers can change the core's state.
    rest: Option<Duration>,
}

/// Carries out decisions.
#[derive(Clone)]
pub(crate) struct Worker {
    /// [`Core::next`], except in tests.
    pub(crate) decide: Arc<Decide>,
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
    pub(crate) shared: Arc<Shared>,
    pub(crate) extenders: Arc<Extenders>,
    pub(crate) profiles: Arc<[Profile]>,
    /// Limits the number of concurrent writes.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) tasks: rt::Tasks,
    pub(crate) metrics: SchedulerMetrics,
}

impl Worker {
    pub(crate) async fn run(&self) {
        let mut panics = rt::Backoff::new(Duration::from_millis(10), Duration::from_secs(10));
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
            let started = Instant::now();
            let decide = || self.decide();
            let Ok(decided) = rt::catch_sync("scheduler", "a decision", decide) else {
                drop(permit);
                tokio::time::sleep(panics.next(0.0)).await;
                continue;
            };
            let Decided { decision, outcomes, rest } = decided;
            panics.reset();
            let Some(decision) = decision else {
                drop(permit);
                self.wait().await;
                continue;
            };
            let scheduler = pod_of(&decision).scheduler_name.clone();
            let attempt = Attempt { started, scheduler };
            let worker = self.clone();
            let decision = match decision {
                Decision::Consult(question) => {
                    self.tasks.spawn("scheduler extenders", async move {
                        worker.consult(question, attempt).await;
                    });
                    continue;
                }
                decision => decision,
            };
            self.metrics.decided(&attempt);
            // Binding claims may take minutes, so it must not hold a permit.
            let waits = matches!(&decision, Decision::Bind { claims, devices, .. }
                if !claims.is_empty() || !devices.is_empty());
            let permit = (!waits).then_some(permit);
            self.tasks.spawn("scheduling write", async move {
                worker.write_groups(&outcomes).await;
                worker.write(decision, &attempt).await;
                drop(permit);
            });
            if let Some(rest) = rest {
                tokio::time::sleep(rest).await;
            }
        }
    }

    /// Takes the next decision from the core, and charges its processor time to the Pod's namespace.
    fn decide(&self) -> Decided {
        let mut core = self.shared.core();
        let began = rt::processor_time();
        let decision = (self.decide)(&mut core, self.shared.now());
        let used = rt::processor_time().saturating_sub(began);
        let outcomes = core.take_outcomes();
        let duration = u64::try_from(used.as_millis()).unwrap_or(u64::MAX);
        let now = self.shared.now();
        let is_long = decision.as_ref().is_some_and(|d| core.charge(pod_of(d), duration, now));
        Decided { decision, outcomes, rest: is_long.then_some(used / 10) }
    }

    /// Asks the extenders until there is a decision, and carries it out. The core has one question open at a time, and
    /// decides for other Pods meanwhile.
    async fn consult(&self, mut question: Consultation, attempt: Attempt) {
        loop {
            let asked = self.extenders.ask(&question);
            let asked = rt::catch("scheduler", &question.pod.id, asked).await;
            let answer = asked.unwrap_or_else(|_| Answer::Failed("the call panicked".to_owned()));
            let mut decision = None;
            let continued = rt::catch_sync("scheduler", "an answer", || {
                self.shared.update(|core, now| decision = core.answer(question.id, answer, now));
            });
            match decision.filter(|_| continued.is_ok()) {
                // The Pod is gone, or the core was rebuilt and tries the Pod again.
                None => return,
                Some(Decision::Consult(next)) => question = next,
                Some(decision) => {
                    self.metrics.decided(&attempt);
                    let Ok(_permit) = self.permits.clone().acquire_owned().await else { return };
                    return self.write(decision, &attempt).await;
                }
            }
        }
    }

    /// Carries out a decision. A panic counts as a failed write until the informer shows the result.
    async fn write(&self, decision: Decision, attempt: &Attempt) {
        let pod = pod_of(&decision).clone();
        let result = rt::catch("scheduler", &pod.id, self.carry_out(decision)).await;
        if result.is_err() {
            self.shared.update(|core, now| core.bind_failed(&pod.id, now));
        }
        self.metrics.ended(attempt, result.unwrap_or(AttemptResult::Error));
    }

    async fn wait(&self) {
        let next = self.shared.core().next_time();
        let changed = self.shared.changed.notified();
        match next {
            Some(at) => {
                let at = self.shared.start + Duration::from_millis(at);
                // A time in the past belongs to a Pod that cannot be handled now.
                let at = at.max(Instant::now() + Duration::from_millis(10));
                let _ = tokio::time::timeout_at(at, changed).await;
            }
            None => changed.await,
        }
    }

    async fn carry_out(&self, decision: Decision) -> AttemptResult {
        let (pod, node, claims, mut devices, tries) = match decision {
            Decision::Unschedulable(failure) => {
                let failed = failure.is_error;
                self.report_failure(failure).await;
                return if failed { AttemptResult::Error } else { AttemptResult::Unschedulable };
            }
            Decision::Bind { pod, node, evaluated, feasible, claims, devices, tries } => {
                tracing::debug!(pod = %pod.id, %node, evaluated, feasible, "binding");
                (pod, node, claims, devices, tries)
            }
            // A consultation ends before a decision is carried out.
            Decision::Consult(_) => return AttemptResult::Error,
        };
        // Binding volumes and devices may take long. The status names the node meanwhile.
        let waits = !claims.is_empty() || !devices.is_empty();
        if waits && pod.nominated_node.as_ref() != Some(&node) {
            self.patch_status(&pod, json!({"nominatedNodeName": node})).await;
        }
        let started = Instant::now();
        let bound = self.bind_claims(&pod, &node, &claims).await;
        if let Err(error) = bound {
            self.metrics.observe("PreBind", started, false, &pod.scheduler_name);
            return self.report_prebind_failure(&pod, "VolumeBinding", &error);
        }
        let bound = self.bind_devices(&pod, &mut devices).await;
        self.metrics.observe("PreBind", started, bound.is_ok(), &pod.scheduler_name);
        if let Err(error) = bound {
            self.release(&pod, &devices).await;
            return self.report_prebind_failure(&pod, "DynamicResources", &error);
        }
        let started = Instant::now();
        let bound = self.bind(&pod, &node).await;
        self.metrics.observe("Bind", started, bound, &pod.scheduler_name);
        if !bound {
            self.release(&pod, &devices).await;
            self.shared.update(|core, now| core.bind_failed(&pod.id, now));
            return AttemptResult::Error;
        }
        self.metrics.bound(tries, self.shared.now());
        AttemptResult::Scheduled
    }

    /// Reports a failed PreBind step of a Pod.
    fn report_prebind_failure(
        &self,
        pod: &Pod,
        plugin: &str,
        error: &dyn std::error::Error,
    ) -> AttemptResult {
        tracing::warn!(pod = %pod.id, plugin, %error, "PreBind failed; the Pod is retried");
        let message = format!("running PreBind plugin {plugin:?}: {error}");
        self.events.warning(object(pod), "FailedScheduling", message);
        self.shared.update(|core, now| core.bind_failed(&pod.id, now));
        AttemptResult::Error
    }

    /// Binds the Pod, by an extender if one does this, and reports whether that succeeded.
    async fn bind(&self, pod: &Pod, node: &str) -> bool {
        let id = &pod.id;
        let bound = match self.extenders.bind(pod, node).await {
            Some(bound) => bound.map_err(BindError::Extender),
            None => self.create_binding(pod, node).await.map_err(BindError::Api),
        };
        match &bound {
            Ok(()) => {
                let message = format!("Successfully assigned {id} to {node}");
                self.events.normal(object(pod), "Scheduled", message);
            }
            Err(error) => {
                tracing::warn!(pod = %id, node, %error, "binding refused");
                if !matches!(error, BindError::Api(error) if error.is_not_found()) {
                    self.events.warning(
                        object(pod),
                        "FailedScheduling",
                        format!("binding rejected: {error}"),
                    );
                }
            }
        }
        bound.is_ok()
    }

    async fn create_binding(&self, pod: &Pod, node: &str) -> Result<(), Error> {
        let id = &pod.id;
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": id.name, "namespace": id.namespace, "uid": id.uid},
            "target": {"kind": "Node", "name": node},
        });
        let (pods, subresource) = (&Resource::PODS, "binding");
        let (namespace, name) = (&id.namespace, &id.name);
        let created = self
            .client
            .create_subresource::<_, Value>(pods, namespace, name, subresource, &binding)
            .await;
        created.map(drop)
    }

    async fn report_failure(&self, failure: Failure) {
        let Failure { pod, message, nominated, deallocate, is_error } = failure;
        let reason = if is_error { "SchedulerError" } else { "Unschedulable" };
        tracing::debug!(pod = %pod.id, message, "no node");
        self.events.warning(object(&pod), "FailedScheduling", message.clone());
        let mut status = json!({});
        if !pod.has_condition(reason, &message) {
            status.put(
                &["conditions"],
                json!([{
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": reason,
                    "message": message,
                    "observedGeneration": pod.generation,
                    "lastProbeTime": null,
                    "lastTransitionTime": now(),
                }]),
            );
        }
        if let Some((node, victims)) = &nominated {
            self.metrics.preempted(victims.len());
            for victim in victims {
                self.evict(&pod, node, victim).await;
            }
            status.put(&["nominatedNodeName"], json!(node));
        } else if pod.nominated_node.is_some() {
            status.put(&["nominatedNodeName"], Value::Null);
        }
        if status.as_object().is_some_and(|fields| !fields.is_empty()) {
            self.patch_status(&pod, status).await;
        }
        // Last, because it requeues the Pod: the status of the next attempt must not be overwritten.
        if let Some((claim, uid)) = &deallocate {
            self.deallocate(&pod, claim, uid).await;
        }
    }

    /// Writes members of the Pod's status, unless the Pod was recreated under its name.
    pub(crate) async fn write_status(&self, pod: &Pod, status: Value) -> Result<(), Error> {
        let id = &pod.id;
        let at = PatchTarget { namespace: &id.namespace, name: &id.name, subresource: "status" };
        let patch = json!({"metadata": {"uid": id.uid}, "status": status});
        let (client, pods) = (&self.client, &Resource::PODS);
        client.patch::<Value>(pods, at, PatchKind::Strategic, &patch).await.map(drop)
    }

    async fn patch_status(&self, pod: &Pod, status: Value) {
        match self.write_status(pod, status).await {
            Ok(()) => {}
            // The Pod is deleted or was recreated under its name.
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => tracing::warn!(pod = %pod.id, %error, "could not write the Pod's status"),
        }
    }

    /// Evicts a less important Pod, with a condition and an Event that state the reason.
    async fn evict(&self, pod: &Pod, node: &str, victim: &Pod) {
        if victim.terminating {
            return;
        }
        let scheduler = &pod.scheduler_name;
        let condition = json!({"conditions": [{
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": format!("{scheduler}: preempting to accommodate a higher priority pod"),
            "observedGeneration": victim.generation,
            "lastTransitionTime": now(),
        }]});
        self.patch_status(victim, condition).await;
        let id = &victim.id;
        let options = DeleteOptions {
            preconditions: Some(client::Preconditions {
                uid: Some(id.uid.to_string()),
                resource_version: None,
            }),
            ..DeleteOptions::default()
        };
        match self.client.delete(&Resource::PODS, &id.namespace, &id.name, &options).await {
            Ok(()) => {
                let message = format!("Preempted by pod {} on node {node}", pod.id.uid);
                self.events.normal(object(victim), "Preempted", message);
            }
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => tracing::warn!(pod = %id, %error, "could not delete the preempted Pod"),
        }
    }
}

fn pod_of(decision: &Decision) -> &Arc<Pod> {
    match decision {
        Decision::Bind { pod, .. } => pod,
        Decision::Unschedulable(failure) => &failure.pod,
        Decision::Consult(question) => &question.pod,
    }
}

/// A Pod is not bound.
#[derive(Debug, thiserror::Error)]
enum BindError {
    #[error(transparent)]
    Api(Error),
    #[error(transparent)]
    Extender(CallError),
}

pub(crate) fn now() -> api_meta::Timestamp {
    api_meta::Timestamp::from(rt::now()).to_seconds()
}

fn object(pod: &Pod) -> ObjectRef {
    ObjectRef {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: pod.id.namespace.to_string(),
        name: pod.id.name.to_string(),
        uid: pod.id.uid.to_string(),
        resource_version: pod.resource_version.to_string(),
        field_path: String::new(),
    }
}

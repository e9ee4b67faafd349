//! The worker of one Pod: observes, plans, acts and reports in a loop until the Pod is gone. Read [`Worker::run`]
//! first.

mod error;
mod execute;
mod finish;
mod resized;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use kubelet_volumes::{MountedVolumes, Tokens, may_change};
use parking_lot::Mutex;
use pod_core::{
    Ending, Inputs, Memory, Observed, Phase, StatusInputs, Step, Timestamp, admit::Refusal,
    namespaced_name, resize::PodResources,
};
use tokio::{sync::watch, time::Instant};

use crate::{
    context::Context,
    features,
    node::capacity,
    pod_state::{Desired, Shared},
    probes::Prober,
    report::{self, Report},
    runtime,
};
use resized::Resized;

pub(crate) struct Worker {
    ctx: Arc<Context>,
    desired: watch::Receiver<Desired>,
    shared: Arc<Shared>,
    /// The Pod in the last pass.
    pod: Arc<Pod>,
    uid: String,
    memory: Memory,
    observed: Observed,
    report: Report,
    prober: Prober,
    tokens: Tokens,
    mounted: Option<MountedVolumes>,
    volumes_due: Instant,
    volume_failures: u32,
    hooks_run: Mutex<BTreeSet<String>>,
    /// Locked while the runtime creates and starts a container.
    start_lock: Arc<tokio::sync::Mutex<()>>,
    ending: Option<Ending>,
    /// `true` if no container of the Pod was ever created, so that its status has none.
    refused: bool,
    /// `true` if the Pod's devices and CPUs are allocated, or it was started by an earlier kubelet.
    admitted: bool,
    /// The deadline for the end of the last container.
    stop_by: Option<Instant>,
    tear_down_failures: u32,
    restored: bool,
    last_steps: Vec<Step>,
    /// The resources that running containers were resized to, by container ID.
    resized: BTreeMap<String, Resized>,
    /// The resources shared by all containers that the Pod's cgroup has; `None` if unknown.
    shared_resources: Option<ResourceRequirements>,
    resize_error: Option<String>,
}

/// The time of the next pass.
enum Next {
    Now,
    At(Option<Timestamp>),
    Done,
}

/// The delay before steps that changed nothing are repeated.
const PAUSE: Duration = Duration::from_secs(1);

impl Worker {
    pub(crate) fn new(
        ctx: Arc<Context>,
        desired: watch::Receiver<Desired>,
        shared: Arc<Shared>,
        refusal: Option<Refusal>,
    ) -> Self {
        let pod = desired.borrow().pod.clone();
        // A worker that panicked may have set a newer status than the API server has.
        let last_status = shared.status().clone();
        let status = last_status.or_else(|| pod.status.clone());
        let ending = match &refusal {
            Some(refusal) => Some(refusal_ending(refusal)),
            None => status.as_ref().and_then(before),
        };
        let resized = status.as_ref().map(Resized::of_status).unwrap_or_default();
        let shared_resources = status.as_ref().and_then(|status| status.resources.clone());
        // A Pod that an earlier kubelet rejected never had a container, either.
        let never_begun = ending.is_some() && status.is_none_or(|s| s.container_statuses.is_none());
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            report: Report::default(),
            prober: Prober::new(ctx.clone(), shared.clone()),
            memory: Memory::new(ctx.settings.restart_cap),
            ctx,
            pod,
            desired,
            shared,
            observed: Observed::default(),
            tokens: Tokens::default(),
            mounted: None,
            volumes_due: Instant::now(),
            volume_failures: 0,
            hooks_run: Mutex::default(),
            start_lock: Arc::default(),
            ending,
            refused: refusal.is_some() || never_begun,
            admitted: false,
            stop_by: None,
            tear_down_failures: 0,
            restored: false,
            last_steps: Vec::new(),
            resized,
            shared_resources,
            resize_error: None,
        }
    }

    pub(crate) async fn run(mut self) {
        self.ctx.startups.begin(&self.pod, self.ctx.now());
        loop {
            let before = self.pod.clone();
            let desired = self.desired.borrow_and_update().clone();
            let (began, is_new) = (Instant::now(), self.observed.containers.is_empty());
            self.pod = desired.pod.clone();
            let visible = |pod: &Pod| {
                let meta = &pod.metadata;
                (meta.labels.clone(), meta.annotations.clone(), PodResources::of(pod))
            };
            let has_changed =
                !Arc::ptr_eq(&before, &self.pod) && visible(&before) != visible(&self.pod);
            if has_changed || self.shared.take_stale() {
                // Volumes may contain the changed fields or objects.
                self.volumes_due = Instant::now();
            }
            let span = self.span(&desired);
            let next = span.within(self.pass(&desired)).await;
            drop(span);
            self.ctx.metrics.synced(if is_new { "create" } else { "sync" }, began.elapsed());
            self.ctx.startups.observe(&self.pod, &self.observed, self.ctx.now());
            if desired.must_end() || self.ending.is_some() {
                self.ctx.startups.forget(&self.uid);
            }
            match next {
                Next::Done => return,
                Next::Now => {}
                Next::At(at) => self.wait(at).await,
            }
        }
    }

    /// Observes the Pod, and runs one pass.
    async fn pass(&mut self, desired: &Desired) -> Next {
        let ending = desired.must_end() || self.ending.is_some();
        match runtime::observe(&self.ctx, &self.uid, &self.observed, ending).await {
            Ok(observed) => self.take(observed),
            Err(error) => {
                tracing::warn!(pod = %namespaced_name(&desired.pod), %error, "observe a Pod");
                return Next::At(Some(pod_core::after(self.ctx.now(), PAUSE)));
            }
        }
        *self.shared.observed() = self.observed.clone();
        if let Some((ending, _)) = desired.end.as_ref().filter(|_| self.ending.is_none()) {
            self.ending = Some(ending.clone());
        }
        if desired.stop.is_some() || self.ending.is_some() {
            self.prober.stop();
            Box::pin(self.finish(desired)).await
        } else if !self.admit(&desired.pod).await {
            Next::Now
        } else {
            self.prober.follow(&desired.pod, &self.observed);
            Box::pin(self.advance(desired)).await
        }
    }

    /// Starts the span of a pass, with upstream's name and attributes.
    fn span(&self, desired: &Desired) -> otlp::Span {
        let is_ending = desired.stop.is_some() || self.ending.is_some();
        let name = if is_ending { "syncTerminatingPod" } else { "syncPod" };
        let mut span = self.ctx.tracer.root_span(name);
        if span.is_recording() {
            let meta = &desired.pod.metadata;
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            let is_new = self.observed.containers.is_empty();
            span.set("k8s.pod.uid", self.uid.as_str());
            span.set("k8s.pod", namespaced_name(&desired.pod).as_str());
            span.set("k8s.pod.name", text(&meta.name).as_str());
            span.set("k8s.pod.update_type", if is_new { "create" } else { "sync" });
            span.set("k8s.namespace.name", text(&meta.namespace).as_str());
        }
        span
    }

    /// Stores the observed state, corrected by resizes since the containers were created.
    fn take(&mut self, observed: Observed) {
        self.observed = observed;
        let containers = &mut self.observed.containers;
        self.resized.retain(|id, _| containers.iter().any(|c| c.id == *id));
        for container in containers {
            if let Some(resized) = self.resized.get(&container.id) {
                resized.correct(container);
            }
        }
        self.observed.shared.clone_from(&self.shared_resources);
    }

    /// Allocates the Pod's devices and CPUs before anything else. Returns `false` if the Pod must end.
    async fn admit(&mut self, pod: &Pod) -> bool {
        let has_started = |status: PodStatus| status.start_time.is_some();
        if self.admitted {
            return true;
        }
        if !self.observed.containers.is_empty()
            || self.ctx.mirrors.api_status(pod).is_some_and(has_started)
        {
            self.admitted = true;
            self.ctx.placement.adopt(pod).await;
            return true;
        }
        let mut stop = self.desired.clone();
        let admission = async {
            features::admit(&self.ctx, pod).await?;
            self.ctx.placement.admit(pod).await
        };
        let done = tokio::select! {
            done = admission => done,
            _ = stop.wait_for(Desired::must_end) => return false,
        };
        match done {
            Ok(()) => self.admitted = true,
            Err(refusal) => {
                self.ctx.events.warn(pod, refusal.reason.clone(), refusal.message.clone());
                (self.ending, self.refused) = (Some(refusal_ending(&refusal)), true);
            }
        }
        self.admitted
    }

    /// Waits for a change, for the time `at`, or for the next periodic sync.
    async fn wait(&mut self, at: Option<Timestamp>) {
        let now = self.ctx.now();
        let wait = at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        // Random, so that a node's Pods do not all wake at the same time.
        let regular = self.ctx.settings.sync_frequency.mul_f64(1.0 + rt::random::<f64>() / 4.0);
        tokio::select! {
            _ = self.desired.changed() => {}
            () = self.shared.wake.notified() => {}
            () = tokio::time::sleep(wait.map_or(regular, |w| w.min(regular))) => {}
        }
    }

    /// Runs one pass of a Pod that must run.
    async fn advance(&mut self, desired: &Desired) -> Next {
        let pod = &desired.pod;
        self.memory.begin_pass();
        if !self.restored
            && let Some(status) = self.ctx.mirrors.api_status(pod)
        {
            self.prober.restore(&status);
            self.restored = true;
        }
        // The API server may not have the kubelet's last status yet.
        let pod_with_status = self.with_status(pod);
        let verdicts = self.prober.verdicts();
        let inputs = Inputs {
            pod: &pod_with_status,
            observed: &self.observed,
            memory: &self.memory,
            verdicts: &verdicts,
            now: self.ctx.now(),
        };
        let plan = pod_core::plan(&inputs);
        if let Some(ending) = plan.ending {
            if let (Some("DeadlineExceeded"), Some(text)) =
                (ending.reason.as_deref(), &ending.message)
            {
                self.ctx.events.normal(pod, "DeadlineExceeded", text.clone());
            }
            self.ending = Some(ending);
            return Next::Now;
        }
        let reported = self.report_status(pod, false).await;
        let mut again = plan.again;
        if !reported {
            again = Some(earliest(again, pod_core::after(self.ctx.now(), PAUSE)));
        }
        let starts =
            plan.steps.iter().any(|s| matches!(s, Step::Start { .. } | Step::CreateSandbox { .. }));
        if (starts && self.mounted.is_none() || may_change(pod))
            && Instant::now() >= self.volumes_due
        {
            self.refresh_volumes(pod).await;
        }
        if may_change(pod) || self.mounted.is_none() && starts {
            let due = self.volumes_due.saturating_duration_since(Instant::now());
            again = Some(earliest(again, pod_core::after(self.ctx.now(), due)));
        }
        if plan.steps.is_empty() {
            self.last_steps.clear();
            return Next::At(again);
        }
        let repeated = self.last_steps == plan.steps;
        self.last_steps.clone_from(&plan.steps);
        let (mut stop, start_lock) = (self.desired.clone(), self.start_lock.clone());
        // A container whose start has begun runs before it is stopped, so that it ends with its own exit code.
        let must_end = async {
            let _ = stop.wait_for(Desired::must_end).await;
            let _started = start_lock.lock().await;
        };
        tokio::select! {
            () = self.execute(&pod_with_status, plan.steps) => {}
            () = must_end => return Next::Now,
        }
        if repeated {
            Next::At(Some(earliest(again, pod_core::after(self.ctx.now(), PAUSE))))
        } else {
            Next::Now
        }
    }

    fn with_status(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        if let Some(mut status) = self.report.last().cloned() {
            // These fields belong to other writers, which may have changed them since.
            if let Some(api_status) = pod.status.take() {
                status.resource_claim_statuses = api_status.resource_claim_statuses;
                status.extended_resource_claim_status = api_status.extended_resource_claim_status;
            }
            pod.status = Some(status);
        }
        pod
    }

    async fn refresh_volumes(&mut self, pod: &Arc<Pod>) {
        let ips = pod_core::pod_ips(pod, &self.observed, &self.ctx.settings.node_ips);
        self.ctx.objects.follow(&self.uid, self.shared.clone(), Some(pod));
        let node = || capacity::node_facts(&self.ctx, &ips);
        let mut stop = self.desired.clone();
        let done = tokio::select! {
            done = self.ctx.volumes.mount(pod, &node, &self.tokens) => done,
            // A running mount continues, and the Pod's end waits for it.
            _ = stop.wait_for(Desired::must_end) => return,
        };
        match done {
            Ok(mounted) => {
                self.mounted = Some(mounted);
                self.volume_failures = 0;
                self.volumes_due = Instant::now() + self.ctx.settings.sync_frequency;
                if let Some(renew) = self.tokens.renew() {
                    let left = Duration::try_from(renew.duration_since(self.ctx.now()))
                        .unwrap_or_default();
                    self.volumes_due = self.volumes_due.min(Instant::now() + left.max(PAUSE));
                }
                if let Some(due) = self.ctx.volumes.certificates.due(&self.uid) {
                    let left = due.since(self.ctx.clock.now().into());
                    self.volumes_due = self.volumes_due.min(Instant::now() + left.max(PAUSE));
                }
            }
            Err(error) => {
                self.ctx.events.warn(pod, error.reason(), error.to_string());
                let wait = Duration::from_millis(500) * (1 << self.volume_failures.min(8));
                self.volume_failures += 1;
                self.volumes_due = Instant::now() + wait;
            }
        }
    }

    /// Reports the Pod's status. Returns `true` unless the report must be retried.
    async fn report_status(&mut self, pod: &Pod, stopping: bool) -> bool {
        if stopping || self.ending.is_some() {
            // The scheduler may send another Pod as soon as it sees the status.
            self.ctx.placement.mark_ending(&self.uid);
        }
        let verdicts = self.prober.verdicts();
        let previous = self.report.previous(&self.ctx, pod);
        if let Some(ending) = self.ending.as_ref().filter(|_| self.refused) {
            let status = pod_core::refused_status(pod, ending, self.ctx.now());
            *self.shared.status() = Some(status.clone());
            return self.report.send(&self.ctx, pod, status).await;
        }
        let mut status = pod_core::status(&StatusInputs {
            pod,
            observed: &self.observed,
            memory: &self.memory,
            verdicts: &verdicts,
            now: self.ctx.now(),
            previous: &previous,
            ending: self.ending.as_ref(),
            stopping,
            host_ips: &self.ctx.settings.node_ips,
            runtime: &self.ctx.runtime_name,
            pending: self.desired.borrow().pending.as_ref(),
            resize_error: self.resize_error.as_deref(),
        });
        self.ctx.devices.describe(&self.uid, &mut status);
        self.ctx.claims.describe(pod, &mut status);
        report::record_back_offs(&self.ctx, pod, &previous, &status);
        let before = self.shared.status().clone();
        self.ctx.metrics.terminated(before.as_ref().unwrap_or(&previous), &status);
        *self.shared.status() = Some(status.clone());
        self.report.send(&self.ctx, pod, status).await
    }
}

/// Returns the final state of a Pod that was rejected.
fn refusal_ending(refusal: &Refusal) -> Ending {
    Ending {
        phase: Phase::Failed,
        reason: Some(refusal.reason.clone()),
        message: Some(format!("Pod was rejected: {}", refusal.message)),
        disrupted: false,
    }
}

/// Returns the final state that an earlier kubelet reported. Such a Pod is not started again.
fn before(status: &PodStatus) -> Option<Ending> {
    let phase = match status.phase.as_deref() {
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        _ => return None,
    };
    Some(Ending {
        phase,
        reason: status.reason.clone(),
        message: status.message.clone(),
        disrupted: false,
    })
}

fn earliest(earlier: Option<Timestamp>, at: Timestamp) -> Timestamp {
    earlier.map_or(at, |earlier| earlier.min(at))
}

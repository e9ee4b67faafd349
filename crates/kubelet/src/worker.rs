//! One Pod's worker: it observes, plans, acts and reports, until the Pod is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use pod_core::{
    Ending, Inputs, Memory, Observed, Phase, StatusInputs, Step, Timestamp, Why,
    admit::Refusal,
    members, namespaced_name,
    resize::{self, Pending},
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    context::Context,
    features,
    probes::Prober,
    report::{self, Report},
    runtime, steps,
    volumes::{self, Mounted, Tokens},
};

/// What is wanted of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Desired {
    pub(crate) pod: Arc<Pod>,
    pub(crate) stop: Option<Stop>,
    /// Why the Pod, which is here as it was given resources, has not been given all that it asks for.
    pub(crate) pending: Option<Pending>,
    /// How the node ends the Pod, and how long that may take.
    pub(crate) end: Option<(Ending, Duration)>,
}

impl Desired {
    pub(crate) fn new(pod: Arc<Pod>, stop: Option<Stop>) -> Self {
        Self { pod, stop, pending: None, end: None }
    }

    fn is_to_end(&self) -> bool {
        self.stop.is_some() || self.end.is_some()
    }

    /// How long the Pod's containers have to end.
    fn grace(&self) -> Duration {
        let own = pod_core::grace_period(&self.pod);
        self.end.as_ref().map_or(own, |(_, grace)| own.min(*grace))
    }
}

/// Why a Pod is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The API asks for it, and waits until the kubelet says that it is done.
    Deleted,
    /// It is in no source any more.
    Gone,
}

/// What others may see and set of a worker.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) wake: Notify,
    pub(crate) status: Mutex<Option<PodStatus>>,
    pub(crate) observed: Mutex<Observed>,
    stale: AtomicBool,
}

impl Shared {
    /// What the Pod's volumes show has changed.
    pub(crate) fn volumes_are_stale(&self) {
        self.stale.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    pub(crate) fn take_stale(&self) -> bool {
        self.stale.swap(false, Ordering::Relaxed)
    }
}

pub(crate) struct Worker {
    ctx: Arc<Context>,
    desired: watch::Receiver<Desired>,
    shared: Arc<Shared>,
    /// As it was wanted when last looked at.
    pod: Arc<Pod>,
    uid: String,
    memory: Memory,
    observed: Observed,
    report: Report,
    prober: Prober,
    tokens: Tokens,
    mounted: Option<Mounted>,
    volumes_due: Instant,
    volume_failures: u32,
    hooked: Mutex<BTreeSet<String>>,
    ending: Option<Ending>,
    /// Nothing was ever made of the Pod, so that there is nothing to say of its containers.
    refused: bool,
    /// Whether the Pod has the devices and CPUs that it asks for, or was begun before this kubelet.
    admitted: bool,
    /// When the last container is to have ended.
    stop_by: Option<Instant>,
    torn_down: bool,
    tear_down_failures: u32,
    carried_on: bool,
    last_steps: Vec<Step>,
    /// What running containers were given after they had been created, by their ids.
    resized: BTreeMap<String, Option<ResourceRequirements>>,
    resize_error: Option<String>,
}

/// When to look again.
enum Next {
    Now,
    At(Option<Timestamp>),
    Done,
}

/// A step that changed nothing is not repeated at once.
const PAUSE: Duration = Duration::from_secs(1);

impl Worker {
    pub(crate) fn new(
        ctx: Arc<Context>,
        desired: watch::Receiver<Desired>,
        shared: Arc<Shared>,
        refusal: Option<Refusal>,
    ) -> Self {
        let pod = desired.borrow().pod.clone();
        // A worker before this one may have said more than the API has.
        let told = shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let status = told.or_else(|| pod.status.clone());
        let ending = match &refusal {
            Some(refusal) => Some(rejected(refusal)),
            None => status.as_ref().and_then(before),
        };
        // Neither has one that a kubelet before this one refused ever had a container.
        let never_begun = ending.is_some() && status.is_none_or(|s| s.container_statuses.is_none());
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            report: Report::default(),
            prober: Prober::new(ctx.clone(), shared.clone()),
            ctx,
            pod,
            desired,
            shared,
            memory: Memory::default(),
            observed: Observed::default(),
            tokens: Tokens::default(),
            mounted: None,
            volumes_due: Instant::now(),
            volume_failures: 0,
            hooked: Mutex::default(),
            ending,
            refused: refusal.is_some() || never_begun,
            admitted: false,
            stop_by: None,
            torn_down: false,
            tear_down_failures: 0,
            carried_on: false,
            last_steps: Vec::new(),
            resized: BTreeMap::new(),
            resize_error: None,
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            let before = self.pod.clone();
            let desired = self.desired.borrow_and_update().clone();
            self.pod = desired.pod.clone();
            let shown = |pod: &Pod| {
                let meta = &pod.metadata;
                (meta.labels.clone(), meta.annotations.clone(), resize::asked(pod))
            };
            if shown(&before) != shown(&self.pod) || self.shared.take_stale() {
                // Volumes may show them to the containers.
                self.volumes_due = Instant::now();
            }
            let ending = desired.is_to_end() || self.ending.is_some();
            match runtime::observe(&self.ctx, &self.uid, &self.observed, ending).await {
                Ok(observed) => self.take(observed),
                Err(error) => {
                    tracing::warn!(pod = %namespaced_name(&desired.pod), %error, "observe a Pod");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            }
            *self.shared.observed.lock().unwrap_or_else(PoisonError::into_inner) =
                self.observed.clone();
            if let Some((ending, _)) = desired.end.as_ref().filter(|_| self.ending.is_none()) {
                self.ending = Some(ending.clone());
            }
            let next = if desired.stop.is_some() || self.ending.is_some() {
                self.prober.stop();
                Box::pin(self.finish(&desired)).await
            } else if !self.admit(&desired.pod).await {
                Next::Now
            } else {
                self.prober.follow(&desired.pod, &self.observed);
                Box::pin(self.advance(&desired)).await
            };
            match next {
                Next::Done => return,
                Next::Now => {}
                Next::At(at) => self.wait(at).await,
            }
        }
    }

    /// Takes what the runtime said, and what it was told since it created the containers.
    fn take(&mut self, observed: Observed) {
        self.observed = observed;
        let containers = &mut self.observed.containers;
        self.resized.retain(|id, _| containers.iter().any(|c| c.id == *id));
        for container in containers {
            if let Some(resources) = self.resized.get(&container.id) {
                container.resources = Some(resources.clone().unwrap_or_default());
            }
        }
    }

    /// Gives the Pod its devices and CPUs before anything else is done for it. Returns `false` if it is to end.
    async fn admit(&mut self, pod: &Pod) -> bool {
        let begun = |status: PodStatus| status.start_time.is_some();
        if self.admitted {
            return true;
        }
        if !self.observed.containers.is_empty() || self.ctx.mirrors.reported(pod).is_some_and(begun)
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
            _ = stop.wait_for(Desired::is_to_end) => return false,
        };
        match done {
            Ok(()) => self.admitted = true,
            Err(refusal) => {
                self.ctx.events.warn(pod, refusal.reason.clone(), refusal.message.clone());
                (self.ending, self.refused) = (Some(rejected(&refusal)), true);
            }
        }
        self.admitted
    }

    /// Waits for news, for a time, or for the next regular look.
    async fn wait(&mut self, at: Option<Timestamp>) {
        let now = self.ctx.now();
        let wait = at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        // Spread over time, so that a node's Pods do not all wake at once.
        let regular = self.ctx.settings.sync_frequency.mul_f64(1.0 + rt::random::<f64>() / 4.0);
        tokio::select! {
            _ = self.desired.changed() => {}
            () = self.shared.wake.notified() => {}
            () = tokio::time::sleep(wait.map_or(regular, |w| w.min(regular))) => {}
        }
    }

    /// One look at a Pod that is to run.
    async fn advance(&mut self, desired: &Desired) -> Next {
        let pod = &desired.pod;
        self.memory.begin_pass();
        if !self.carried_on
            && let Some(status) = self.ctx.mirrors.reported(pod)
        {
            self.prober.carry_on(&status);
            self.carried_on = true;
        }
        // The start time is the kubelet's own report before it is the API's.
        let known = self.with_status(pod);
        let verdicts = self.prober.verdicts();
        let inputs = Inputs {
            pod: &known,
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
        let reported = self.tell(pod, false).await;
        let mut again = plan.again;
        if !reported {
            again = Some(sooner(again, pod_core::after(self.ctx.now(), PAUSE)));
        }
        let starts =
            plan.steps.iter().any(|s| matches!(s, Step::Start { .. } | Step::CreateSandbox { .. }));
        if (starts && self.mounted.is_none() || volumes::may_change(pod))
            && Instant::now() >= self.volumes_due
        {
            self.refresh_volumes(pod).await;
        }
        if volumes::may_change(pod) || self.mounted.is_none() && starts {
            let due = self.volumes_due.saturating_duration_since(Instant::now());
            again = Some(sooner(again, pod_core::after(self.ctx.now(), due)));
        }
        if plan.steps.is_empty() {
            self.last_steps.clear();
            return Next::At(again);
        }
        let repeated = self.last_steps == plan.steps;
        self.last_steps.clone_from(&plan.steps);
        let mut stop = self.desired.clone();
        tokio::select! {
            () = self.act(&known, plan.steps) => {}
            _ = stop.wait_for(Desired::is_to_end) => return Next::Now,
        }
        if repeated {
            Next::At(Some(sooner(again, pod_core::after(self.ctx.now(), PAUSE))))
        } else {
            Next::Now
        }
    }

    fn with_status(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        if let Some(mut status) = self.report.last().cloned() {
            // Which claims were made for the Pod is for others to say, and they may have said it since.
            if let Some(shown) = pod.status.take() {
                status.resource_claim_statuses = shown.resource_claim_statuses;
                status.extended_resource_claim_status = shown.extended_resource_claim_status;
            }
            pod.status = Some(status);
        }
        pod
    }

    async fn refresh_volumes(&mut self, pod: &Arc<Pod>) {
        let host_network = pod.spec.as_ref().and_then(|s| s.host_network) == Some(true);
        let ips = match self.observed.ready_sandbox() {
            Some(_) if host_network => self.ctx.settings.node_ips.clone(),
            Some(sandbox) => sandbox.ips.clone(),
            None => Vec::new(),
        };
        self.ctx.objects.follow(&self.uid, &self.shared, Some(pod));
        let mut stop = self.desired.clone();
        let done = tokio::select! {
            done = volumes::set_up(&self.ctx, pod, &ips, &self.tokens) => done,
            // What has begun goes on, and the Pod's end waits for it.
            _ = stop.wait_for(Desired::is_to_end) => return,
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
            }
            Err(error) => {
                self.ctx.events.warn(pod, error.reason(), error.to_string());
                let wait = Duration::from_millis(500) * (1 << self.volume_failures.min(8));
                self.volume_failures += 1;
                self.volumes_due = Instant::now() + wait;
            }
        }
    }

    /// Takes a plan's steps in order.
    async fn act(&mut self, pod: &Pod, steps: Vec<Step>) {
        for step in steps {
            let done = match step {
                Step::StopSandbox { id } => {
                    steps::stop_sandbox(&self.ctx, &id).await.map_err(|e| e.to_string())
                }
                Step::CreateSandbox { attempt } => self.create_sandbox(pod, attempt).await,
                Step::Kill { id, name, why } => {
                    self.kill(pod, &id, &name, why).await;
                    Ok(())
                }
                Step::Resize { id, name } => self.resize(pod, &id, &name).await,
                Step::Remove { id } => {
                    self.ctx.cri.remove_container(&id).await.map_err(|e| e.to_string())
                }
                Step::RemoveSandbox { id } => {
                    self.ctx.cri.remove_pod_sandbox(&id).await.map_err(|e| e.to_string())
                }
                Step::Start { name, sandbox, attempt, exited, .. } => {
                    self.start(pod, &name, &sandbox, attempt, exited).await;
                    Ok(())
                }
            };
            if let Err(message) = done {
                tracing::warn!(pod = %namespaced_name(pod), message, "a step failed");
                return;
            }
        }
    }

    async fn create_sandbox(&mut self, pod: &Pod, attempt: u32) -> Result<(), String> {
        if self.mounted.is_none() {
            return Ok(());
        }
        if let Err(error) = self.prepare_claims(pod).await {
            self.memory.sandbox_failed(self.ctx.now());
            return Err(error);
        }
        if attempt > 0 {
            let text = "Pod sandbox changed, it will be killed and re-created.".to_owned();
            self.ctx.events.normal(pod, "SandboxChanged", text);
        }
        match Box::pin(steps::create_sandbox(&self.ctx, pod, attempt)).await {
            Ok(_) => {
                self.memory.sandbox_made();
                Ok(())
            }
            Err(error) => {
                self.memory.sandbox_failed(self.ctx.now());
                self.ctx.events.warn(pod, "FailedCreatePodSandBox", error.to_string());
                Err(error.to_string())
            }
        }
    }

    /// Has drivers make ready what the Pod's claims are for, before anything of the Pod is begun.
    async fn prepare_claims(&self, pod: &Pod) -> Result<(), String> {
        let done = self.ctx.claims.prepare(self.ctx.client.as_ref(), pod).await;
        done.map_err(|error| {
            let text =
                format!("Failed to prepare dynamic resources: prepare dynamic resources: {error}");
            self.ctx.events.warn(pod, "FailedPrepareDynamicResources", text.clone());
            text
        })
    }

    /// Has drivers take back what they made ready for the Pod. Returns whether there is nothing left.
    async fn take_back_claims(&mut self, pod: &Pod) -> bool {
        let done = self.ctx.claims.unprepare(&self.uid).await;
        let Err(error) = &done else { return true };
        self.tear_down_failures += 1;
        let text = format!("Failed to unprepare dynamic resources: {error}");
        tracing::warn!(pod = %namespaced_name(pod), text, "take back a Pod's claims");
        self.ctx.events.warn(pod, "FailedUnprepareDynamicResources", text);
        false
    }

    async fn start(
        &mut self,
        pod: &Pod,
        name: &str,
        sandbox: &str,
        attempt: u32,
        exited: Option<Timestamp>,
    ) {
        let Some(mounted) = self.mounted.clone() else { return };
        let members = members(pod);
        let Some(member) = members.iter().find(|m| m.container.name == name) else { return };
        if exited.is_some()
            && let Err(error) = steps::follow_resources(&self.ctx, pod, &self.observed)
        {
            tracing::warn!(pod = %namespaced_name(pod), %error, "set a Pod's limits anew");
        }
        // One whose claims were lost with the kubelet's files has none of their devices.
        if !self.ctx.claims.has_all(pod)
            && let Err(message) = self.prepare_claims(pod).await
        {
            let reason = "CreateContainerConfigError";
            return self.memory.start_failed(name, reason, message, self.ctx.now());
        }
        let start =
            steps::start(&self.ctx, pod, member, (sandbox, attempt), &self.observed, &mounted);
        let started = Box::pin(start).await;
        // An image that cannot be had is no restart: it has a back-off of its own.
        if let Some(exited) =
            exited.filter(|_| started.as_ref().map_or_else(|e| !e.of_image, |()| true))
        {
            self.memory.restarted(name, exited, self.ctx.now());
        }
        match started {
            Ok(()) => self.memory.started(name),
            Err(error) if error.of_image => {
                self.memory.pull_failed(name, error.reason, error.message, self.ctx.now());
            }
            Err(error) => {
                self.memory.start_failed(name, error.reason, error.message, self.ctx.now())
            }
        }
    }

    async fn resize(&mut self, pod: &Pod, id: &str, name: &str) -> Result<(), String> {
        let members = members(pod);
        let Some(member) = members.iter().find(|m| m.container.name == name) else { return Ok(()) };
        let done = steps::resize(&self.ctx, pod, member, id, &self.observed).await;
        self.resize_error = done.as_ref().err().map(ToString::to_string);
        done.map_err(|e| e.to_string())?;
        self.resized.insert(id.to_owned(), member.container.resources.clone());
        let observed = self.observed.clone();
        self.take(observed);
        Ok(())
    }

    async fn kill(&self, pod: &Pod, id: &str, name: &str, why: Why) {
        let members = members(pod);
        let Some(member) = members.iter().find(|m| m.container.name == name) else { return };
        let mut grace = pod_core::grace_period(pod);
        let own = |probe: &Option<k8s_openapi::api::core::v1::Probe>| {
            probe
                .as_ref()
                .and_then(|p| p.termination_grace_period_seconds)
                .map(|s| Duration::from_secs(s.max(0).unsigned_abs()))
        };
        let text = match why {
            Why::LivenessFailed => {
                grace = own(&member.container.liveness_probe).unwrap_or(grace);
                format!("Container {name} failed liveness probe, will be restarted")
            }
            Why::StartupFailed => {
                grace = own(&member.container.startup_probe).unwrap_or(grace);
                format!("Container {name} failed startup probe, will be restarted")
            }
            Why::SpecChanged => format!("Container {name} definition changed, will be restarted"),
            Why::Resized => format!("Container {name} resize requires restart"),
            Why::NotNeeded | Why::SandboxLost => String::new(),
        };
        steps::kill(&self.ctx, pod, member, id, &text, grace, true).await;
    }

    /// Reports the Pod's status; returns whether the API server has it, or need not have it.
    async fn tell(&mut self, pod: &Pod, stopping: bool) -> bool {
        if stopping || self.ending.is_some() {
            // The scheduler may send another Pod as soon as it has heard.
            self.ctx.placement.ending(&self.uid);
        }
        let verdicts = self.prober.verdicts();
        let previous = self.report.previous(&self.ctx, pod);
        if let Some(ending) = self.ending.as_ref().filter(|_| self.refused) {
            let status = pod_core::refused(pod, ending, self.ctx.now());
            *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(status.clone());
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
        report::tell_back_offs(&self.ctx, pod, &previous, &status);
        *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status.clone());
        self.report.send(&self.ctx, pod, status).await
    }

    /// One look at a Pod that is to end, or has.
    async fn finish(&mut self, desired: &Desired) -> Next {
        let pod = &desired.pod;
        let grace = desired.grace();
        if self.observed.running().next().is_some() {
            self.tell(pod, true).await;
            let known = self.with_status(pod);
            let by = Instant::now() + grace.min(rt::FAR);
            let by = self.stop_by.map_or(by, |earlier| earlier.min(by));
            self.stop_by = Some(by);
            let left = by.saturating_duration_since(Instant::now());
            let mut change = self.desired.clone();
            tokio::select! {
                () = steps::stop_all(&self.ctx, &known, &self.observed, left, &self.hooked) => {}
                // Someone has less patience: begin again with what runs still.
                _ = change.wait_for(|now| now.grace() < grace) => {}
            }
            return Next::Now;
        }
        let standing: Vec<String> =
            self.observed.sandboxes.iter().filter(|s| s.ready).map(|s| s.id.clone()).collect();
        for id in &standing {
            if let Err(error) = steps::stop_sandbox(&self.ctx, id).await {
                tracing::warn!(pod = %namespaced_name(pod), %error, "stop a sandbox");
                return Next::At(Some(pod_core::after(self.ctx.now(), PAUSE)));
            }
        }
        if !standing.is_empty() {
            return Next::Now;
        }
        // Others are given the devices as soon as they have heard that the Pod has ended.
        if !self.take_back_claims(pod).await {
            return self.later();
        }
        // A Pod that no source names ends all the same: it may be the API server itself, whose successor waits for that.
        let told = self.tell(pod, true).await || desired.stop == Some(Stop::Gone);
        if !self.tear_down(pod).await || !told {
            return self.later();
        }
        match desired.stop {
            None => Next::At(None),
            Some(stop) => self.remove(pod, stop).await,
        }
    }

    /// When to try again to give back what the Pod had: a driver that is away may be so for long.
    fn later(&self) -> Next {
        let wait = PAUSE * (1 << self.tear_down_failures.min(5));
        Next::At(Some(pod_core::after(self.ctx.now(), wait)))
    }

    /// Gives back what the Pod had, its logs and last words apart.
    async fn tear_down(&mut self, pod: &Pod) -> bool {
        if self.torn_down {
            return true;
        }
        self.ctx.objects.follow(&self.uid, &self.shared, None);
        let volumes = volumes::tear_down(&self.ctx, &self.uid).await.map_err(|e| e.to_string());
        let group = steps::remove_group(&self.ctx, &self.uid).map_err(|e| e.to_string());
        match volumes.and(group) {
            Ok(()) => {
                self.ctx.placement.release(&self.uid).await;
                self.torn_down = true;
            }
            Err(message) => {
                self.tear_down_failures += 1;
                tracing::warn!(pod = %namespaced_name(pod), message, "give back what a Pod had");
                self.ctx.events.warn(pod, "FailedUnMount", message);
            }
        }
        self.torn_down
    }

    /// Removes the last traces, then tells the API that the Pod is gone.
    async fn remove(&mut self, pod: &Pod, stop: Stop) -> Next {
        let later = Next::At(Some(pod_core::after(self.ctx.now(), PAUSE)));
        for container in &self.observed.containers {
            if self.ctx.cri.remove_container(&container.id).await.is_err_and(|e| !e.is_not_found())
            {
                return later;
            }
        }
        for sandbox in &self.observed.sandboxes {
            if self.ctx.cri.remove_pod_sandbox(&sandbox.id).await.is_err_and(|e| !e.is_not_found())
            {
                return later;
            }
        }
        let logs = steps::log_directory(&self.ctx, pod);
        if std::fs::remove_dir_all(&logs).is_err_and(|e| e.kind() != std::io::ErrorKind::NotFound) {
            tracing::warn!(path = %logs.display(), "remove a Pod's logs");
        }
        if stop == Stop::Deleted && !report::confirm_deletion(&self.ctx, pod).await {
            return later;
        }
        Next::Done
    }
}

/// How a Pod ends that is not taken.
fn rejected(refusal: &Refusal) -> Ending {
    Ending {
        phase: Phase::Failed,
        reason: Some(refusal.reason.clone()),
        message: Some(format!("Pod was rejected: {}", refusal.message)),
        disrupted: false,
    }
}

/// How a Pod ended before this kubelet started, which does not begin it again.
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

fn sooner(known: Option<Timestamp>, at: Timestamp) -> Timestamp {
    known.map_or(at, |known| known.min(at))
}

//! Runs liveness, readiness and startup probes. Each Pod with probes has one task. Read [`Prober`] first.

mod actions;
mod grpc;
mod target;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use pod_core::{
    Observed, Run, Verdicts, members,
    probe::{ProbeKind, Timing, Track},
};
use tokio::{sync::watch, time::Instant};

use crate::{context::Context, pod_state::Shared};
use actions::ProbeError;
use target::Target;

type Key = (String, ProbeKind);
type Targets = BTreeMap<Key, Target>;
/// A probe's key and result. The result is `None` if the startup probe has not succeeded yet.
type ProbeResult = (Key, Option<Result<(), ProbeError>>);

/// The probes of one Pod, as its worker holds them.
pub(crate) struct Prober {
    ctx: Arc<Context>,
    shared: Arc<Shared>,
    verdicts: Arc<Mutex<Verdicts>>,
    targets: Option<watch::Sender<Targets>>,
}

impl Prober {
    pub(crate) fn new(ctx: Arc<Context>, shared: Arc<Shared>) -> Self {
        Self { ctx, shared, verdicts: Arc::default(), targets: None }
    }

    pub(crate) fn verdicts(&self) -> Verdicts {
        self.verdicts.lock().clone()
    }

    /// Takes over the readiness that an earlier kubelet reported, so that a restart takes no Pod out of its Services.
    pub(crate) fn restore(&mut self, status: &PodStatus) {
        let mut verdicts = self.verdicts.lock();
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        for container in all {
            let id = container.container_id.as_deref().and_then(|id| id.split_once("://"));
            let Some((_, id)) = id else { continue };
            if container.ready {
                verdicts.suppose(id, ProbeKind::Readiness, true);
            }
            if container.started == Some(true) {
                verdicts.suppose(id, ProbeKind::Startup, true);
            }
        }
    }

    /// Probes exactly the containers that are running now.
    pub(crate) fn follow(&mut self, pod: &Arc<Pod>, observed: &Observed) {
        let host_network = pod.spec.as_ref().and_then(|s| s.host_network) == Some(true);
        let ip = if host_network {
            self.ctx.settings.node_ips.first()
        } else {
            observed.ready_sandbox().and_then(|s| s.ips.first())
        };
        let mut targets = Targets::new();
        for member in members(pod) {
            let Some(running) = observed.newest(&member.container.name) else { continue };
            let Run::Running { started } = running.run else { continue };
            for kind in
                ProbeKind::ALL.into_iter().filter(|kind| kind.of(&member.container).is_some())
            {
                let target = Target {
                    id: running.id.clone(),
                    kind,
                    pod: pod.clone(),
                    container: member.container.clone().into_owned(),
                    pod_ip: ip.cloned().unwrap_or_default(),
                    started,
                };
                targets.insert((running.id.clone(), kind), target);
            }
        }
        self.verdicts.lock().retain(|id| observed.containers.iter().any(|c| c.id == id));
        match &self.targets {
            Some(sender) => {
                sender.send_if_modified(|old| {
                    let changed = old.keys().ne(targets.keys());
                    *old = targets;
                    changed
                });
            }
            None if targets.is_empty() => {}
            None => {
                let (sender, receiver) = watch::channel(targets);
                self.targets = Some(sender);
                let name = format!("kubelet probes {}", pod_core::namespaced_name(pod));
                let (ctx, shared) = (self.ctx.clone(), self.shared.clone());
                let (verdicts, uid) = (self.verdicts.clone(), pod.metadata.uid.clone());
                let uid = uid.unwrap_or_default();
                let run = rt::until_it_ends("probes", pod_core::namespaced_name(pod), move || {
                    let task = ProbeTask {
                        ctx: ctx.clone(),
                        uid: uid.clone(),
                        shared: shared.clone(),
                        verdicts: verdicts.clone(),
                    };
                    task.run(receiver.clone())
                });
                self.ctx.tasks.spawn_until_shutdown(&name, run);
            }
        }
    }

    /// Stops all probes. The task ends because the sender is dropped.
    pub(crate) fn stop(&mut self) {
        self.targets = None;
    }
}

/// The task that runs the probes of a Pod.
struct ProbeTask {
    ctx: Arc<Context>,
    uid: String,
    shared: Arc<Shared>,
    verdicts: Arc<Mutex<Verdicts>>,
}

impl ProbeTask {
    /// Runs the probes until the sender of targets is dropped.
    async fn run(self, mut targets: watch::Receiver<Targets>) {
        let mut tracks: BTreeMap<Key, (Track, Pace)> = BTreeMap::new();
        let mut running: FuturesUnordered<BoxFuture<'static, ProbeResult>> =
            FuturesUnordered::new();
        loop {
            let current = targets.borrow_and_update().clone();
            tracks.retain(|key, _| current.contains_key(key));
            for (key, target) in current {
                if !tracks.contains_key(&key)
                    && let Some(probe) = target.kind.of(&target.container)
                {
                    let track = Track::new(Timing::of(probe));
                    let first = initial_wait(&self.ctx, &target, track.timing());
                    running.push(self.probe_after(target, first));
                    tracks.insert(key, (track, Pace::default()));
                }
            }
            tokio::select! {
                changed = targets.changed() => {
                    if changed.is_err() {
                        self.ctx.stats.probes.forget(&self.uid);
                        return;
                    }
                }
                Some((key, result)) = running.next(), if !running.is_empty() => {
                    let target = targets.borrow().get(&key).cloned();
                    let (Some(target), Some((track, pace))) = (target, tracks.get_mut(&key)) else { continue };
                    let wait = pace.after(key.1, track.timing(), result.as_ref());
                    if let Some(result) = result {
                        if let Err(error) = &result && wait == track.timing().period {
                            record_failure(&self.ctx, &target, error);
                        }
                        self.apply_result(&target, track, result.is_ok());
                    }
                    let health = self.verdicts.lock().of(&key.0, &target.container);
                    if key.1 != ProbeKind::Startup || !health.started {
                        running.push(self.probe_after(target, wait));
                    }
                }
            }
        }
    }

    fn probe_after(&self, target: Target, wait: Duration) -> BoxFuture<'static, ProbeResult> {
        Box::pin(probe_after(self.ctx.clone(), target, self.verdicts.clone(), wait))
    }

    fn apply_result(&self, target: &Target, track: &mut Track, success: bool) {
        if let Some(verdict) = track.record(success)
            && self.verdicts.lock().set(&target.id, target.kind, verdict)
        {
            self.shared.wake.notify_one();
        }
    }
}

/// The delay between two runs of a probe.
#[derive(Default)]
struct Pace {
    succeeded: bool,
    early: u32,
}

/// The first delay between readiness probes of a container that has not been ready yet.
const FIRST_EARLY_DELAY: Duration = Duration::from_millis(50);
/// The interval at which a probe checks whether the startup probe has succeeded.
const STARTUP_CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl Pace {
    /// Returns the delay before the next run. A starting container is probed for readiness more often than its period,
    /// with a growing delay. Only the first success of these early probes counts.
    fn after(
        &mut self,
        kind: ProbeKind,
        timing: &Timing,
        result: Option<&Result<(), ProbeError>>,
    ) -> Duration {
        let Some(result) = result else { return timing.period.min(STARTUP_CHECK_INTERVAL) };
        self.succeeded |= result.is_ok();
        if self.succeeded || kind != ProbeKind::Readiness {
            return timing.period;
        }
        let wait = FIRST_EARLY_DELAY * (1 << self.early.min(10));
        self.early += 1;
        wait.min(timing.period)
    }
}

/// Returns the delay before the first run. For a container that has run for longer, it is random, which spreads the
/// probes of all Pods after a restart.
fn initial_wait(ctx: &Context, target: &Target, timing: &Timing) -> Duration {
    let due = timing.first(target.started);
    let wait = Duration::try_from(due.duration_since(ctx.now())).unwrap_or_default();
    let age = Duration::try_from(ctx.now().duration_since(target.started)).unwrap_or_default();
    if age > timing.initial_delay + timing.period {
        timing.period.mul_f64(rt::random::<f64>())
    } else {
        wait
    }
}

/// Waits and runs a probe once. The result is `None` if the startup probe has not succeeded yet.
async fn probe_after(
    ctx: Arc<Context>,
    target: Target,
    verdicts: Arc<Mutex<Verdicts>>,
    wait: Duration,
) -> ProbeResult {
    tokio::time::sleep(wait).await;
    let key = (target.id.clone(), target.kind);
    let started = verdicts.lock().of(&target.id, &target.container).started;
    if target.kind != ProbeKind::Startup && !started {
        return (key, None);
    }
    let Some(probe) = target.kind.of(&target.container) else { return (key, None) };
    let timeout = Timing::of(probe).timeout;
    let start = Instant::now();
    let outcome = tokio::time::timeout(timeout, actions::run(&ctx, &target, probe)).await;
    let result = outcome.unwrap_or(Err(ProbeError::Timeout(timeout)));
    ctx.stats.probes.record(target.labels(), result.is_ok(), start.elapsed());
    (key, Some(result))
}

fn record_failure(ctx: &Context, target: &Target, error: &ProbeError) {
    let text = format!("{} probe failed: {error}", target.kind.as_str());
    ctx.events.of_container(&target.pod, &target.container.name, "Warning", "Unhealthy", text);
}

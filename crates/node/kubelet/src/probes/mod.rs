//! Runs liveness, readiness and startup probes. Each Pod with probes has one task. Read [`Prober`] first.

mod actions;
mod grpc;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use pod_core::{
    Observed, Run, Timestamp, Verdicts, members,
    probe::{ProbeKind, Timing, Track},
};
use tokio::{sync::watch, time::Instant};

use crate::{context::Context, stats::ProbeLabels, worker::Shared};

/// A probe of one running container.
#[derive(Clone)]
struct Target {
    id: String,
    kind: ProbeKind,
    pod: Arc<Pod>,
    container: Container,
    pod_ip: String,
    started: Timestamp,
}

impl Target {
    /// Returns the labels under which results are counted.
    fn probed(&self) -> ProbeLabels {
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        let meta = &self.pod.metadata;
        ProbeLabels {
            kind: self.kind.as_str(),
            namespace: of(&meta.namespace),
            pod: of(&meta.name),
            uid: of(&meta.uid),
            container: self.container.name.clone(),
        }
    }
}

type Key = (String, ProbeKind);
type Targets = BTreeMap<Key, Target>;
/// A probe's key and result. The result is `None` if the startup probe has not succeeded yet.
type ProbeResult = (Key, Option<Result<(), String>>);

/// The probes of one Pod, as its worker holds them.
pub(crate) struct Prober {
    ctx: Arc<Context>,
    shared: Arc<Shared>,
    verdicts: Arc<Mutex<Verdicts>>,
    targets: Option<watch::Sender<Targets>>,
}

fn lock(verdicts: &Mutex<Verdicts>) -> MutexGuard<'_, Verdicts> {
    verdicts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Prober {
    pub(crate) fn new(ctx: Arc<Context>, shared: Arc<Shared>) -> Self {
        Self { ctx, shared, verdicts: Arc::default(), targets: None }
    }

    pub(crate) fn verdicts(&self) -> Verdicts {
        lock(&self.verdicts).clone()
    }

    /// Takes over the readiness that an earlier kubelet reported, so that a restart takes no Pod out of its Services.
    pub(crate) fn restore(&mut self, status: &PodStatus) {
        let mut verdicts = lock(&self.verdicts);
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
        lock(&self.verdicts).retain(|id| observed.containers.iter().any(|c| c.id == id));
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
                    let of = (ctx.clone(), uid.clone());
                    run(of, shared.clone(), verdicts.clone(), receiver.clone())
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

/// Runs the probes of a Pod until the sender of targets is dropped.
async fn run(
    (ctx, uid): (Arc<Context>, String),
    shared: Arc<Shared>,
    verdicts: Arc<Mutex<Verdicts>>,
    mut targets: watch::Receiver<Targets>,
) {
    let mut tracks: BTreeMap<Key, (Track, Pace)> = BTreeMap::new();
    let mut running: FuturesUnordered<BoxFuture<'static, ProbeResult>> = FuturesUnordered::new();
    loop {
        let wanted = targets.borrow_and_update().clone();
        tracks.retain(|key, _| wanted.contains_key(key));
        for (key, target) in wanted {
            if !tracks.contains_key(&key)
                && let Some(probe) = target.kind.of(&target.container)
            {
                let track = Track::new(Timing::of(probe));
                let first = initial_wait(&ctx, &target, track.timing());
                running.push(Box::pin(probe_after(ctx.clone(), target, verdicts.clone(), first)));
                tracks.insert(key, (track, Pace::default()));
            }
        }
        tokio::select! {
            changed = targets.changed() => {
                if changed.is_err() {
                    ctx.stats.probes.forget(&uid);
                    return;
                }
            }
            Some((key, result)) = running.next(), if !running.is_empty() => {
                let target = targets.borrow().get(&key).cloned();
                let (Some(target), Some((track, pace))) = (target, tracks.get_mut(&key)) else { continue };
                let wait = pace.after(key.1, track.timing(), result.as_ref());
                if let Some(result) = result {
                    if let Err(message) = &result && wait == track.timing().period {
                        record_failure(&ctx, &target, message);
                    }
                    apply_result(&shared, &verdicts, &target, track, result.is_ok());
                }
                let over = key.1 == ProbeKind::Startup && lock(&verdicts).of(&key.0, &target.container).started;
                if !over {
                    running.push(Box::pin(probe_after(ctx.clone(), target, verdicts.clone(), wait)));
                }
            }
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
const EARLY: Duration = Duration::from_millis(50);
/// The interval at which a probe checks whether the startup probe has succeeded.
const TURN: Duration = Duration::from_millis(250);

impl Pace {
    /// Returns the delay before the next run. A starting container is probed for readiness more often than its period,
    /// with a growing delay. Only the first success of these early probes counts.
    fn after(
        &mut self,
        kind: ProbeKind,
        timing: &Timing,
        result: Option<&Result<(), String>>,
    ) -> Duration {
        let Some(result) = result else { return timing.period.min(TURN) };
        self.succeeded |= result.is_ok();
        if self.succeeded || kind != ProbeKind::Readiness {
            return timing.period;
        }
        let wait = EARLY * (1 << self.early.min(10));
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
    let started = lock(&verdicts).of(&target.id, &target.container).started;
    if target.kind != ProbeKind::Startup && !started {
        return (key, None);
    }
    let Some(probe) = target.kind.of(&target.container) else { return (key, None) };
    let timeout = Timing::of(probe).timeout;
    let start = Instant::now();
    let outcome = tokio::time::timeout(timeout, actions::run(&ctx, &target, probe)).await;
    let result =
        outcome.unwrap_or_else(|_| Err(format!("no answer within {}s", timeout.as_secs())));
    ctx.stats.probes.record(target.probed(), result.is_ok(), start.elapsed());
    (key, Some(result))
}

fn record_failure(ctx: &Context, target: &Target, message: &str) {
    let text = format!("{} probe failed: {message}", target.kind.as_str());
    ctx.events.of_container(&target.pod, &target.container.name, "Warning", "Unhealthy", text);
}

fn apply_result(
    shared: &Shared,
    verdicts: &Mutex<Verdicts>,
    target: &Target,
    track: &mut Track,
    success: bool,
) {
    if let Some(verdict) = track.record(success)
        && lock(verdicts).set(&target.id, target.kind, verdict)
    {
        shared.wake.notify_one();
    }
}

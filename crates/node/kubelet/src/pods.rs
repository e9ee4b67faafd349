//! The registry of Pod workers. Sources report Pods to [`Pods`], which admits each Pod, allocates its resources, and
//! starts one worker for it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cri::RuntimePod;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use parking_lot::{Mutex, MutexGuard};
use pod_core::{
    Ending, KnownPod, PodRegistry, RunningContainer,
    admit::{NodeView, Refusal, admit},
    namespaced_name,
    resize::{self, Pending, PodResources},
};
use tokio::sync::watch;

use crate::{
    context::Context,
    node::capacity::allocatable,
    pod_state::{Desired, Shared, Stop},
    worker::Worker,
};

/// The registry of workers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pods {
    ctx: Arc<Context>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    workers: HashMap<String, Handle>,
    /// Static Pods that must wait until a Pod of the same name has ended.
    waiting: BTreeMap<String, Arc<Pod>>,
    /// Pods that have ended and that the API server has not removed yet.
    finished: HashSet<String>,
}

struct Handle {
    /// The Pod as its source has it. The Pod in `desired` has the resources that were allocated.
    requested: Arc<Pod>,
    desired: watch::Sender<Desired>,
    shared: Arc<Shared>,
}

impl Pods {
    pub(crate) fn new(ctx: Arc<Context>) -> Self {
        Self { ctx, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Runs a Pod, or ends it if it has a deletion timestamp.
    pub(crate) fn run_pod(&self, pod: Arc<Pod>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let deleted = pod.metadata.deletion_timestamp.is_some();
        let mut desired = Desired::new(pod, deleted.then_some(Stop::Deleted));
        let mut state = self.lock();
        if state.finished.contains(&uid) {
            return;
        }
        if let Some(handle) = state.workers.get(&uid) {
            let current = handle.desired.borrow().clone();
            if current.stop == Some(Stop::Gone) {
                // The file of a static Pod came back while the Pod was ending.
                drop(state.waiting.insert(namespaced_name(&desired.pod), desired.pod));
                return;
            }
            let requested = desired.pod.clone();
            (desired.pod, desired.pending) = self.allocate(&state, requested.clone(), &current.pod);
            desired.end = current.end;
            if deleted {
                self.ctx.placement.mark_ending(&uid);
            }
            if let Some(handle) = state.workers.get_mut(&uid) {
                handle.requested = requested;
                drop(handle.desired.send_replace(desired));
            }
            return;
        }
        let name = namespaced_name(&desired.pod);
        let predecessor =
            state.workers.values().any(|h| namespaced_name(&h.desired.borrow().pod) == name);
        if predecessor && pod_core::is_static(&desired.pod) {
            state.waiting.insert(name, desired.pod);
            return;
        }
        self.start(&mut state, uid, desired);
    }

    /// Ends a Pod that its source does not have any more.
    pub(crate) fn end_removed(&self, uid: &str) {
        let mut state = self.lock();
        state.finished.remove(uid);
        state.waiting.retain(|_, pod| pod.metadata.uid.as_deref() != Some(uid));
        if let Some(handle) = state.workers.get(uid) {
            self.ctx.placement.mark_ending(uid);
            handle.desired.send_modify(|desired| desired.stop = Some(Stop::Gone));
        }
    }

    /// Stops and removes the containers of a Pod that no source has.
    pub(crate) fn remove_orphan(&self, uid: &str, leftover: &RuntimePod) {
        let mut state = self.lock();
        if state.workers.contains_key(uid) {
            return;
        }
        tracing::info!(
            namespace = leftover.namespace,
            name = leftover.name,
            uid,
            "end a Pod that no source has"
        );
        let container = |name: &String| Container { name: name.clone(), ..Container::default() };
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.name = Some(leftover.name.clone());
        pod.metadata.namespace = Some(leftover.namespace.clone());
        let containers = leftover.containers.iter().map(container).collect();
        pod.spec = Some(PodSpec { containers, ..PodSpec::default() });
        // Such a Pod has no object in the API, so its status is not reported.
        pod.metadata.annotations =
            Some([("kubernetes.io/config.source".to_owned(), "orphan".to_owned())].into());
        self.start(&mut state, uid.to_owned(), Desired::new(Arc::new(pod), Some(Stop::Gone)));
    }

    fn start(&self, state: &mut State, uid: String, mut desired: Desired) {
        let refusal = self.refusal(state, &desired);
        let requested = desired.pod.clone();
        let allocated = resize::with_resources(&requested, &resize::recover_resources(&requested));
        (desired.pod, desired.pending) = self.allocate(state, requested.clone(), &allocated);
        let shared = Arc::new(Shared::default());
        let name = format!("kubelet pod {}", namespaced_name(&desired.pod));
        let (sender, receiver) = watch::channel(desired);
        let worker = run_worker(self.ctx.clone(), receiver, shared.clone(), refusal);
        state.workers.insert(uid.clone(), Handle { desired: sender, shared, requested });
        let pods = self.clone();
        self.ctx.tasks.spawn_until_shutdown(&name, async move {
            worker.await;
            pods.ended(&uid);
        });
    }

    /// Returns the refusal of a Pod that is not admitted. A Pod that any kubelet has started before is always admitted.
    fn refusal(&self, state: &State, desired: &Desired) -> Option<Refusal> {
        let ctx = &self.ctx;
        let started = ctx.mirrors.api_status(&desired.pod).is_some_and(|s| s.start_time.is_some());
        if started || desired.stop.is_some() {
            return None;
        }
        if *ctx.shutting_down.borrow() {
            let refusal = Refusal {
                reason: "NodeShutdown".to_owned(),
                message: "Pod was rejected as the node is shutting down.".to_owned(),
            };
            ctx.events.warn(&desired.pod, refusal.reason.clone(), refusal.message.clone());
            return Some(refusal);
        }
        let own = ctx.node.get();
        let node = NodeView {
            name: &ctx.settings.node_name,
            labels: own.as_ref().map(|own| own.labels()),
            taints: own.as_ref().map(|own| own.taints()).unwrap_or_default(),
            allocatable: allocatable(&ctx.machine, &ctx.settings),
            pressures: &ctx.pressures.now(),
            unsafe_sysctls: &ctx.settings.unsafe_sysctls,
            app_armor: ctx.machine.app_armor,
        };
        let others: Vec<Arc<Pod>> =
            state.workers.values().filter(|h| !h.is_over()).map(Handle::allocated).collect();
        let refusal = admit(&desired.pod, &node, others.iter().map(AsRef::as_ref)).err()?;
        // Upstream's kubelet asks the CPU and memory managers before it compares requests with allocatable amounts.
        let placed =
            refusal.reason.starts_with("OutOf").then(|| ctx.placement.refusal(&desired.pod));
        let refusal = placed.flatten().unwrap_or(refusal);
        ctx.events.warn(&desired.pod, refusal.reason.clone(), refusal.message.clone());
        Some(refusal)
    }

    /// Allocates the resources that a resized Pod requests. If that is not possible, returns the `allocated` ones and
    /// the reason.
    fn allocate(
        &self,
        state: &State,
        requested: Arc<Pod>,
        allocated: &Pod,
    ) -> (Arc<Pod>, Option<Pending>) {
        let allocated = PodResources::of(allocated);
        if PodResources::of(&requested) == allocated {
            return (requested, None);
        }
        let before = resize::with_resources(&requested, &allocated);
        let (ctx, has_swap) = (&self.ctx, self.ctx.machine.swap > 0);
        let by_swap = || resize::forbidden_by_swap(&requested, &before);
        let forbidden = ctx.placement.forbids_resize(&requested, &before).or_else(|| {
            if has_swap && ctx.settings.kernel.limited_swap { by_swap() } else { None }
        });
        if let Some(message) = forbidden {
            let pending = Pending { reason: "Infeasible", message };
            return (Arc::new(before), Some(pending));
        }
        let others: Vec<Arc<Pod>> = state
            .workers
            .values()
            .filter(|h| !h.is_over() && h.requested.metadata.uid != requested.metadata.uid)
            .map(Handle::allocated)
            .collect();
        let allocatable = allocatable(&self.ctx.machine, &self.ctx.settings);
        match resize::consider(&requested, &allocatable, others.iter().map(AsRef::as_ref)) {
            Ok(()) => (requested, None),
            Err(pending) => (Arc::new(before), Some(pending)),
        }
    }

    /// Retries pending resizes of Pods.
    pub(crate) fn retry_resizes(&self) {
        let state = self.lock();
        for handle in state.workers.values() {
            let current = handle.desired.borrow().clone();
            if current.pending.is_none() {
                continue;
            }
            let (pod, pending) = self.allocate(&state, handle.requested.clone(), &current.pod);
            if current.pending != pending {
                handle
                    .desired
                    .send_modify(|desired| (desired.pod, desired.pending) = (pod, pending));
            }
        }
    }

    fn ended(&self, uid: &str) {
        let mut state = self.lock();
        let Some(handle) = state.workers.remove(uid) else { return };
        let desired = handle.desired.borrow().clone();
        if desired.stop == Some(Stop::Deleted) {
            state.finished.insert(uid.to_owned());
        }
        if let Some(next) = state.waiting.remove(&namespaced_name(&desired.pod)) {
            let uid = next.metadata.uid.clone().unwrap_or_default();
            self.start(&mut state, uid, Desired::new(next, None));
        }
    }

    pub(crate) fn wake_named(&self, name: &str) {
        for handle in self.lock().workers.values() {
            if namespaced_name(&handle.desired.borrow().pod) == name {
                handle.shared.wake.notify_one();
            }
        }
    }

    /// Evicts a Pod. Returns a receiver of `true` once the Pod is torn down, or `None` if the Pod has no worker.
    pub(crate) fn evict(
        &self,
        uid: &str,
        ending: Ending,
        grace: Duration,
    ) -> Option<watch::Receiver<bool>> {
        let state = self.lock();
        let handle = state.workers.get(uid)?;
        self.ctx.placement.mark_ending(uid);
        handle.desired.send_modify(|desired| desired.end = Some((ending, grace)));
        Some(handle.shared.torn_down.subscribe())
    }
}

impl PodRegistry for Pods {
    fn list(&self) -> Vec<Pod> {
        self.lock().workers.values().map(Handle::pod).collect()
    }

    fn active(&self) -> Vec<Arc<Pod>> {
        let state = self.lock();
        let stays = |handle: &&Handle| {
            let desired = handle.desired.borrow();
            desired.stop.is_none() && desired.end.is_none() && !handle.is_over()
        };
        state.workers.values().filter(stays).map(Handle::allocated).collect()
    }

    fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<KnownPod> {
        let state = self.lock();
        let full_name = format!("{namespace}/{name}");
        let has_uid = |id: &String, pod: &Pod| {
            uid.is_none_or(|uid| uid == *id || self.ctx.mirrors.uid(pod).as_deref() == Some(uid))
        };
        let mut workers = state.workers.iter();
        let (_, handle) = workers.find(|(id, handle)| {
            let pod = &handle.desired.borrow().pod;
            namespaced_name(pod) == full_name && has_uid(id, pod)
        })?;
        Some(KnownPod { pod: handle.pod(), observed: handle.shared.observed().clone() })
    }

    fn running(&self) -> Vec<RunningContainer> {
        let state = self.lock();
        let mut running = Vec::new();
        for (uid, handle) in &state.workers {
            running.extend(handle.shared.observed().running().map(|container| RunningContainer {
                uid: uid.clone(),
                name: container.name.clone(),
                id: container.id.clone(),
            }));
        }
        running
    }

    fn has_pod(&self, uid: &str) -> bool {
        self.lock().workers.contains_key(uid)
    }

    fn wake(&self, uid: &str) {
        if let Some(handle) = self.lock().workers.get(uid) {
            handle.shared.wake.notify_one();
        }
    }
}

/// Runs a Pod's worker until the Pod is gone. A worker that panics is restarted with a backoff, and adopts the running
/// containers like a restarted kubelet. Workers of other Pods are not affected.
async fn run_worker(
    ctx: Arc<Context>,
    desired: watch::Receiver<Desired>,
    shared: Arc<Shared>,
    refusal: Option<Refusal>,
) {
    let (name, mut restarted) = (namespaced_name(&desired.borrow().pod), false);
    rt::until_it_ends("pod worker", name, || {
        if std::mem::replace(&mut restarted, true) {
            let pod = desired.borrow().pod.clone();
            let text = "the Pod's worker panicked and was started again; see the kubelet's log";
            ctx.events.warn(&pod, "FailedSync", text.to_owned());
        }
        Worker::new(ctx.clone(), desired.clone(), shared.clone(), refusal.clone()).run()
    })
    .await;
}

impl Handle {
    /// Returns the Pod with the resources that were allocated to it.
    fn allocated(&self) -> Arc<Pod> {
        self.desired.borrow().pod.clone()
    }

    /// Reports whether the Pod has ended and holds no resources of the node any more.
    fn is_over(&self) -> bool {
        let status = self.shared.status();
        let phase = status.as_ref().and_then(|s| s.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    fn pod(&self) -> Pod {
        let mut pod = (*self.desired.borrow().pod).clone();
        if let Some(status) = &*self.shared.status() {
            pod.status = Some(status.clone());
        }
        pod
    }
}

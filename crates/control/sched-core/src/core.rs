//! The scheduler as a state machine: cluster state in, decisions out.

mod consult;
mod consultations;
mod decide;
mod gang;
mod give_up;
mod turns;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use crate::{
    cluster::Cluster,
    devices::{
        DeviceBinding,
        view::{DeviceClassView, DeviceTaintRuleView, ResourceClaimView, ResourceSliceView},
    },
    event::{Event, NodeChange},
    extenders::{Consultation, Extender},
    groups::GroupOutcome,
    index::NodeIx,
    labels::Labels,
    maps::set,
    node::Node,
    observe::Observer,
    pod::Pod,
    preempt::Budget,
    profile::{Profile, Profiles},
    queue::{Queue, QueueLengths, Tries},
    schedule::{NominatedPods, Turn},
    view::{
        BudgetView, CsiDriverView, CsiNodeView, PersistentVolumeView, SpreaderKey, SpreaderView,
        StorageCapacityView, StorageClassView, VolumeClaimView,
    },
    volumes::{ClaimBinding, Progress},
};

/// The settings of a scheduler. The defaults are upstream's.
#[derive(Clone, Debug)]
pub struct Config {
    /// The profiles; a Pod selects one by its scheduler name.
    pub profiles: Vec<Profile>,
    /// The backoff after the first failure, in milliseconds.
    pub first_backoff_ms: u64,
    /// The longest backoff, in milliseconds.
    pub max_backoff_ms: u64,
    /// The seed for the choice between nodes of equal score.
    pub seed: u64,
    /// `true` if the Pods of a PodGroup are scheduled by its policy. Extenders are not asked about Pods of groups.
    pub gangs: bool,
    /// The extenders to consult.
    pub extenders: Vec<Extender>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profiles: vec![Profile::default()],
            first_backoff_ms: 1000,
            max_backoff_ms: 10_000,
            seed: 1,
            gangs: false,
            extenders: Vec::new(),
        }
    }
}

/// The reason why a Pod got no node.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The Pod that stays unscheduled.
    pub pod: Arc<Pod>,
    /// The text of the Event and of the PodScheduled condition.
    pub message: String,
    /// The nominated node and the victims to evict there, if preemption helps.
    pub nominated: Option<(Arc<str>, Vec<Arc<Pod>>)>,
    /// A ResourceClaim (name and uid) to deallocate, because only this Pod uses it and cannot use its devices.
    pub deallocate: Option<(Box<str>, Box<str>)>,
    /// `true` if a plugin failed, rather than finding no node.
    pub is_error: bool,
}

impl Failure {
    fn plain(pod: Arc<Pod>, message: String) -> Self {
        Self { pod, message, nominated: None, deallocate: None, is_error: false }
    }
}

/// The decision for one Pod.
#[derive(Clone, Debug)]
pub enum Decision {
    /// Bind the Pod. The core assumes it on the node until [`Core::bind_failed`] is called.
    Bind {
        /// The Pod to bind.
        pod: Arc<Pod>,
        /// The name of the node.
        node: Arc<str>,
        /// The number of nodes that were checked.
        evaluated: usize,
        /// The number of nodes that passed.
        feasible: usize,
        /// The volume bindings to write and wait for before the Pod is bound.
        claims: Vec<ClaimBinding>,
        /// The device allocations to write and wait for before the Pod is bound.
        devices: Vec<DeviceBinding>,
        /// The attempts that the decision took.
        tries: Tries,
    },
    /// The Pod fits nowhere now.
    Unschedulable(Failure),
    /// The extenders decide next. The caller must call [`Core::answer`], or no other Pod that concerns an extender is
    /// tried.
    Consult(Consultation),
}

/// A Pod that a decision gave a node.
#[derive(Clone)]
struct AssumedPod {
    pod: Arc<Pod>,
    tries: Tries,
}

/// The scheduler as a state machine: cluster state in, decisions out. Times are monotonic milliseconds.
pub struct Core {
    config: Config,
    cluster: Cluster,
    queue: Queue,
    nominated: NominatedPods,
    /// The nominated node of each Pod that waits for its victims, by the Pod's uid.
    nominations: HashMap<Arc<str>, NodeIx>,
    /// Pods that a decision gave a node and whose binding the informer does not show yet.
    assumed: HashMap<Arc<str>, AssumedPod>,
    budgets: HashMap<(Box<str>, Box<str>), Budget>,
    turn: Turn,
    /// The Pod being scheduled.
    pub(crate) current: Option<Arc<Pod>>,
    /// The Pods during whose scheduling an earlier core panicked, each with the number of panics.
    suspects: HashMap<Arc<str>, (Arc<Pod>, u32)>,
    /// The Pods of the gang being scheduled. Those among them that are assumed may leave their nodes again.
    trial: HashSet<Arc<str>>,
    /// Decisions for the Pods of a gang that [`Core::next`] has yet to return.
    pending: VecDeque<Decision>,
    /// The results for PodGroups that [`Core::take_outcomes`] has yet to return.
    outcomes: Vec<GroupOutcome>,
    consultations: consultations::Consultations,
    /// The number of events before the attempt that an answer of extenders continues.
    attempt_began: Option<u64>,
}

impl Core {
    /// Creates a core without cluster state.
    pub fn new(config: Config) -> Self {
        let mut cluster = Cluster::new();
        cluster.profiles = Profiles::new(config.profiles.clone());
        cluster.groups.enabled = config.gangs;
        Self {
            queue: Queue::new(config.first_backoff_ms, config.max_backoff_ms),
            turn: Turn::new(config.seed),
            config,
            cluster,
            nominated: HashMap::new(),
            nominations: HashMap::new(),
            assumed: HashMap::new(),
            budgets: HashMap::new(),
            current: None,
            suspects: HashMap::new(),
            trial: HashSet::new(),
            pending: VecDeque::new(),
            outcomes: Vec::new(),
            consultations: consultations::Consultations::default(),
            attempt_began: None,
        }
    }

    /// Reports the progress of scheduling to `observer`.
    pub fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.queue.observe(observer.clone());
        self.turn.observer = observer;
    }

    /// Creates a replacement for this core after a panic, when its state is unreliable. The caller must add the whole
    /// cluster state again. The new core takes over only what informers do not know: assumed Pods, and the Pods during
    /// whose scheduling a core panicked. Those wait for a backoff, so that they do not block all others.
    pub fn restart(&self, now: u64) -> Self {
        let mut new = Self::new(self.config.clone());
        new.observe(self.turn.observer.clone());
        new.suspects = self.suspects.clone();
        new.pending = self.pending.clone();
        new.consultations = self.consultations.restart();
        if let Some(pod) = &self.current {
            let (_, crashes) = new.suspects.entry(pod.id.uid.clone()).or_insert((pod.clone(), 0));
            *crashes += 1;
        }
        let is_lost = |uid: &Arc<str>| new.suspects.contains_key(uid) || self.trial.contains(uid);
        let assumed: Vec<_> = self.assumed.iter().filter(|(uid, _)| !is_lost(uid)).collect();
        for (uid, assumed) in assumed {
            let Some((node, _)) = self.cluster.placement(uid) else { continue };
            new.cluster.add_pod(assumed.pod.clone(), &self.cluster.node(node).name);
            new.join_group(&assumed.pod, now);
            new.assumed.insert(uid.clone(), assumed.clone());
        }
        let assumed = new.assumed.keys().map(|uid| &**uid).collect();
        new.cluster.devices.carry_over(&self.cluster.devices, &assumed);
        for (pod, panics) in new.suspects.values() {
            new.queue.requeue_after_panic(pod.clone(), *panics, now);
        }
        new
    }

    /// Returns the snapshot of nodes and Pods.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the numbers of unscheduled Pods.
    pub fn queue_lengths(&self) -> QueueLengths {
        let mut lengths = self.queue.lengths();
        lengths.active += self.consultations.pods();
        lengths
    }

    /// Returns all Pods: those with a node, bound or assumed, and those that wait for one.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.cluster.pods().chain(self.queue.pods())
    }

    /// Returns the name of the node that a Pod is bound to or assumed on.
    pub fn node_of(&self, pod: &Pod) -> Option<&Arc<str>> {
        let (node, _) = self.cluster.placement(&pod.id.uid)?;
        Some(&self.cluster.node(node).name)
    }

    /// Adds or updates a Pod.
    pub fn set_pod(&mut self, pod: Arc<Pod>, now: u64) {
        if pod.finished {
            self.remove_pod(&pod.id.uid, now);
            return;
        }
        match pod.node_name.clone() {
            Some(node) => self.set_placed(pod, &node, now),
            None => self.set_waiting(pod, now),
        }
    }

    fn set_placed(&mut self, pod: Arc<Pod>, node: &Arc<str>, now: u64) {
        self.suspects.remove(&pod.id.uid);
        self.queue.remove(&pod.id.uid);
        self.clear_nomination(&pod.id.uid);
        let assumed = self.assumed.remove(&pod.id.uid);
        self.forget_claims(&pod.id.uid);
        let before = self.cluster.placement(&pod.id.uid).map(|(_, pod)| pod.clone());
        self.join_group(&pod, now);
        let frees = before.as_ref().is_some_and(|old| old.requests != pod.requests);
        let ix = self.cluster.add_pod(pod.clone(), node);
        if frees {
            self.queue.on_event(&self.cluster, &Event::PodGone { pod: &pod, node: ix }, now);
        }
        // The arrival of an assumed Pod was announced when it was assumed.
        if assumed.is_none() && before.is_none_or(|old| old.labels != pod.labels) {
            self.queue.on_event(&self.cluster, &Event::PodPlaced { pod: &pod }, now);
        }
    }

    fn set_waiting(&mut self, pod: Arc<Pod>, now: u64) {
        if self.cluster.profiles.find(&pod.scheduler_name).is_none()
            || self.assumed.contains_key(&pod.id.uid)
        {
            return;
        }
        if pod.terminating {
            self.queue.remove(&pod.id.uid);
            self.leave_group(&pod);
            self.clear_nomination(&pod.id.uid);
            return;
        }
        self.join_group(&pod, now);
        if let Some(ix) = pod.nominated_node.as_ref().and_then(|name| self.cluster.find_node(name))
        {
            self.nominate(pod.clone(), ix);
        }
        self.queue.set(&self.cluster, pod, now);
    }

    /// Removes a Pod that was deleted or has ended.
    pub fn remove_pod(&mut self, uid: &str, now: u64) {
        self.suspects.remove(uid);
        let waiting = self.queue.remove(uid);
        self.assumed.remove(uid);
        self.forget_claims(uid);
        self.clear_nomination(uid);
        let placed = self.cluster.remove_pod(uid);
        if let Some(pod) = waiting.as_ref().or(placed.as_ref().map(|(_, pod)| pod)) {
            self.leave_group(pod);
        }
        if let Some((node, pod)) = placed {
            self.queue.on_event(&self.cluster, &Event::PodGone { pod: &pod, node }, now);
        }
    }

    /// Adds or updates a node and retries the Pods that it may help. `now` is in milliseconds, as in all methods.
    pub fn set_node(&mut self, node: Node, now: u64) {
        let exists = self.cluster.find_node(&node.name).is_some();
        let (ix, old) = self.cluster.set_node(node);
        let change = match (&old, exists) {
            (None, true) => return,
            (None, false) => NodeChange { added: true, ..NodeChange::default() },
            (Some(old), _) => {
                let new = self.cluster.node(ix);
                NodeChange {
                    added: false,
                    allocatable: old.allocatable != new.allocatable || old.max_pods != new.max_pods,
                    labels: old.labels != new.labels,
                    taints: old.taints != new.taints || old.unschedulable != new.unschedulable,
                    features: old.declared_features != new.declared_features,
                }
            }
        };
        self.queue.on_event(&self.cluster, &Event::Node { ix, change }, now);
    }

    /// Removes a node. Its Pods still count until they are removed.
    pub fn remove_node(&mut self, name: &str) {
        if let Some(ix) = self.cluster.find_node(name) {
            for pod in self.nominated.remove(&ix).unwrap_or_default() {
                self.nominations.remove(&pod.id.uid);
            }
            self.cluster.remove_node(name);
        }
    }

    /// Sets or, with `None`, removes the labels of a namespace.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        self.cluster.set_namespace(name, labels);
    }

    /// Sets or, with `None`, removes the selector of a Service or of an owner of Pods. The default spreading uses it.
    pub fn set_spreader(&mut self, key: SpreaderKey<'_>, view: Option<&SpreaderView>) {
        self.cluster.set_spreader(key, view);
    }

    /// Sets or, with `None`, removes a claim. Pods that wait for volumes are retried.
    pub fn set_claim(
        &mut self,
        namespace: &Arc<str>,
        name: &str,
        view: Option<&VolumeClaimView>,
        now: u64,
    ) {
        self.cluster.volumes.set_claim(namespace, name, view);
        self.queue.on_event(&self.cluster, &Event::Volumes, now);
    }

    /// Sets or, with `None`, removes a PersistentVolume. Pods that wait for volumes are retried.
    pub fn set_volume(&mut self, name: &str, view: Option<&PersistentVolumeView>, now: u64) {
        self.cluster.volumes.set_volume(name, view);
        self.queue.on_event(&self.cluster, &Event::Volumes, now);
    }

    /// Sets or, with `None`, removes a StorageClass. Pods that wait for volumes are retried.
    pub fn set_class(&mut self, name: &str, view: Option<&StorageClassView>, now: u64) {
        self.cluster.volumes.set_class(name, view);
        self.queue.on_event(&self.cluster, &Event::Volumes, now);
    }

    /// Sets or, with `None`, removes a CSINode. Pods that wait for volumes are retried.
    pub fn set_csi_node(&mut self, node: &str, view: Option<&CsiNodeView>, now: u64) {
        self.cluster.volumes.set_csi_node(node, view);
        self.queue.on_event(&self.cluster, &Event::Volumes, now);
    }

    /// Sets or, with `None`, removes a CSIDriver. Pods that wait for volumes are retried.
    pub fn set_csi_driver(&mut self, name: &str, view: Option<&CsiDriverView>, now: u64) {
        self.cluster.volumes.set_driver(name, view);
        self.queue.on_event(&self.cluster, &Event::Volumes, now);
    }

    /// Sets or, with `None`, removes a CSIStorageCapacity. Pods that wait for volumes are retried.
    pub fn set_capacity(
        &mut self,
        namespace: &Arc<str>,
        name: &str,
        view: Option<&StorageCapacityView>,
        now: u64,
    ) {
        self.cluster.volumes.set_capacity(namespace, name, view);
        self.queue.on_event(&self.cluster, &Event::Volumes, now);
    }

    /// Sets or, with `None`, removes a ResourceClaim. Pods that wait for it or for its devices are retried.
    pub fn set_device_claim(
        &mut self,
        namespace: &Arc<str>,
        name: &str,
        view: Option<&ResourceClaimView>,
        now: u64,
    ) {
        let change = self.cluster.devices.set_claim(namespace, name, view);
        let event = Event::DeviceClaim { namespace, name, change };
        self.queue.on_event(&self.cluster, &event, now);
    }

    /// Sets or, with `None`, removes a DeviceClass. Pods that wait for devices are retried.
    pub fn set_device_class(&mut self, name: &str, view: Option<&DeviceClassView>, now: u64) {
        self.cluster.devices.set_class(name, view);
        if view.is_some() {
            self.queue.on_event(&self.cluster, &Event::Devices, now);
        }
    }

    /// Sets or, with `None`, removes a rule that taints devices. Pods that wait for devices are retried.
    pub fn set_taint_rule(&mut self, name: &str, view: Option<&DeviceTaintRuleView>, now: u64) {
        self.cluster.devices.set_taint_rule(name, view);
        self.queue.on_event(&self.cluster, &Event::Devices, now);
    }

    /// Sets or, with `None`, removes a ResourceSlice. Pods that wait for devices are retried.
    pub fn set_slice(&mut self, name: &str, view: Option<&ResourceSliceView>, now: u64) {
        self.cluster.devices.set_slice(name, view);
        if view.is_some() {
            self.queue.on_event(&self.cluster, &Event::Devices, now);
        }
    }

    /// Notes that the API server created the claim for a Pod's extended resources, and the claim's uid.
    pub fn device_claim_created(&mut self, placeholder: &str, uid: &str) {
        self.cluster.devices.record_creation(placeholder, uid);
    }

    /// Notes that a claim's allocation was written, and the claim's new resourceVersion.
    pub fn allocation_written(&mut self, uid: &str, resource_version: &str) {
        self.cluster.devices.record_write(uid, resource_version);
    }

    /// Returns the progress of the device allocations of an assumed Pod.
    pub fn device_progress(&self, pod: &Pod, devices: &[DeviceBinding]) -> Progress {
        if self.assumed.contains_key(&pod.id.uid) {
            self.cluster.devices.progress(pod, devices)
        } else {
            Progress::Refused("the pod is gone".to_owned())
        }
    }

    fn forget_claims(&mut self, uid: &str) {
        self.cluster.volumes.forget(uid);
        self.cluster.devices.forget(uid);
    }

    /// Returns the progress of the volume bindings of an assumed Pod.
    pub fn volume_progress(&self, pod: &Pod, claims: &[ClaimBinding]) -> Progress {
        if self.assumed.contains_key(&pod.id.uid) {
            self.cluster.volumes.progress(pod, claims)
        } else {
            Progress::Refused("the pod is gone".to_owned())
        }
    }

    /// Reports whether a provisioner has rejected the selected node of one of the Pod's claims.
    pub fn is_node_rejected(&self, pod: &Pod, claims: &[ClaimBinding]) -> bool {
        claims.iter().any(|binding| self.cluster.volumes.is_node_rejected(pod, binding))
    }

    /// Sets or, with `None`, removes a PodDisruptionBudget, which preemption respects where possible.
    pub fn set_budget(&mut self, namespace: &str, name: &str, budget: Option<&BudgetView>) {
        let key = (namespace.into(), name.into());
        set(&mut self.budgets, key, budget.map(|view| Budget::new(namespace, view)));
    }
}

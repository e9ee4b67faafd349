//! The unscheduled Pods, by state: ready, in backoff, unschedulable or held back.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::{
    cluster::Cluster,
    event::Event,
    observe::{Observer, QueueName, Unobserved},
    plugins::registry,
    pod::Pod,
};

/// The numbers of unscheduled Pods by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLengths {
    /// Pods to try next.
    pub active: usize,
    /// Pods that wait for the end of their backoff.
    pub backoff: usize,
    /// Pods that no node has room for.
    pub unschedulable: usize,
    /// Pods with scheduling gates, or held back by a plugin.
    pub gated: usize,
}

/// The attempts to schedule a Pod so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tries {
    /// The number of attempts.
    pub attempts: u32,
    /// The time at which the Pod could be tried first, in milliseconds.
    pub since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Active,
    Backoff {
        until: u64,
    },
    Unschedulable,
    Gated,
    /// Returned by [`Queue::pop`] and not yet back.
    Out,
}

impl QueueState {
    fn name(self) -> Option<QueueName> {
        match self {
            Self::Active => Some(QueueName::Active),
            Self::Backoff { .. } => Some(QueueName::Backoff),
            Self::Unschedulable => Some(QueueName::Unschedulable),
            Self::Gated => Some(QueueName::Gated),
            Self::Out => None,
        }
    }
}

const POD_ADDED: &str = "PodAdd";
const POD_CHANGED: &str = "PodUpdate";
const ATTEMPT_FAILED: &str = "ScheduleAttemptFailure";
const LONG_DECISION: &str = "LongDecision";

/// The duration in milliseconds from which a decision delays the Pods of its namespace.
const LONG: u64 = 100;

struct QueuedPod {
    pod: Arc<Pod>,
    state: QueueState,
    /// The time of the last move, in milliseconds, and the order of arrival.
    since: u64,
    order: u64,
    attempts: u32,
    /// The time at which the Pod became active first; `None` while it is held back.
    entered: Option<u64>,
    /// The plugins that rejected the Pod in the last attempt, as a bit set.
    rejected_by: u32,
    /// `true` if the last attempt failed for another reason than a lack of nodes, or called extenders. The Pod then
    /// always waits for the end of its backoff.
    errored: bool,
}

impl QueuedPod {
    /// Creates the entry of a Pod that is in no part of the queue yet.
    fn new(pod: Arc<Pod>, now: u64) -> Self {
        Self {
            pod,
            state: QueueState::Out,
            since: now,
            order: 0,
            attempts: 0,
            entered: None,
            rejected_by: 0,
            errored: false,
        }
    }
}

type Uid = Arc<str>;

/// The unscheduled Pods, by priority and then arrival. Failed ones wait for a backoff or an event that may help.
pub(crate) struct Queue {
    pods: HashMap<Uid, QueuedPod>,
    active: BTreeSet<(Reverse<i32>, u64, Uid)>,
    backoff: BTreeSet<(u64, Uid)>,
    next_order: u64,
    /// The times until which the Pods of a namespace wait for those of others, in milliseconds.
    delays: HashMap<Arc<str>, u64>,
    first_backoff: u64,
    max_backoff: u64,
    observer: Arc<dyn Observer>,
    /// The number of events so far.
    events: u64,
}

/// Reports whether the Pod has gates or a plugin holds it back.
fn is_held(cluster: &Cluster, pod: &Pod) -> bool {
    let profile = cluster.profiles.of(&pod.scheduler_name);
    let mut plugins = registry().iter().enumerate().filter(|(at, _)| profile.filters(*at));
    !pod.gates.is_empty() || plugins.any(|(_, plugin)| plugin.holds_back(cluster, pod))
}

/// The bit of the extenders among the plugins that rejected a Pod. Any event may change their opinion.
pub(crate) const EXTENDERS: u32 = 1 << 31;

/// The time in milliseconds after which an unschedulable Pod is retried without an event.
const MAX_UNSCHEDULABLE: u64 = 5 * 60 * 1000;

impl Queue {
    pub(crate) fn new(first_backoff: u64, max_backoff: u64) -> Self {
        Self {
            pods: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeSet::new(),
            next_order: 0,
            delays: HashMap::new(),
            first_backoff,
            max_backoff,
            observer: Arc::new(Unobserved),
            events: 0,
        }
    }

    pub(crate) fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.observer = observer;
    }

    /// Adds a Pod or updates a waiting one.
    pub(crate) fn set(&mut self, cluster: &Cluster, pod: Arc<Pod>, now: u64) {
        let held = is_held(cluster, &pod);
        let uid = pod.id.uid.clone();
        let Some(waiting) = self.pods.get_mut(&uid) else {
            self.pods.insert(uid.clone(), QueuedPod::new(pod.clone(), now));
            let state = if held { QueueState::Gated } else { QueueState::Active };
            self.move_to(&uid, state, POD_ADDED, now);
            return;
        };
        let same = waiting.pod.schedules_like(&pod);
        let state = waiting.state;
        if state == QueueState::Active && waiting.pod.priority != pod.priority {
            self.active.remove(&(Reverse(waiting.pod.priority), waiting.order, uid.clone()));
            waiting.state = QueueState::Out;
        }
        waiting.pod = pod.clone();
        match state {
            // It stays where it is.
            QueueState::Gated if held => {}
            _ if held => self.move_to(&uid, QueueState::Gated, POD_CHANGED, now),
            QueueState::Gated => self.move_to(&uid, QueueState::Active, POD_CHANGED, now),
            QueueState::Unschedulable if !same => self.retry(&uid, POD_CHANGED, now),
            QueueState::Active if !same => {
                self.move_to(&uid, QueueState::Active, POD_CHANGED, now);
            }
            _ => {}
        }
    }

    pub(crate) fn remove(&mut self, uid: &str) -> Option<Arc<Pod>> {
        self.withdraw(uid);
        self.pods.remove(uid).map(|waiting| waiting.pod)
    }

    /// Returns the next Pod. If none is active, takes one from backoff, unless its last attempt was an error.
    pub(crate) fn pop(&mut self, now: u64) -> Option<Arc<Pod>> {
        self.activate_due(now);
        self.delay_active(now);
        let uid = match self.active.first() {
            Some((_, _, uid)) => uid.clone(),
            None => self.backoff.iter().find(|(_, uid)| !self.pods[uid].errored)?.1.clone(),
        };
        self.withdraw(&uid);
        let waiting = self.pods.get_mut(&uid)?;
        waiting.attempts += 1;
        Some(waiting.pod.clone())
    }

    /// Delays the Pods of a namespace by the duration of a decision for one of them, in milliseconds, if it was long.
    /// So long decisions for one namespace take at most half of the time while Pods of others wait. Reports whether it
    /// was long.
    pub(crate) fn charge(&mut self, namespace: &Arc<str>, duration: u64, now: u64) -> bool {
        let long = duration >= LONG;
        if long {
            self.delays.retain(|_, until| *until > now);
            *self.delays.entry(namespace.clone()).or_insert(now) += duration;
        }
        long
    }

    /// Moves the first active Pods to the ones in backoff while their namespaces are delayed. If no other Pod is left,
    /// they are tried nevertheless.
    fn delay_active(&mut self, now: u64) {
        while !self.delays.is_empty()
            && let Some((_, _, uid)) = self.active.first().cloned()
        {
            let until = self.delays.get(&self.pods[&uid].pod.id.namespace).copied();
            let Some(until) = until.filter(|until| *until > now) else { return };
            self.move_to(&uid, QueueState::Backoff { until }, LONG_DECISION, now);
        }
    }

    /// Takes a Pod that belongs to the same group as the last one, unless it is held back or taken already.
    pub(crate) fn take(&mut self, uid: &str) -> Option<Arc<Pod>> {
        let waiting = self.pods.get(uid)?;
        if matches!(waiting.state, QueueState::Gated | QueueState::Out) {
            return None;
        }
        self.withdraw(uid);
        let waiting = self.pods.get_mut(uid)?;
        waiting.attempts += 1;
        Some(waiting.pod.clone())
    }

    /// Moves a Pod to those that are held back.
    pub(crate) fn hold(&mut self, uid: &str, now: u64) {
        self.move_to(&uid.into(), QueueState::Gated, POD_CHANGED, now);
    }

    /// Adds a Pod again that a decision had removed, as an unschedulable one.
    pub(crate) fn park_again(&mut self, pod: Arc<Pod>, tries: Tries, rejected_by: u32, now: u64) {
        let uid = pod.id.uid.clone();
        self.restore(pod, tries);
        self.park(&uid, rejected_by, now);
    }

    /// Moves a Pod to the unschedulable ones, until an event that concerns the plugins in `rejected_by`.
    pub(crate) fn park(&mut self, uid: &str, rejected_by: u32, now: u64) {
        if let Some(waiting) = self.pods.get_mut(uid) {
            waiting.rejected_by = rejected_by;
            waiting.errored = rejected_by & EXTENDERS != 0;
            self.move_to(&uid.into(), QueueState::Unschedulable, ATTEMPT_FAILED, now);
        }
    }

    /// Parks a Pod whose attempt began after `events` events. If there were others meanwhile, the Pod is retried.
    pub(crate) fn park_since(&mut self, uid: &str, rejected_by: u32, events: u64, now: u64) {
        self.park(uid, rejected_by, now);
        if events != self.events {
            self.retry(&uid.into(), ATTEMPT_FAILED, now);
        }
    }

    /// Returns the number of events so far.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Returns a Pod that [`Queue::pop`] returned and that is not back; `None` if it is gone or held back since.
    pub(crate) fn taken(&self, uid: &str) -> Option<Arc<Pod>> {
        let waiting = self.pods.get(uid)?;
        (waiting.state == QueueState::Out).then(|| waiting.pod.clone())
    }

    /// Requeues a Pod with a backoff after an error, such as a failed binding.
    pub(crate) fn requeue(&mut self, pod: Arc<Pod>, tries: Tries, now: u64) {
        let uid = pod.id.uid.clone();
        self.restore(pod, tries);
        let until = now + self.delay(&uid);
        self.move_to(&uid, QueueState::Backoff { until }, ATTEMPT_FAILED, now);
    }

    /// Adds a Pod again that a decision had removed.
    fn restore(&mut self, pod: Arc<Pod>, tries: Tries) {
        let uid = pod.id.uid.clone();
        let waiting = self.pods.entry(uid).or_insert_with(|| QueuedPod::new(pod, tries.since));
        waiting.errored = true;
        waiting.attempts = tries.attempts;
        waiting.entered = Some(tries.since);
    }

    /// Returns the attempts to schedule a Pod.
    pub(crate) fn tries(&self, uid: &str, now: u64) -> Tries {
        let waiting = self.pods.get(uid);
        let since = waiting.and_then(|waiting| waiting.entered).unwrap_or(now);
        Tries { attempts: waiting.map_or(1, |waiting| waiting.attempts), since }
    }

    /// Returns all unscheduled Pods.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values().map(|waiting| &waiting.pod)
    }

    /// Requeues a Pod whose scheduling panicked, with the backoff of `panics` attempts.
    pub(crate) fn requeue_after_panic(&mut self, pod: Arc<Pod>, panics: u32, now: u64) {
        self.requeue(pod, Tries { attempts: panics, since: now }, now);
    }

    /// Moves the Pods that the event may help.
    pub(crate) fn on_event(&mut self, cluster: &Cluster, event: &Event<'_>, now: u64) {
        self.events += 1;
        let plugins = registry();
        let helped = |waiting: &QueuedPod| {
            // Without a rejecting plugin, any event may help.
            waiting.rejected_by == 0
                || waiting.rejected_by & EXTENDERS != 0
                || plugins.iter().enumerate().any(|(at, plugin)| {
                    waiting.rejected_by & (1 << at) != 0
                        && plugin.wakes(cluster, &waiting.pod, event)
                })
        };
        let waiting = self.pods.iter().filter(|(_, w)| w.state == QueueState::Unschedulable);
        let woken: Vec<Uid> =
            waiting.filter(|(_, w)| helped(w)).map(|(uid, _)| uid.clone()).collect();
        woken.iter().for_each(|uid| self.retry(uid, event.label(), now));
        if !matches!(event, Event::DeviceClaim { .. } | Event::PodGroup { .. }) {
            return;
        }
        let held = self.pods.iter().filter(|(_, w)| w.state == QueueState::Gated);
        let freed = held.filter(|(_, w)| event.may_release(&w.pod) && !is_held(cluster, &w.pod));
        let freed: Vec<Uid> = freed.map(|(uid, _)| uid.clone()).collect();
        let label = event.label();
        freed.iter().for_each(|uid| self.move_to(uid, QueueState::Active, label, now));
    }

    /// Returns the time at which [`Queue::pop`] may return a Pod that it does not return now.
    pub(crate) fn next_time(&self) -> Option<u64> {
        let overdue = self.pods.values().filter(|w| w.state == QueueState::Unschedulable);
        let overdue = overdue.map(|w| w.since + MAX_UNSCHEDULABLE).min();
        let backoff = self.backoff.first().map(|(until, _)| *until);
        [overdue, backoff].into_iter().flatten().min()
    }

    pub(crate) fn lengths(&self) -> QueueLengths {
        let count = |state| self.pods.values().filter(|w| w.state == state).count();
        QueueLengths {
            active: self.active.len(),
            backoff: self.backoff.len(),
            unschedulable: count(QueueState::Unschedulable),
            gated: count(QueueState::Gated),
        }
    }

    fn activate_due(&mut self, now: u64) {
        while let Some((until, uid)) = self.backoff.first().cloned()
            && until <= now
        {
            self.move_to(&uid, QueueState::Active, "BackoffComplete", now);
        }
        let overdue = |w: &QueuedPod| {
            w.state == QueueState::Unschedulable && w.since + MAX_UNSCHEDULABLE <= now
        };
        if self.active.is_empty() {
            let all = self.pods.iter().filter(|(_, w)| overdue(w));
            let uids: Vec<Uid> = all.map(|(uid, _)| uid.clone()).collect();
            let event = "UnschedulableTimeout";
            uids.iter().for_each(|uid| self.move_to(uid, QueueState::Active, event, now));
        }
    }

    /// Moves an unschedulable Pod to the active ones, after the rest of its backoff.
    fn retry(&mut self, uid: &Uid, event: &'static str, now: u64) {
        let Some(waiting) = self.pods.get(uid) else { return };
        let until = waiting.since + self.delay(uid);
        let state = if until > now { QueueState::Backoff { until } } else { QueueState::Active };
        self.move_to(uid, state, event, now);
    }

    fn delay(&self, uid: &Uid) -> u64 {
        let attempts = self.pods.get(uid).map_or(1, |w| w.attempts.clamp(1, 30));
        (self.first_backoff << (attempts - 1)).min(self.max_backoff)
    }

    /// Moves a Pod because of an event, which metrics name.
    fn move_to(&mut self, uid: &Uid, state: QueueState, event: &'static str, now: u64) {
        self.withdraw(uid);
        let Some(waiting) = self.pods.get_mut(uid) else { return };
        waiting.state = state;
        if let Some(queue) = state.name() {
            self.observer.queued(queue, event);
        }
        match state {
            QueueState::Active => {
                waiting.entered.get_or_insert(now);
                waiting.order = self.next_order;
                self.next_order += 1;
                self.active.insert((Reverse(waiting.pod.priority), waiting.order, uid.clone()));
            }
            QueueState::Backoff { until } => {
                let _ = self.backoff.insert((until, uid.clone()));
            }
            QueueState::Unschedulable | QueueState::Gated => waiting.since = now,
            QueueState::Out => {}
        }
    }

    fn withdraw(&mut self, uid: &str) {
        let Some(waiting) = self.pods.get_mut(uid) else { return };
        let uid = waiting.pod.id.uid.clone();
        match waiting.state {
            QueueState::Active => {
                let _ = self.active.remove(&(Reverse(waiting.pod.priority), waiting.order, uid));
            }
            QueueState::Backoff { until } => {
                let _ = self.backoff.remove(&(until, uid));
            }
            _ => {}
        }
        waiting.state = QueueState::Out;
    }
}

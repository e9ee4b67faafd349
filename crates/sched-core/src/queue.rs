use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::{
    cluster::{Cluster, NodeIx},
    devices::ClaimChange,
    plugins::registry,
    pod::Pod,
};

/// Something that may let a waiting Pod run.
pub enum Event<'a> {
    Node {
        ix: NodeIx,
        change: NodeChange,
    },
    /// A Pod got a node, or one that has a node changed.
    PodPlaced {
        pod: &'a Pod,
    },
    PodGone {
        pod: &'a Pod,
        node: NodeIx,
    },
    /// A claim or volume came or changed.
    Volumes,
    /// A ResourceClaim came, changed or went.
    DeviceClaim {
        namespace: &'a str,
        name: &'a str,
        change: ClaimChange,
    },
    /// A DeviceClass or ResourceSlice came or changed.
    Devices,
}

/// What of a node has changed: Pods that failed for another reason are not tried again for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    pub added: bool,
    pub allocatable: bool,
    pub labels: bool,
    pub taints: bool,
}

/// How many Pods wait, and in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLengths {
    /// Those that are tried as soon as their turn comes.
    pub active: usize,
    /// Those that are tried again after a while.
    pub backoff: usize,
    /// Those that fit nowhere, until something changes that may help.
    pub unschedulable: usize,
    /// Those with scheduling gates, or that a plugin holds back.
    pub gated: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Active,
    Backoff {
        until: u64,
    },
    Unschedulable,
    Gated,
    /// Handed out by [`Queue::pop`] and not yet back.
    Out,
}

struct Waiting {
    pod: Arc<Pod>,
    place: Place,
    /// When it came to where it is (milliseconds), and the order of coming.
    since: u64,
    order: u64,
    attempts: u32,
    /// The plugins that turned it away the last time.
    rejected_by: u32,
    /// The last attempt failed for a reason other than having no room.
    errored: bool,
}

type Uid = Arc<str>;

/// The Pods that have no node: by priority, then by age; those that failed wait out a back-off, or for an
/// event that may help them.
pub(crate) struct Queue {
    pods: HashMap<Uid, Waiting>,
    active: BTreeSet<(Reverse<i32>, u64, Uid)>,
    backoff: BTreeSet<(u64, Uid)>,
    next_order: u64,
    first_backoff: u64,
    max_backoff: u64,
}

/// Whether the Pod has gates, or lacks what a plugin wants to be there before it is tried.
fn is_held(cluster: &Cluster, pod: &Pod) -> bool {
    let profile = cluster.profiles.of(&pod.scheduler_name);
    let mut plugins = registry().iter().enumerate().filter(|(at, _)| profile.filters(*at));
    !pod.gates.is_empty() || plugins.any(|(_, plugin)| plugin.holds_back(cluster, pod))
}

/// A Pod that no event has helped is tried again after so long all the same.
const FORGOTTEN_AFTER: u64 = 5 * 60 * 1000;

impl Queue {
    pub(crate) fn new(first_backoff: u64, max_backoff: u64) -> Self {
        Self {
            pods: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeSet::new(),
            next_order: 0,
            first_backoff,
            max_backoff,
        }
    }

    /// A new Pod, or a waiting one that changed.
    pub(crate) fn set(&mut self, cluster: &Cluster, pod: Arc<Pod>, now: u64) {
        let held = is_held(cluster, &pod);
        let uid = pod.id.uid.clone();
        let Some(waiting) = self.pods.get_mut(&uid) else {
            let waiting = Waiting {
                pod: pod.clone(),
                place: Place::Out,
                since: now,
                order: 0,
                attempts: 0,
                rejected_by: 0,
                errored: false,
            };
            self.pods.insert(uid.clone(), waiting);
            let place = if held { Place::Gated } else { Place::Active };
            self.place(&uid, place, now);
            return;
        };
        let same = waiting.pod.schedules_like(&pod);
        let place = waiting.place;
        if place == Place::Active && waiting.pod.priority != pod.priority {
            self.active.remove(&(Reverse(waiting.pod.priority), waiting.order, uid.clone()));
            waiting.place = Place::Out;
        }
        waiting.pod = pod.clone();
        match place {
            _ if held => self.place(&uid, Place::Gated, now),
            Place::Gated => self.place(&uid, Place::Active, now),
            Place::Unschedulable if !same => self.retry(&uid, now),
            Place::Active if !same => self.place(&uid, Place::Active, now),
            _ => {}
        }
    }

    pub(crate) fn remove(&mut self, uid: &str) -> Option<Arc<Pod>> {
        self.unplace(uid);
        self.pods.remove(uid).map(|waiting| waiting.pod)
    }

    /// The next Pod to schedule. One that waits out a back-off comes early when nothing else is to be done.
    pub(crate) fn pop(&mut self, now: u64) -> Option<Arc<Pod>> {
        self.release(now);
        let uid = match self.active.first() {
            Some((_, _, uid)) => uid.clone(),
            None => self.backoff.iter().find(|(_, uid)| !self.pods[uid].errored)?.1.clone(),
        };
        self.unplace(&uid);
        let waiting = self.pods.get_mut(&uid)?;
        waiting.attempts += 1;
        Some(waiting.pod.clone())
    }

    /// No node would have it: it waits for an event that the plugins which said no care about.
    pub(crate) fn unschedulable(&mut self, uid: &str, rejected_by: u32, now: u64) {
        if let Some(waiting) = self.pods.get_mut(uid) {
            waiting.rejected_by = rejected_by;
            waiting.errored = false;
            self.place(&uid.into(), Place::Unschedulable, now);
        }
    }

    /// It failed for another reason (a refused binding): it comes again after a back-off.
    pub(crate) fn failed(&mut self, pod: Arc<Pod>, now: u64) {
        let uid = pod.id.uid.clone();
        let waiting = self.pods.entry(uid.clone()).or_insert(Waiting {
            pod,
            place: Place::Out,
            since: now,
            order: 0,
            attempts: 1,
            rejected_by: 0,
            errored: true,
        });
        waiting.errored = true;
        let until = now + self.delay(&uid);
        self.place(&uid, Place::Backoff { until }, now);
    }

    /// Deciding for it panicked so often: it waits out the back-off of so many attempts.
    pub(crate) fn suspect(&mut self, pod: Arc<Pod>, panics: u32, now: u64) {
        let uid = pod.id.uid.clone();
        self.failed(pod, now);
        if let Some(waiting) = self.pods.get_mut(&uid) {
            waiting.attempts = panics;
        }
        let until = now + self.delay(&uid);
        self.place(&uid, Place::Backoff { until }, now);
    }

    /// Moves the Pods that the event may help.
    pub(crate) fn happened(&mut self, cluster: &Cluster, event: &Event<'_>, now: u64) {
        let plugins = registry();
        let helped = |waiting: &Waiting| {
            // Without a plugin to ask, anything may help.
            waiting.rejected_by == 0
                || plugins.iter().enumerate().any(|(at, plugin)| {
                    waiting.rejected_by & (1 << at) != 0
                        && plugin.wakes(cluster, &waiting.pod, event)
                })
        };
        let waiting = self.pods.iter().filter(|(_, w)| w.place == Place::Unschedulable);
        let woken: Vec<Uid> =
            waiting.filter(|(_, w)| helped(w)).map(|(uid, _)| uid.clone()).collect();
        woken.iter().for_each(|uid| self.retry(uid, now));
        if let Event::DeviceClaim { .. } = event {
            let held = self.pods.iter().filter(|(_, w)| w.place == Place::Gated);
            let freed = held.filter(|(_, w)| !is_held(cluster, &w.pod));
            let freed: Vec<Uid> = freed.map(|(uid, _)| uid.clone()).collect();
            freed.iter().for_each(|uid| self.place(uid, Place::Active, now));
        }
    }

    /// When [`Queue::pop`] may have something it does not have now.
    pub(crate) fn next_time(&self) -> Option<u64> {
        let forgotten = self.pods.values().filter(|w| w.place == Place::Unschedulable);
        let forgotten = forgotten.map(|w| w.since + FORGOTTEN_AFTER).min();
        let backoff = self.backoff.first().map(|(until, _)| *until);
        [forgotten, backoff].into_iter().flatten().min()
    }

    pub(crate) fn lengths(&self) -> QueueLengths {
        let count = |place| self.pods.values().filter(|w| w.place == place).count();
        QueueLengths {
            active: self.active.len(),
            backoff: self.backoff.len(),
            unschedulable: count(Place::Unschedulable),
            gated: count(Place::Gated),
        }
    }

    fn release(&mut self, now: u64) {
        while let Some((until, uid)) = self.backoff.first().cloned()
            && until <= now
        {
            self.place(&uid, Place::Active, now);
        }
        let forgotten =
            |w: &Waiting| w.place == Place::Unschedulable && w.since + FORGOTTEN_AFTER <= now;
        if self.active.is_empty() {
            let all = self.pods.iter().filter(|(_, w)| forgotten(w));
            let uids: Vec<Uid> = all.map(|(uid, _)| uid.clone()).collect();
            uids.iter().for_each(|uid| self.place(uid, Place::Active, now));
        }
    }

    /// From unschedulable to active, by way of what is left of its back-off.
    fn retry(&mut self, uid: &Uid, now: u64) {
        let Some(waiting) = self.pods.get(uid) else { return };
        let until = waiting.since + self.delay(uid);
        let place = if until > now { Place::Backoff { until } } else { Place::Active };
        self.place(uid, place, now);
    }

    fn delay(&self, uid: &Uid) -> u64 {
        let attempts = self.pods.get(uid).map_or(1, |w| w.attempts.clamp(1, 30));
        (self.first_backoff << (attempts - 1)).min(self.max_backoff)
    }

    fn place(&mut self, uid: &Uid, place: Place, now: u64) {
        self.unplace(uid);
        let Some(waiting) = self.pods.get_mut(uid) else { return };
        waiting.place = place;
        match place {
            Place::Active => {
                waiting.order = self.next_order;
                self.next_order += 1;
                self.active.insert((Reverse(waiting.pod.priority), waiting.order, uid.clone()));
            }
            Place::Backoff { until } => {
                let _ = self.backoff.insert((until, uid.clone()));
            }
            Place::Unschedulable | Place::Gated => waiting.since = now,
            Place::Out => {}
        }
    }

    fn unplace(&mut self, uid: &str) {
        let Some(waiting) = self.pods.get_mut(uid) else { return };
        let uid = waiting.pod.id.uid.clone();
        match waiting.place {
            Place::Active => {
                let _ = self.active.remove(&(Reverse(waiting.pod.priority), waiting.order, uid));
            }
            Place::Backoff { until } => {
                let _ = self.backoff.remove(&(until, uid));
            }
            _ => {}
        }
        waiting.place = Place::Out;
    }
}

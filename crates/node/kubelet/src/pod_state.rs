//! The state of a Pod that its worker shares with other tasks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_objects::VolumeUser;
use parking_lot::{Mutex, MutexGuard};
use pod_core::{Ending, Observed, resize::Pending};
use tokio::sync::{Notify, watch};

/// The desired state of a Pod.
#[derive(Clone, Debug)]
pub(crate) struct Desired {
    /// The Pod with the resources that were allocated to it.
    pub(crate) pod: Arc<Pod>,
    /// The reason why the Pod must end, if it must.
    pub(crate) stop: Option<Stop>,
    /// The reason why the Pod does not have all resources that it requests.
    pub(crate) pending: Option<Pending>,
    /// The eviction of the Pod: its final state, and the longest grace period.
    pub(crate) end: Option<(Ending, Duration)>,
}

impl Desired {
    pub(crate) fn new(pod: Arc<Pod>, stop: Option<Stop>) -> Self {
        Self { pod, stop, pending: None, end: None }
    }

    pub(crate) fn must_end(&self) -> bool {
        self.stop.is_some() || self.end.is_some()
    }

    /// Returns the time that the Pod's containers have to end.
    pub(crate) fn grace(&self) -> Duration {
        let own = pod_core::grace_period(&self.pod);
        self.end.as_ref().map_or(own, |(_, grace)| own.min(*grace))
    }
}

/// The reason why a Pod must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The Pod has a deletion timestamp. The API server waits for the kubelet to confirm the deletion.
    Deleted,
    /// No source has the Pod any more.
    Gone,
}

/// The part of a worker's state that other tasks read and set.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) wake: Notify,
    status: Mutex<Option<PodStatus>>,
    observed: Mutex<Observed>,
    /// `true` if the Pod has ended, and its volumes, its cgroup and its allocations are released.
    pub(crate) torn_down: watch::Sender<bool>,
    stale: AtomicBool,
}

impl Shared {
    /// Returns the last computed status, locked.
    pub(crate) fn status(&self) -> MutexGuard<'_, Option<PodStatus>> {
        self.status.lock()
    }

    /// Returns the last observed state, locked.
    pub(crate) fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock()
    }

    pub(crate) fn take_stale(&self) -> bool {
        self.stale.swap(false, Ordering::Relaxed)
    }
}

impl VolumeUser for Shared {
    fn volumes_are_stale(&self) {
        self.stale.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }
}

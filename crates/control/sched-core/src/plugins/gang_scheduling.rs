//! The plugin GangScheduling: holds Pods back until their PodGroup is complete.

use crate::{cluster::Cluster, event::Event, plugin::Plugin, pod::Pod};

/// Requires that the PodGroup of a Pod exists and has its minimum of Pods. The core schedules them together.
pub(super) struct GangScheduling;

impl Plugin for GangScheduling {
    fn name(&self) -> &'static str {
        "GangScheduling"
    }

    fn holds_back(&self, cluster: &Cluster, pod: &Pod) -> bool {
        cluster.groups.holds_back(pod)
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        matches!(event, Event::PodGroup { .. }) && event.may_release(pod)
    }
}

//! Stops a Pod's containers in order.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::{
    observed::{Container, Observed},
    spec::{Role, members},
};

/// Returns the time that a Pod's containers have to end: the grace period of the deletion, or else that of the spec.
pub fn grace_period(pod: &Pod) -> Duration {
    let deletion =
        pod.metadata.deletion_timestamp.as_ref().and(pod.metadata.deletion_grace_period_seconds);
    let spec = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    Duration::from_secs(deletion.or(spec).unwrap_or(30).max(0).unsigned_abs())
}

/// Returns the running containers in the order of stopping: first all application containers, then each sidecar after
/// those that were started after it.
pub fn stop_stages<'a>(pod: &Pod, observed: &'a Observed) -> Vec<Vec<&'a Container>> {
    let members = members(pod);
    let sidecar = |c: &Container| {
        members.iter().position(|m| m.role == Role::Sidecar && m.container.name == c.name)
    };
    let mut first = Vec::new();
    let mut later = Vec::new();
    for container in observed.running() {
        match sidecar(container) {
            Some(place) => later.push((place, container)),
            None => first.push(container),
        }
    }
    later.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
    let mut stages = vec![first];
    stages.extend(later.into_iter().map(|(_, container)| vec![container]));
    stages.retain(|stage| !stage.is_empty());
    stages
}

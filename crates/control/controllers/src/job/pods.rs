//! Properties of the Pods of a Job: finalizer, completion index and end.

use api_meta::Timestamp;

use crate::views::Pod;

/// The finalizer that keeps an ended Pod until it is counted.
pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// The annotation and label with the completion index.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Reports whether the Pod has the finalizer.
pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().any(|f| f == FINALIZER)
}

/// Reports whether the Pod is terminating but has not ended.
pub(super) fn is_ending(pod: &Pod) -> bool {
    pod.metadata.terminating() && !pod.is_finished()
}

/// Returns the completion index.
pub(super) fn completion_index(pod: &Pod) -> Option<i64> {
    pod.metadata.annotations.get(INDEX).and_then(|text| text.parse().ok())
}

/// Returns the end of the last container, or else the time of the deletion or of the creation.
pub(super) fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.container_statuses.iter();
    let last = containers.filter_map(|c| c.state.terminated.as_ref()?.finished_at).max();
    last.or(pod.metadata.deletion_timestamp).or(pod.metadata.creation_timestamp)
}

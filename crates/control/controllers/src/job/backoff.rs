//! The delay before a Job replaces failed Pods.

use std::{sync::Arc, time::Duration};

use api_meta::Timestamp;

use super::{failure::failed, pods::ended_at};
use crate::views::{Job, Pod};

/// Returns the remaining backoff after this many consecutive failures: 10 s, doubled each time, at most ten minutes.
pub(super) fn wait_after(failures: usize, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = failures.checked_sub(1)?.min(10);
    let due = last.plus(Duration::from_secs((10_u64 << doublings).min(600)));
    (due > now).then(|| due.since(now))
}

/// Returns the delay before the next Pod of a Job without a backoff limit per index.
pub(super) fn backoff(job: &Job, pods: &[Arc<Pod>], now: Timestamp) -> Option<Duration> {
    let mut ends: Vec<_> = pods
        .iter()
        .filter(|pod| pod.is_finished() || pod.metadata.terminating())
        .filter_map(|pod| Some((ended_at(pod)?, failed(job, pod))))
        .collect();
    ends.sort();
    let in_a_row = ends.iter().rev().take_while(|(_, failed)| *failed).count();
    // The Pods of earlier failures may be deleted already.
    let in_a_row = in_a_row.max(usize::from(in_a_row > 0 && job.status.failed > 0));
    wait_after(in_a_row, ends.last()?.0, now)
}

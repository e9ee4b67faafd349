//! Jobs with a backoff limit per index.
//!
//! The failure count of an index is stored on its latest Pod. So the last failed Pod of an index keeps its finalizer
//! until its replacement carries the next count.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api_meta::{Timestamp, Tree as _};
use serde_json::{Value, json};

use super::{
    backoff::wait_after,
    failure::{FailureEffect, failed, meaning},
    pods::{completion_index, ended_at, is_tracked},
};
use crate::views::{Job, Pod};

const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// The failures of an index before a Pod: counted ones and ignored ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Failures {
    counted: i64,
    ignored: i64,
}

impl Failures {
    fn before(pod: &Pod) -> Self {
        let read = |name: &str| {
            pod.metadata.annotations.get(name).and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        Self { counted: read(FAILURES), ignored: read(IGNORED) }
    }

    fn with(job: &Job, pod: &Pod) -> Self {
        let before = Self::before(pod);
        match meaning(job, pod) {
            FailureEffect::Ignored => Self { ignored: before.ignored + 1, ..before },
            _ => Self { counted: before.counted + 1, ..before },
        }
    }

    fn all(self) -> i64 {
        self.counted + self.ignored
    }

    pub(super) fn note(self, pod: &mut Value) {
        pod.put(&["metadata", "annotations", FAILURES], json!(self.counted.to_string()));
        if self.ignored > 0 {
            pod.put(&["metadata", "annotations", IGNORED], json!(self.ignored.to_string()));
        }
    }
}

/// Returns the indexes that are not retried: those of `before` and new ones.
pub(super) fn failed_indexes(job: &Job, pods: &[Arc<Pod>], before: BTreeSet<i64>) -> BTreeSet<i64> {
    let limit = job.spec.backoff_limit_per_index.unwrap_or(i64::MAX);
    let completions = job.spec.completions.unwrap_or(0);
    let mut lost = before;
    for pod in pods.iter().filter(|pod| is_tracked(pod) && failed(job, pod)) {
        let over = match meaning(job, pod) {
            FailureEffect::FailsIndex => true,
            FailureEffect::Ignored => false,
            FailureEffect::Counts | FailureEffect::FailsJob(_) => {
                Failures::before(pod).counted >= limit
            }
        };
        lost.extend(completion_index(pod).filter(|index| over && *index < completions));
    }
    lost
}

/// The last failed Pod of each index that has no replacement.
#[derive(Default)]
pub(super) struct LastFailedPods(BTreeMap<i64, Arc<Pod>>);

impl LastFailedPods {
    pub(super) fn of(job: &Job, pods: &[Arc<Pod>]) -> Self {
        let mut last: BTreeMap<i64, Arc<Pod>> = BTreeMap::new();
        let held = pods.iter().filter(|pod| is_tracked(pod));
        for (index, pod) in held.filter_map(|pod| Some((completion_index(pod)?, pod))) {
            let later = |earlier: &Arc<Pod>| Failures::before(earlier) < Failures::before(pod);
            if last.get(&index).is_none_or(later) {
                last.insert(index, pod.clone());
            }
        }
        last.retain(|_, pod| failed(job, pod));
        Self(last)
    }

    pub(super) fn of_indexes(mut self, selects: impl Fn(&i64) -> bool) -> Self {
        self.0.retain(|index, _| selects(index));
        self
    }

    pub(super) fn holds(&self, pod: &Pod) -> bool {
        completion_index(pod)
            .and_then(|index| self.0.get(&index))
            .is_some_and(|last| last.metadata.uid == pod.metadata.uid)
    }

    pub(super) fn failures(&self, job: &Job, index: i64) -> Failures {
        self.0.get(&index).map(|pod| Failures::with(job, pod)).unwrap_or_default()
    }

    /// Returns the remaining backoff of an index after its last failure.
    pub(super) fn wait(&self, job: &Job, index: i64, now: Timestamp) -> Option<Duration> {
        let pod = self.0.get(&index)?;
        let failures = usize::try_from(Failures::with(job, pod).all()).unwrap_or(1);
        wait_after(failures, ended_at(pod)?, now)
    }
}

impl PartialOrd for Failures {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.all().cmp(&other.all()))
    }
}

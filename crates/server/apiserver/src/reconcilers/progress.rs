//! The progress of the server's start, read by the health checks.

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering},
};

/// A step of the start after the server listens. Each step is done once, in no particular order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Namespaces,
    PriorityClasses,
    Roles,
    FlowControl,
    /// The ServiceCIDR and the Service `kubernetes`.
    KubernetesService,
    /// The authorities and headers published for extension API servers.
    Authorities,
    /// The APIServices of the APIs that this server serves.
    ApiServices,
    /// The resources of the peers are known.
    Peers,
    /// The election of leaders has been started.
    Elections,
    /// The background loops have been started.
    Loops,
}

/// The set of completed steps.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU16>);

impl Progress {
    pub(crate) fn done(&self, step: Step) {
        self.0.fetch_or(1 << step as u16, Ordering::Relaxed);
    }

    pub(crate) fn is_done(&self, step: Step) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << step as u16) != 0
    }

    /// Awaits `work` and marks the step as done if it succeeds.
    pub(super) async fn after<T, E>(
        &self,
        step: Step,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let outcome = work.await?;
        self.done(step);
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn does_not_mark_failed_step_as_done() {
        let progress = Progress::default();
        let failed = progress.after(Step::Roles, async { Err::<(), _>("refused") }).await;
        assert_eq!((failed, progress.is_done(Step::Roles)), (Err("refused"), false));
        progress.after(Step::Loops, async { Ok::<_, ()>(()) }).await.unwrap();
        assert!(progress.is_done(Step::Loops) && !progress.is_done(Step::Roles));
    }
}

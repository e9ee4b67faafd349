//! How far a server's start has come, for those who ask for its health.

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering},
};

/// What a server does after it listens. Each is done once, in no promised order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Namespaces,
    PriorityClasses,
    Roles,
    FlowControl,
    /// The Service range and the Service `kubernetes`.
    KubernetesService,
    /// Who is believed, as it is published to extension API servers.
    Authorities,
    /// The APIServices of what this server serves are there.
    ApiServices,
    /// The loops run that go on for as long as the server.
    Loops,
}

/// The steps that are done.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU16>);

impl Progress {
    pub(crate) fn done(&self, step: Step) {
        self.0.fetch_or(1 << step as u16, Ordering::Relaxed);
    }

    pub(crate) fn is_done(&self, step: Step) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << step as u16) != 0
    }

    /// Does `work`, and takes note of the step once that has gone well.
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
    async fn a_step_that_fails_is_not_done() {
        let progress = Progress::default();
        let failed = progress.after(Step::Roles, async { Err::<(), _>("refused") }).await;
        assert_eq!((failed, progress.is_done(Step::Roles)), (Err("refused"), false));
        progress.after(Step::Loops, async { Ok::<_, ()>(()) }).await.unwrap();
        assert!(progress.is_done(Step::Loops) && !progress.is_done(Step::Roles));
    }
}

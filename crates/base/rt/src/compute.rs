use std::{
    future::Future,
    sync::{Arc, OnceLock},
};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::{context::TokioContext, task::AbortOnDropHandle};

use crate::{
    panics::forward,
    tasks::Tasks,
    threads::{half_of_processors, has_threads, start_threads},
};

/// The nice value that the pool's threads add to that of the process.
const NICER: i32 = 5;

/// A thread pool for long computations. It keeps the threads of the main runtime free for short requests.
///
/// The pool only polls the work. Timers, sockets and tasks that the work starts belong to the caller's runtime, so that
/// none of them waits for a thread of the pool. The first work starts the threads, with a lower priority where the
/// system allows it. The pool does not limit the number of concurrent computations; callers do.
///
/// On a single-threaded runtime, as in a [`Simulation`](crate::Simulation), the work runs in its caller.
pub struct ComputePool {
    name: Arc<str>,
    tasks: Tasks,
    threads: usize,
    runtime: OnceLock<Option<Runtime>>,
}

/// The error of [`ComputePool::run`] when the pool's threads have ended before the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the threads for long computations have ended, because the process stops")]
pub struct PoolError;

impl ComputePool {
    /// Creates a pool with one thread for every two processors, and at least two, so that one computation does not
    /// block the others. `tasks` tracks its work under `name`.
    pub fn new(name: &str, tasks: &Tasks) -> Self {
        Self {
            name: name.into(),
            tasks: tasks.clone(),
            threads: half_of_processors(),
            runtime: OnceLock::new(),
        }
    }

    /// Returns the number of computations that run at the same time.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns `true` if the pool runs work on threads other than the caller's.
    pub fn is_apart(&self) -> bool {
        has_threads() && self.runtime().is_some()
    }

    /// Runs work on the pool's threads and returns its result. Dropping the future cancels the work at its next await.
    ///
    /// # Errors
    ///
    /// [`PoolError`] if the pool has ended before the work.
    ///
    /// # Panics
    ///
    /// Panics if the work panics, with the same payload.
    pub async fn run<F>(&self, work: F) -> Result<F::Output, PoolError>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let Some(runtime) = self.runtime().filter(|_| self.is_apart()) else {
            return Ok(work.await);
        };
        let work =
            TokioContext::new(self.tasks.adopt(&self.name, forward(work)), Handle::current());
        match AbortOnDropHandle::new(runtime.spawn(work)).await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(panic)) => panic.resume(),
            Err(_) => Err(PoolError),
        }
    }

    fn runtime(&self) -> Option<&Runtime> {
        let start = || {
            let mut threads = Builder::new_multi_thread();
            threads.worker_threads(self.threads).on_thread_start(lower_priority);
            start_threads(&mut threads, &self.name)
        };
        self.runtime.get_or_init(start).as_ref()
    }
}

impl Drop for ComputePool {
    fn drop(&mut self) {
        // Dropping a runtime blocks until its threads end, which a task must not do.
        if let Some(runtime) = self.runtime.take().flatten() {
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of the current thread. Without the permission, the thread keeps its priority.
fn lower_priority() {
    let lowered = rustix::process::getpriority_process(None)
        .and_then(|now| rustix::process::setpriority_process(None, now + NICER));
    if let Err(error) = lowered {
        tracing::debug!(%error, "lowering the priority of a thread");
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;
    use crate::{Shutdown, catch, panics};

    fn pool() -> ComputePool {
        ComputePool::new("computing", &Tasks::new(Shutdown::new()))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn keeps_the_only_worker_free_while_work_computes() {
        let pool = pool();
        let (go_on, wait) = mpsc::channel();
        let work = pool.run(async move {
            wait.recv().unwrap();
            std::thread::current().name().map(str::to_owned)
        });
        // This task runs on the only worker, so it would not run if the work blocked that worker.
        let other = tokio::spawn(async move { go_on.send(()).unwrap() });
        let (name, other) = tokio::join!(work, other);
        other.unwrap();
        assert_eq!(name, Ok(Some("computing".to_owned())));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn starts_tasks_and_timers_on_the_callers_runtime() {
        let pool = pool();
        let main = Handle::current().id();
        let work = async move {
            let never = std::future::pending::<()>();
            tokio::time::timeout(Duration::from_millis(1), never).await.unwrap_err();
            let started = tokio::spawn(async { Handle::current().id() });
            (Handle::current().id(), started.await.unwrap())
        };
        assert_eq!(pool.run(work).await, Ok((main, main)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn hands_panics_to_the_caller() {
        let pool = pool();
        let work = async { panic!("on purpose") };
        let panicked = catch("compute", "x", pool.run::<_>(work)).await;
        assert_eq!(
            panicked.map_err(|p| p.message),
            Err::<Result<(), _>, _>("on purpose".to_owned())
        );
        assert_eq!(panics()["compute"], 1);
        assert_eq!(pool.run(async { 5 }).await, Ok(5));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn drains_work_with_the_owners_tasks() {
        let tasks = Tasks::new(Shutdown::new());
        let pool = Arc::new(ComputePool::new("computing", &tasks));
        let waits = pool.clone();
        let waiting = tokio::spawn(async move { waits.run(std::future::pending::<()>()).await });
        while tasks.running().is_empty() {
            tokio::task::yield_now().await;
        }
        let drained = tasks.drain(Duration::from_millis(20)).await;
        assert_eq!(drained.unfinished, ["computing".into()]);
        waiting.abort();
        while !tasks.running().is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn runs_work_in_the_caller_on_a_runtime_of_one_thread() {
        let here = std::thread::current().id();
        assert_eq!(pool().run(async { std::thread::current().id() }).await, Ok(here));
    }
}

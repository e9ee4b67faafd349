//! Threads of their own for components that share a process.

use std::{future::Future, sync::Arc, thread::available_parallelism};

use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio_util::context::TokioContext;

/// Returns half of the number of processors, and at least two, so that one computation does not block all threads.
pub(crate) fn half_of_processors() -> usize {
    (available_parallelism().map_or(1, usize::from) / 2).max(2)
}

/// Returns `true` if the current runtime has several threads. It has one in a [`Simulation`](crate::Simulation).
pub(crate) fn has_threads() -> bool {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    matches!(flavor, Ok(RuntimeFlavor::MultiThread))
}

/// Starts threads under a name. If that fails, logs the error; their work then runs on the main runtime.
pub(crate) fn start_threads(threads: &mut Builder, name: &str) -> Option<Runtime> {
    let started = threads.thread_name(name).build();
    started
        .inspect_err(|error| {
            tracing::error!(%error, threads = name, "failed to start threads; their work runs on the main runtime");
        })
        .ok()
}

/// The threads of one component. They end when the last task of the component and all owners are gone.
pub(crate) struct OwnThreads(Option<Runtime>);

impl OwnThreads {
    /// Starts the threads, unless the current runtime has one thread only.
    pub(crate) fn start(name: &str) -> Option<Arc<Self>> {
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(half_of_processors()).enable_all();
        let runtime = has_threads().then(|| start_threads(&mut threads, name)).flatten()?;
        Some(Arc::new(Self(Some(runtime))))
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.0.as_ref().map(Runtime::handle)
    }
}

impl Drop for OwnThreads {
    fn drop(&mut self) {
        // Dropping a runtime blocks until its threads end, which a task must not do.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The runtime of a server whose functions are called by tasks of other runtimes in the same process.
#[derive(Clone, Debug)]
pub struct HomeRuntime(Handle);

impl HomeRuntime {
    /// Returns the runtime of the current task.
    ///
    /// # Panics
    ///
    /// Panics outside of a runtime.
    pub fn current() -> Self {
        Self(Handle::current())
    }

    /// Runs work in the caller's task. The tasks, timers and sockets that the work starts belong to this runtime, so
    /// that other callers who wait for them do not wait for the caller's threads.
    pub fn enter<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        TokioContext::new(work, self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;
    use crate::{Shutdown, Tasks};

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn tasks_on_own_threads_never_block_the_main_runtime() {
        let tasks = Tasks::new(Shutdown::new());
        let own = tasks.on_own_threads("apart");
        let (tell, told) = tokio::sync::oneshot::channel();
        let nested = own.clone();
        own.spawn("starts another", async move {
            nested.spawn("nested", async move {
                let name = std::thread::current().name().map(str::to_owned);
                let _ = tell.send((name, Handle::current().id()));
            });
        });
        let (name, id) = told.await.unwrap();
        assert_eq!(name.as_deref(), Some("apart"));
        assert_ne!(id, Handle::current().id());
        let (go_on, wait) = mpsc::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel();
        own.spawn("computes", async move {
            let _ = begin.send(());
            wait.recv().unwrap();
        });
        // The only worker of this runtime runs this task, so the test would hang if the computation were on it.
        begun.await.unwrap();
        tokio::spawn(async move { go_on.send(()).unwrap() }).await.unwrap();
        drop(own);
        assert!(tasks.drain(Duration::from_secs(60)).await.unfinished.is_empty());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn essential_task_on_own_threads_stops_the_process() {
        let tasks = Tasks::new(Shutdown::new());
        tasks.on_own_threads("apart").essential("core", async { panic!("on purpose") });
        tasks.shutdown().stopping().await;
        assert_eq!(tasks.failure().unwrap().to_string(), "core panicked: on purpose");
    }

    #[tokio::test]
    async fn runtime_of_one_thread_keeps_all_tasks() {
        let tasks = Tasks::new(Shutdown::new());
        let (tell, told) = tokio::sync::oneshot::channel();
        tasks.on_own_threads("apart").spawn("here", async move {
            let _ = tell.send(Handle::current().id());
        });
        assert_eq!(told.await.unwrap(), Handle::current().id());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn server_starts_its_tasks_at_home() {
        let home = HomeRuntime::current();
        let main = Handle::current().id();
        let own = Tasks::new(Shutdown::new()).on_own_threads("apart");
        let (tell, told) = tokio::sync::oneshot::channel();
        own.spawn("calls", async move {
            let caller = Handle::current().id();
            let started = async { tokio::spawn(async { Handle::current().id() }).await.unwrap() };
            let _ = tell.send((caller, home.enter(started).await));
        });
        let (caller, started) = told.await.unwrap();
        assert!(caller != main && started == main);
    }
}

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// A request to stop, seen by every task of one owner and of the owners below it.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that stops when this one does, and can be stopped alone.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    pub fn stop(&self) {
        self.0.cancel();
    }

    pub fn is_stopping(&self) -> bool {
        self.0.is_cancelled()
    }

    pub async fn stopping(&self) {
        self.0.cancelled().await;
    }

    /// Runs `work` until it ends (`Some`) or shutdown begins (`None`, `work` is dropped).
    pub async fn unless_stopping<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.0.run_until_cancelled(work).await
    }
}

/// The owner of a component's tasks.
///
/// A task that panics is reported and does not take the others along; whether its component can go on
/// without it is for the owner to say, through [`Tasks::essential`].
#[derive(Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: Shutdown,
    running: Arc<Mutex<std::collections::BTreeMap<u64, Arc<str>>>>,
    next: Arc<AtomicU64>,
}

/// What was still running when a drain's grace period ended; empty when all had finished.
#[derive(Debug, PartialEq, Eq)]
pub struct Drained {
    pub unfinished: Vec<Arc<str>>,
}

impl Tasks {
    pub fn new(shutdown: Shutdown) -> Self {
        Self {
            tracker: TaskTracker::new(),
            shutdown,
            running: Arc::default(),
            next: Arc::default(),
        }
    }

    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Starts a task that sees to its own shutdown (through [`Tasks::shutdown`]).
    pub fn spawn(&self, name: &str, work: impl Future<Output = ()> + Send + 'static) {
        self.start(name, work, None);
    }

    /// Starts a task that is dropped, wherever it awaits, when shutdown begins.
    pub fn spawn_until_shutdown(
        &self,
        name: &str,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let shutdown = self.shutdown.clone();
        self.start(
            name,
            async move {
                let _ended = shutdown.unless_stopping(work).await;
            },
            None,
        );
    }

    /// Starts a task without which the component is nothing: when it ends or panics, shutdown begins.
    pub fn essential(&self, name: &str, work: impl Future<Output = ()> + Send + 'static) {
        self.start(name, work, Some(self.shutdown.clone()));
    }

    fn start(
        &self,
        name: &str,
        work: impl Future<Output = ()> + Send + 'static,
        stops: Option<Shutdown>,
    ) {
        let name: Arc<str> = name.into();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.running).insert(id, name.clone());
        let entry = Entry { id, name, running: self.running.clone(), stops };
        self.tracker.spawn(async move {
            let _entry = entry;
            work.await;
        });
    }

    /// The names of the tasks that run now.
    pub fn running(&self) -> Vec<Arc<str>> {
        lock(&self.running).values().cloned().collect()
    }

    /// Begins shutdown and waits at most `grace` for the tasks to end.
    pub async fn drain(&self, grace: Duration) -> Drained {
        self.shutdown.stop();
        self.tracker.close();
        let _ = tokio::time::timeout(grace, self.tracker.wait()).await;
        Drained { unfinished: self.running() }
    }
}

/// Takes the task off the list however it ends, panics included.
struct Entry {
    id: u64,
    name: Arc<str>,
    running: Arc<Mutex<std::collections::BTreeMap<u64, Arc<str>>>>,
    stops: Option<Shutdown>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.running).remove(&self.id);
        if std::thread::panicking() {
            tracing::error!(task = %self.name, "task panicked");
        }
        if let Some(shutdown) = &self.stops {
            shutdown.stop();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn drain_ends_tasks_that_listen_and_names_those_that_do_not() {
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn_until_shutdown("listens", std::future::pending());
        tasks.spawn("deaf", std::future::pending());
        let drained = tasks.drain(Duration::from_millis(50)).await;
        assert_eq!(drained.unfinished, ["deaf".into()]);
    }

    #[tokio::test]
    async fn a_panic_ends_one_task_and_an_essential_task_ends_all() {
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn_until_shutdown("bystander", std::future::pending());
        tasks.spawn("fails", async { panic!("on purpose") });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(tasks.running(), ["bystander".into()]);
        assert!(!tasks.shutdown().is_stopping());
        tasks.essential("core", async {});
        tasks.shutdown().stopping().await;
    }
}

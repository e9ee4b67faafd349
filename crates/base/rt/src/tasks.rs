use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    panics::{CaughtPanic, RestartBackoff, catch},
    threads::OwnThreads,
};

/// A shutdown signal for every task of one owner and of the owners below it.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Creates a token without a parent: only [`Shutdown::stop`] stops it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a token that stops when this one does, and that can be stopped alone.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Stops this token and all its children. This is final.
    pub fn stop(&self) {
        self.0.cancel();
    }

    /// Returns `true` once shutdown has begun; start no new work then.
    pub fn is_stopping(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until shutdown begins.
    pub async fn stopping(&self) {
        self.0.cancelled().await;
    }

    /// Runs `work` until it ends (`Some`) or shutdown begins (`None`, `work` is dropped).
    pub async fn unless_stopping<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.0.run_until_cancelled(work).await
    }
}

/// The owner of a component's tasks, which are of three kinds:
/// - tasks that end by themselves ([`Tasks::spawn`], [`Tasks::spawn_until_shutdown`]): a panic ends only that task;
/// - endless loops ([`Tasks::keep`]): a loop that ends or panics is started again;
/// - tasks that the process needs ([`Tasks::essential`]): if one ends or panics, the process stops, so that its
///   supervisor restarts it.
///
/// Health checks report the tasks that should run and do not; see [`Tasks::missing`].
#[derive(Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: Shutdown,
    state: Arc<Mutex<State>>,
    next: Arc<AtomicU64>,
    /// The threads of the tasks; `None` for those of the caller's runtime.
    threads: Option<Arc<OwnThreads>>,
}

/// The state is changed in single steps, so that it holds after a panic.
#[derive(Default)]
struct State {
    running: BTreeMap<u64, Arc<str>>,
    missing: BTreeMap<u64, MissingTask>,
    unready: BTreeMap<u64, Arc<str>>,
    /// The first essential task that ended by itself.
    ended: Option<MissingTask>,
}

/// A task that should run and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingTask {
    /// The name of the task.
    pub name: Arc<str>,
    /// The panic that ended the task; `None` if it returned.
    pub panicked: Option<CaughtPanic>,
}

impl MissingTask {
    fn new(name: &Arc<str>, ended: Result<(), CaughtPanic>) -> Self {
        Self { name: name.clone(), panicked: ended.err() }
    }
}

impl std::fmt::Display for MissingTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.panicked {
            Some(panicked) => write!(f, "{} panicked: {}", self.name, panicked.message),
            None => write!(f, "{} ended", self.name),
        }
    }
}

/// The result of a drain.
#[derive(Debug, PartialEq, Eq)]
pub struct DrainResult {
    /// The names of the tasks that still ran when the grace period ended; empty if all had finished.
    pub unfinished: Vec<Arc<str>>,
}

impl Tasks {
    /// Creates an owner without tasks. `shutdown` stops its tasks.
    pub fn new(shutdown: Shutdown) -> Self {
        Self {
            tracker: TaskTracker::new(),
            shutdown,
            state: Arc::default(),
            next: Arc::default(),
            threads: None,
        }
    }

    /// Returns the same owner with threads of its own for the tasks that start from now on, named `name`. Long
    /// computations of a component then delay no other component of the process. On a runtime of one thread, and if the
    /// threads cannot be started, the tasks stay on the caller's runtime.
    #[must_use]
    pub fn on_own_threads(&self, name: &str) -> Self {
        Self { threads: OwnThreads::start(name), ..self.clone() }
    }

    /// Returns the shutdown token of the tasks.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Starts a task that handles its own shutdown (through [`Tasks::shutdown`]).
    pub fn spawn(&self, name: &str, work: impl Future<Output = ()> + Send + 'static) {
        self.start(name, work, None);
    }

    /// Starts a task that is dropped at its next await when shutdown begins.
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

    /// Starts a task that the process needs: when it ends or panics, shutdown begins.
    pub fn essential(&self, name: &str, work: impl Future<Output = ()> + Send + 'static) {
        self.start(name, work, Some(self.shutdown.clone()));
    }

    /// Starts a loop that runs until shutdown, which drops it. If the loop ends or panics, `work` is called again after
    /// a backoff; until then the task is listed as missing.
    pub fn keep<F>(&self, name: &str, mut work: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (id, state) = (self.next.fetch_add(1, Ordering::Relaxed), self.state.clone());
        let label: Arc<str> = name.into();
        self.spawn_until_shutdown(name, async move {
            let mut pause = RestartBackoff::begin();
            loop {
                let ended = catch(TASK, &label, async { work().await }).await;
                let missing = MissingTask::new(&label, ended);
                tracing::warn!(task = %label, "a task ended unexpectedly; starting it again");
                state.lock().missing.insert(id, missing);
                pause.wait().await;
                state.lock().missing.remove(&id);
            }
        });
    }

    fn start(
        &self,
        name: &str,
        work: impl Future<Output = ()> + Send + 'static,
        stops: Option<Shutdown>,
    ) {
        let name: Arc<str> = name.into();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.state.lock().running.insert(id, name.clone());
        let entry = Entry { id, name, state: self.state.clone(), stops };
        let task = async move {
            let ended = catch(TASK, &entry.name, work).await;
            entry.ended(ended);
        };
        match self.threads.as_ref().and_then(|threads| threads.handle()) {
            Some(runtime) => self.tracker.spawn_on(task, runtime),
            None => self.tracker.spawn(task),
        };
    }

    /// Tracks `work` as one of the owner's tasks without starting it. The executor of `work` must drop it when it is
    /// aborted.
    pub(crate) fn adopt<F: Future>(
        &self,
        name: &Arc<str>,
        work: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.state.lock().running.insert(id, name.clone());
        let entry = Entry { id, name: name.clone(), state: self.state.clone(), stops: None };
        self.tracker.track_future(async move {
            let _entry = entry;
            work.await
        })
    }

    /// Returns the names of the running tasks.
    pub fn running(&self) -> Vec<Arc<str>> {
        self.state.lock().running.values().cloned().collect()
    }

    /// Returns the tasks that should run and do not: loops that wait for their restart, and ended essential tasks.
    pub fn missing(&self) -> Vec<MissingTask> {
        self.state.lock().missing.values().cloned().collect()
    }

    /// Returns the essential task whose unexpected end stopped the process.
    pub fn failure(&self) -> Option<MissingTask> {
        self.state.lock().ended.clone()
    }

    /// Marks `name` as not ready until the returned guard is dropped.
    pub fn unready(&self, name: &str) -> UnreadyGuard {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.state.lock().unready.insert(id, name.into());
        UnreadyGuard { id, state: self.state.clone() }
    }

    /// Returns the names that are not ready yet.
    pub fn not_ready(&self) -> Vec<Arc<str>> {
        self.state.lock().unready.values().cloned().collect()
    }

    /// Begins shutdown and waits at most `grace` for the tasks to end.
    pub async fn drain(&self, grace: Duration) -> DrainResult {
        self.shutdown.stop();
        self.tracker.close();
        let _ = tokio::time::timeout(grace, self.tracker.wait()).await;
        DrainResult { unfinished: self.running() }
    }
}

/// The worker name that counts panics of whole tasks.
const TASK: &str = "task";

/// A guard for a component that is not ready yet; see [`Tasks::unready`].
#[must_use = "dropping it marks the component as ready"]
pub struct UnreadyGuard {
    id: u64,
    state: Arc<Mutex<State>>,
}

impl Drop for UnreadyGuard {
    fn drop(&mut self) {
        self.state.lock().unready.remove(&self.id);
    }
}

/// Removes the task from the list when it is dropped, however the task ended.
struct Entry {
    id: u64,
    name: Arc<str>,
    state: Arc<Mutex<State>>,
    stops: Option<Shutdown>,
}

impl Entry {
    fn ended(self, how: Result<(), CaughtPanic>) {
        if self.stops.as_ref().is_none_or(Shutdown::is_stopping) {
            return;
        }
        let missing = MissingTask::new(&self.name, how);
        tracing::error!(task = %self.name, "an essential task ended by itself: stopping");
        let mut state = self.state.lock();
        state.missing.insert(self.id, missing.clone());
        state.ended.get_or_insert(missing);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.state.lock().running.remove(&self.id);
        if let Some(shutdown) = &self.stops {
            shutdown.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn drains_listening_tasks_and_names_the_others() {
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn_until_shutdown("listens", std::future::pending());
        tasks.spawn("deaf", std::future::pending());
        let drained = tasks.drain(Duration::from_millis(50)).await;
        assert_eq!(drained.unfinished, ["deaf".into()]);
    }

    #[tokio::test]
    async fn ends_one_task_on_panic_but_all_if_it_was_essential() {
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn_until_shutdown("bystander", std::future::pending());
        let (last_words, ended) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn("fails", async {
            let _dropped_last = last_words;
            panic!("on purpose")
        });
        assert!(ended.await.is_err());
        while tasks.running().len() > 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(tasks.running(), ["bystander".into()]);
        assert_eq!((tasks.missing(), tasks.failure()), (vec![], None));
        assert!(!tasks.shutdown().is_stopping());
        tasks.essential("core", async { panic!("no more") });
        tasks.shutdown().stopping().await;
        assert_eq!(tasks.failure().unwrap().to_string(), "core panicked: no more");
        assert_eq!(tasks.missing(), [tasks.failure().unwrap()]);
    }

    #[tokio::test]
    async fn accepts_end_of_essential_task_during_shutdown() {
        let tasks = Tasks::new(Shutdown::new());
        let shutdown = tasks.shutdown().clone();
        tasks.essential("core", async move { shutdown.stopping().await });
        assert!(tasks.drain(Duration::from_secs(5)).await.unfinished.is_empty());
        assert_eq!((tasks.missing(), tasks.failure()), (vec![], None));
    }

    #[tokio::test(start_paused = true)]
    async fn restarts_ended_loop_and_lists_it_as_missing_until_then() {
        let tasks = Tasks::new(Shutdown::new());
        let (begun, mut times) = tokio::sync::mpsc::channel(1);
        let mut number = 0;
        tasks.keep("loop", move || {
            number += 1;
            let (number, begun) = (number, begun.clone());
            async move {
                begun.send(number).await.unwrap();
                match number {
                    1 => panic!("on purpose"),
                    2 => {}
                    _ => std::future::pending().await,
                }
            }
        });
        for (begun, missing) in [(1, "loop panicked: on purpose"), (2, "loop ended")] {
            assert_eq!(times.recv().await, Some(begun));
            tokio::time::sleep(Duration::from_millis(1)).await;
            let found: Vec<_> = tasks.missing().iter().map(ToString::to_string).collect();
            assert_eq!(found, [missing]);
        }
        assert_eq!(times.recv().await, Some(3));
        assert_eq!((tasks.missing(), tasks.running().len()), (vec![], 1));
        assert!(tasks.drain(Duration::from_secs(5)).await.unfinished.is_empty());
    }

    #[test]
    fn lists_unready_names_until_their_guards_drop() {
        let tasks = Tasks::new(Shutdown::new());
        let (a, _b) = (tasks.unready("a"), tasks.unready("b"));
        assert_eq!(tasks.not_ready(), ["a".into(), "b".into()]);
        drop(a);
        assert_eq!(tasks.not_ready(), ["b".into()]);
    }
}

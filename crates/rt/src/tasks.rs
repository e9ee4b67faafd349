use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::panics::{Panicked, Pause, catch};

/// A request to stop, seen by every task of one owner and of the owners below it.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// A token of nobody's: only [`Shutdown::stop`] stops it.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that stops when this one does, and can be stopped alone.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Asks everybody who holds the token, or one below it, to stop. It cannot be taken back.
    pub fn stop(&self) {
        self.0.cancel();
    }

    /// Whether to begin nothing new.
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
/// - what ends by itself ([`Tasks::spawn`], [`Tasks::spawn_until_shutdown`]): a panic ends that task alone;
/// - endless loops ([`Tasks::keep`]): one that ends or panics is begun again;
/// - what the process cannot go on without ([`Tasks::essential`]): its end, or a panic, stops the process, so that the
///   supervisor starts it again.
///
/// What is missing meanwhile, [`Tasks::missing`] tells those who ask for health.
#[derive(Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: Shutdown,
    state: Arc<Mutex<State>>,
    next: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    running: BTreeMap<u64, Arc<str>>,
    missing: BTreeMap<u64, Missing>,
    unready: BTreeMap<u64, Arc<str>>,
    /// The first essential task that ended by itself.
    ended: Option<Missing>,
}

/// A task that ought to run and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub name: Arc<str>,
    /// Its panic, if that ended it.
    pub panicked: Option<Panicked>,
}

impl Missing {
    fn new(name: &Arc<str>, ended: Result<(), Panicked>) -> Self {
        Self { name: name.clone(), panicked: ended.err() }
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.panicked {
            Some(panicked) => write!(f, "{} panicked: {}", self.name, panicked.message),
            None => write!(f, "{} ended", self.name),
        }
    }
}

/// What was still running when a drain's grace period ended; empty when all had finished.
#[derive(Debug, PartialEq, Eq)]
pub struct Drained {
    pub unfinished: Vec<Arc<str>>,
}

impl Tasks {
    /// An owner without tasks, which `shutdown` will stop.
    pub fn new(shutdown: Shutdown) -> Self {
        Self { tracker: TaskTracker::new(), shutdown, state: Arc::default(), next: Arc::default() }
    }

    /// The token that the tasks go by.
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

    /// Starts a loop that is to run until shutdown, which drops it. Should it end or panic, it is made anew after a
    /// back-off, and missing until then.
    pub fn keep<F>(&self, name: &str, mut work: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (id, state) = (self.next.fetch_add(1, Ordering::Relaxed), self.state.clone());
        let known: Arc<str> = name.into();
        self.spawn_until_shutdown(name, async move {
            let mut pause = Pause::begin();
            loop {
                let ended = catch(TASK, &known, async { work().await }).await;
                let missing = Missing::new(&known, ended);
                tracing::warn!(task = %known, "begin a task again that ended");
                lock(&state).missing.insert(id, missing);
                pause.wait().await;
                lock(&state).missing.remove(&id);
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
        lock(&self.state).running.insert(id, name.clone());
        let entry = Entry { id, name, state: self.state.clone(), stops };
        self.tracker.spawn(async move {
            let ended = catch(TASK, &entry.name, work).await;
            entry.ended(ended);
        });
    }

    /// Makes `work` one of the owner's tasks without starting it. What runs it must drop it when it is aborted.
    pub(crate) fn adopt<F: Future>(
        &self,
        name: &Arc<str>,
        work: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.state).running.insert(id, name.clone());
        let entry = Entry { id, name: name.clone(), state: self.state.clone(), stops: None };
        self.tracker.track_future(async move {
            let _entry = entry;
            work.await
        })
    }

    /// The names of the tasks that run now.
    pub fn running(&self) -> Vec<Arc<str>> {
        lock(&self.state).running.values().cloned().collect()
    }

    /// The tasks that ought to run and do not: loops that wait to be begun again, and what was essential.
    pub fn missing(&self) -> Vec<Missing> {
        lock(&self.state).missing.values().cloned().collect()
    }

    /// The essential task that stopped the process by ending before it was asked to.
    pub fn failure(&self) -> Option<Missing> {
        lock(&self.state).ended.clone()
    }

    /// Says that `name` has still to begin its service, until the value that comes back is dropped.
    pub fn unready(&self, name: &str) -> Unready {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.state).unready.insert(id, name.into());
        Unready { id, state: self.state.clone() }
    }

    /// What has still to begin its service.
    pub fn not_ready(&self) -> Vec<Arc<str>> {
        lock(&self.state).unready.values().cloned().collect()
    }

    /// Begins shutdown and waits at most `grace` for the tasks to end.
    pub async fn drain(&self, grace: Duration) -> Drained {
        self.shutdown.stop();
        self.tracker.close();
        let _ = tokio::time::timeout(grace, self.tracker.wait()).await;
        Drained { unfinished: self.running() }
    }
}

/// The worker under whose name panics of whole tasks are counted.
const TASK: &str = "task";

/// Stands for something that has still to begin its service; see [`Tasks::unready`].
#[must_use = "dropped at once it says that the service has begun"]
pub struct Unready {
    id: u64,
    state: Arc<Mutex<State>>,
}

impl Drop for Unready {
    fn drop(&mut self) {
        lock(&self.state).unready.remove(&self.id);
    }
}

/// Takes the task off the list however it ends, with its runtime too.
struct Entry {
    id: u64,
    name: Arc<str>,
    state: Arc<Mutex<State>>,
    stops: Option<Shutdown>,
}

impl Entry {
    fn ended(self, how: Result<(), Panicked>) {
        if self.stops.as_ref().is_none_or(Shutdown::is_stopping) {
            return;
        }
        let missing = Missing::new(&self.name, how);
        tracing::error!(task = %self.name, "an essential task ended by itself: stopping");
        let mut state = lock(&self.state);
        state.missing.insert(self.id, missing.clone());
        state.ended.get_or_insert(missing);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.state).running.remove(&self.id);
        if let Some(shutdown) = &self.stops {
            shutdown.stop();
        }
    }
}

/// The state is changed in single steps, so that it holds after a panic.
fn lock(mutex: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
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
    async fn an_essential_task_that_ends_when_asked_is_no_failure() {
        let tasks = Tasks::new(Shutdown::new());
        let shutdown = tasks.shutdown().clone();
        tasks.essential("core", async move { shutdown.stopping().await });
        assert!(tasks.drain(Duration::from_secs(5)).await.unfinished.is_empty());
        assert_eq!((tasks.missing(), tasks.failure()), (vec![], None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_or_ends_is_missing_until_it_is_begun_again() {
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
    fn what_is_not_ready_is_named_until_it_is() {
        let tasks = Tasks::new(Shutdown::new());
        let (a, _b) = (tasks.unready("a"), tasks.unready("b"));
        assert_eq!(tasks.not_ready(), ["a".into(), "b".into()]);
        drop(a);
        assert_eq!(tasks.not_ready(), ["b".into()]);
    }
}

//! Catches panics at the boundary of one piece of work: a request, a key, one Pod, one packet.
//!
//! After a panic, the caller continues with the next piece of work and drops or retries the one that panicked. This is
//! sound only if the state that both share is valid after any panic. No lock of the workspace is poisoned by a
//! panic (`parking_lot`), so the guarded state is either changed in one step or rebuilt after a panic.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::Display,
    future::Future,
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use pin_project_lite::pin_project;

use crate::backoff::Backoff;

thread_local! {
    /// The number of nested catches around the code that this thread runs now.
    static CATCHES: Cell<u32> = const { Cell::new(0) };
    /// The location of the last panic on this thread. The panic hook sets it for the catch that handles the panic.
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The number of caught panics by worker.
static COUNTS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// A panic that was caught, counted and logged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{worker} panicked: {message}")]
pub struct CaughtPanic {
    /// The kind of work, as in the metrics and the log.
    pub worker: &'static str,
    /// The panic message.
    pub message: String,
}

pin_project! {
    /// A future that catches panics; see [`catch`].
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct Catch<S, F> {
        worker: &'static str,
        subject: S,
        #[pin]
        work: F,
    }
}

/// Runs `work`. A panic is counted for `worker` and logged with `subject`, which identifies the work. State that the
/// work shares with others must be valid wherever the work stops.
pub fn catch<S: Display, F: Future>(worker: &'static str, subject: S, work: F) -> Catch<S, F> {
    Catch { worker, subject, work }
}

impl<S: Display, F: Future> Future for Catch<S, F> {
    type Output = Result<F::Output, CaughtPanic>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match catch_panic(|| this.work.poll(context)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(payload) => Poll::Ready(Err(report(this.worker, this.subject, &*payload))),
        }
    }
}

/// Runs synchronous work like [`catch`].
pub fn catch_sync<T>(
    worker: &'static str,
    subject: impl Display,
    work: impl FnOnce() -> T,
) -> Result<T, CaughtPanic> {
    catch_panic(work).map_err(|payload| report(worker, &subject, &*payload))
}

/// The first and the longest delay before work that panicked is started again.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);
/// The run time after which the backoff is reset.
const STEADY: Duration = Duration::from_secs(60);

/// The backoff between two runs of work that panicked or ended unexpectedly.
pub(crate) struct RestartBackoff {
    backoff: Backoff,
    began: tokio::time::Instant,
}

impl RestartBackoff {
    pub(crate) fn begin() -> Self {
        Self { backoff: Backoff::new(FIRST, LONGEST), began: tokio::time::Instant::now() }
    }

    pub(crate) async fn wait(&mut self) {
        if self.began.elapsed() >= STEADY {
            self.backoff.reset();
        }
        tokio::time::sleep(self.backoff.next(0.0)).await;
        self.began = tokio::time::Instant::now();
    }
}

/// Runs `work` until it ends without a panic. After a panic, `work` is called again with an increasing delay.
pub async fn until_it_ends<T, F: Future<Output = T>>(
    worker: &'static str,
    subject: impl Display,
    mut work: impl FnMut() -> F,
) -> T {
    let mut pause = RestartBackoff::begin();
    loop {
        if let Ok(output) = catch(worker, &subject, async { work().await }).await {
            return output;
        }
        pause.wait().await;
    }
}

/// Logs a panic from the process's panic hook, or leaves it to the [`catch`] around the work. Returns `false` if no log
/// is set up yet.
pub fn note_panic(panic: &PanicHookInfo<'_>) -> bool {
    if !tracing::dispatcher::has_been_set() {
        return false;
    }
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    if CATCHES.get() > 0 {
        LOCATION.set(Some(location));
    } else {
        let thread = std::thread::current();
        let message = panic.payload_as_str().unwrap_or(NO_TEXT);
        tracing::error!(thread = thread.name(), message, location, "panicked");
    }
    true
}

/// Returns the number of caught panics by worker.
pub fn panics() -> BTreeMap<&'static str, u64> {
    COUNTS.lock().clone()
}

const NO_TEXT: &str = "(no message)";

/// A panic that is passed from the thread where it happened to the task that waits for the work.
pub(crate) struct Forwarded {
    payload: Box<dyn Any + Send>,
    location: Option<String>,
}

impl Forwarded {
    /// Resumes the panic in the waiting task, where the surrounding [`catch`] reports it.
    pub(crate) fn resume(self) -> ! {
        LOCATION.set(self.location);
        std::panic::resume_unwind(self.payload)
    }
}

/// Polls `work` and returns a panic as an error.
pub(crate) async fn forward<F: Future>(work: F) -> Result<F::Output, Forwarded> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| match catch_panic(|| work.as_mut().poll(context)) {
        Ok(poll) => poll.map(Ok),
        Err(payload) => Poll::Ready(Err(Forwarded { payload, location: LOCATION.take() })),
    })
    .await
}

fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    CATCHES.set(CATCHES.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    CATCHES.set(CATCHES.get() - 1);
    result
}

fn report(worker: &'static str, subject: &impl Display, payload: &(dyn Any + Send)) -> CaughtPanic {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or(NO_TEXT).to_owned();
    let location = LOCATION.take().unwrap_or_default();
    *COUNTS.lock().entry(worker).or_default() += 1;
    tracing::error!(worker, %subject, message, location, "panicked");
    CaughtPanic { worker, message }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn catches_counts_and_reports_panic_with_its_message() {
        let number = 7;
        let panicked = catch("catching", "x", async { panic!("number {number}") }).await;
        let expected = CaughtPanic { worker: "catching", message: "number 7".to_owned() };
        assert_eq!(panicked, Err::<(), _>(expected));
        let later = catch("catching", "x", async {
            tokio::task::yield_now().await;
            panic!("plain");
        });
        assert_eq!(later.await.map_err(|p| p.message), Err::<(), _>("plain".to_owned()));
        assert_eq!(catch("catching", "x", async { 5 }).await, Ok(5));
        let odd = catch_sync("catching", "x", || std::panic::panic_any(5));
        assert_eq!(odd.map_err(|p| p.message), Err::<(), _>(NO_TEXT.to_owned()));
        assert_eq!(panics()["catching"], 3);
        assert_eq!(panics()["catching"], 3);
        assert_eq!(CATCHES.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn restarts_panicking_work_with_growing_delay() {
        let (tries, start) = (AtomicU32::new(0), tokio::time::Instant::now());
        let ended = until_it_ends("trying", "x", || async {
            match tries.fetch_add(1, Ordering::Relaxed) {
                3 => "done",
                _ => panic!("on purpose"),
            }
        });
        assert_eq!(ended.await, "done");
        assert_eq!(start.elapsed(), Duration::from_millis(100 + 200 + 400));
    }
}

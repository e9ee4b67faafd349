//! Panics, caught where one piece of work ends: a request, a key, one Pod, one packet.
//!
//! Whoever catches goes on with the next piece of work, and either gives up the one that panicked or comes back to it
//! later. That is sound only where what both share holds after any panic: every lock of the workspace goes on after one
//! (`PoisonError::into_inner`), so that what a lock guards is either changed in one step or made anew after a panic.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::Display,
    future::Future,
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind},
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::Backoff;

thread_local! {
    /// How many catches are around what this thread runs now.
    static CATCHES: Cell<u32> = const { Cell::new(0) };
    /// Where this thread panicked last; left by the hook for whoever catches.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// How often was caught, by what was at work.
static COUNTS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// A panic that was caught, counted and logged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{worker} panicked: {message}")]
pub struct Panicked {
    pub worker: &'static str,
    pub message: String,
}

pin_project! {
    /// See [`catch`].
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct Catch<S, F> {
        worker: &'static str,
        subject: S,
        #[pin]
        work: F,
    }
}

/// Runs `work`; if it panics, counts that under the `worker`'s name, and logs it with the `subject` of the work.
/// What the work shares with others must hold wherever it stops.
pub fn catch<S: Display, F: Future>(worker: &'static str, subject: S, work: F) -> Catch<S, F> {
    Catch { worker, subject, work }
}

impl<S: Display, F: Future> Future for Catch<S, F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match caught(|| this.work.poll(context)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(payload) => Poll::Ready(Err(tell(this.worker, this.subject, &*payload))),
        }
    }
}

/// As [`catch`], for work that does not wait.
pub fn catch_sync<T>(
    worker: &'static str,
    subject: impl Display,
    work: impl FnOnce() -> T,
) -> Result<T, Panicked> {
    caught(work).map_err(|payload| tell(worker, &subject, &*payload))
}

/// The first wait before what panicked is begun again, and the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);
/// What ran for so long is not failing all the time.
const STEADY: Duration = Duration::from_secs(60);

/// How long to wait before what ended against its purpose is begun again.
pub(crate) struct Pause {
    backoff: Backoff,
    began: tokio::time::Instant,
}

impl Pause {
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

/// Runs `work` until it ends without a panic; after one it is made anew, later each time.
pub async fn until_it_ends<T, F: Future<Output = T>>(
    worker: &'static str,
    subject: impl Display,
    mut work: impl FnMut() -> F,
) -> T {
    let mut pause = Pause::begin();
    loop {
        if let Ok(output) = catch(worker, &subject, async { work().await }).await {
            return output;
        }
        pause.wait().await;
    }
}

/// For the process' panic hook: returns whether the log tells of the panic, now or when it is caught.
pub fn note_panic(panic: &PanicHookInfo<'_>) -> bool {
    if !tracing::dispatcher::has_been_set() {
        return false;
    }
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    if CATCHES.get() > 0 {
        PLACE.set(Some(place));
    } else {
        let thread = std::thread::current();
        let message = panic.payload_as_str().unwrap_or(NO_TEXT);
        tracing::error!(thread = thread.name(), message, place, "panicked");
    }
    true
}

/// How many panics were caught, by worker.
pub fn panics() -> BTreeMap<&'static str, u64> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

const NO_TEXT: &str = "(it said nothing)";

/// A panic on its way from the thread where it happened to the task that waits for the work.
pub(crate) struct Forwarded {
    payload: Box<dyn Any + Send>,
    place: Option<String>,
}

impl Forwarded {
    /// Panics here as the work did there, for the [`catch`] around the task that waits.
    pub(crate) fn resume(self) -> ! {
        PLACE.set(self.place);
        std::panic::resume_unwind(self.payload)
    }
}

/// Polls `work` and returns its panic instead of letting it through.
pub(crate) async fn forward<F: Future>(work: F) -> Result<F::Output, Forwarded> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| match caught(|| work.as_mut().poll(context)) {
        Ok(poll) => poll.map(Ok),
        Err(payload) => Poll::Ready(Err(Forwarded { payload, place: PLACE.take() })),
    })
    .await
}

fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    CATCHES.set(CATCHES.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    CATCHES.set(CATCHES.get() - 1);
    result
}

fn tell(worker: &'static str, subject: &impl Display, payload: &(dyn Any + Send)) -> Panicked {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or(NO_TEXT).to_owned();
    let place = PLACE.take().unwrap_or_default();
    *COUNTS.lock().unwrap_or_else(PoisonError::into_inner).entry(worker).or_default() += 1;
    tracing::error!(worker, %subject, message, place, "panicked");
    Panicked { worker, message }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_panic_is_caught_counted_and_told_with_its_message() {
        let number = 7;
        let panicked = catch("catching", "x", async { panic!("number {number}") }).await;
        let expected = Panicked { worker: "catching", message: "number 7".to_owned() };
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
    async fn what_panics_is_begun_again_later_each_time_until_it_ends() {
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

//! The meter of a request: its budget of processor time, its deadline, and the list of calls that are computing.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use api_meta::{
    Status,
    steps::{self, BudgetUsedUp},
};
use parking_lot::{Mutex, MutexGuard};
use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::handlers::call::Call;

/// The interval at which a meter reads the thread's clock, which is a system call.
const RESOLUTION: Duration = Duration::from_millis(1);
/// The time after which a computation without a pause is logged. It blocks its thread, and only counting its steps
/// would end it.
const LONG: Duration = Duration::from_secs(5);

/// The calls that compute now: from the first reading of the thread's clock until the poll ends.
#[derive(Default)]
pub(super) struct RunningCalls(Mutex<BTreeMap<usize, (Instant, Arc<Call>)>>);

impl RunningCalls {
    fn calls(&self) -> MutexGuard<'_, BTreeMap<usize, (Instant, Arc<Call>)>> {
        self.0.lock()
    }

    /// Logs the calls that compute for long, to explain why the server does not answer.
    pub(super) async fn log(&self) {
        let mut every = tokio::time::interval(LONG);
        loop {
            every.tick().await;
            let long = |entry: &&(Instant, Arc<Call>)| entry.0.elapsed() >= LONG;
            let calls: Vec<_> = self.calls().values().filter(long).cloned().collect();
            for (since, call) in calls {
                let (user, path, seconds) =
                    (&call.user.name, &call.info.path, since.elapsed().as_secs());
                tracing::error!(verb = call.info.verb, %path, %user, seconds, "a request computes without a pause");
            }
        }
    }
}

/// The budget of one attempt to answer a request.
pub(super) struct Meter {
    pub(super) most: Duration,
    /// The call, and the list that names it while it computes.
    about: Option<(Arc<RunningCalls>, Arc<Call>)>,
    deadline: Option<Instant>,
    committed: AtomicBool,
    abandoned: AtomicBool,
    usage: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    /// The processor time of completed polls.
    before: Duration,
    /// The current poll, from its first check on.
    poll: Option<Running>,
    /// `true` if the deadline ended the attempt.
    is_late: bool,
}

struct Running {
    /// The time until which the thread's clock need not be read again.
    next: Instant,
    /// The value of the thread's clock at the first reading.
    began: Option<Duration>,
}

impl Meter {
    pub(super) fn new(most: Duration, deadline: Option<Instant>) -> Self {
        Self {
            most,
            about: None,
            deadline,
            committed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            usage: Mutex::default(),
        }
    }

    /// Adds the call to the list of busy calls while it computes.
    pub(super) fn listed(self, busy: &Arc<RunningCalls>, call: &Arc<Call>) -> Self {
        Self { about: Some((busy.clone(), call.clone())), ..self }
    }

    /// The meter's key in the list of busy calls.
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock()
    }

    pub(super) fn is_late(&self) -> bool {
        self.usage().is_late
    }

    /// Ends a poll: the thread runs other work until the next one.
    fn pause(&self) {
        let mut usage = self.usage();
        if let Some(Running { began: Some(began), .. }) = usage.poll.take() {
            usage.before += rt::processor_time().saturating_sub(began);
            if let Some((busy, _)) = &self.about {
                busy.calls().remove(&self.id());
            }
        }
    }

    /// Returns the processor time of completed polls.
    pub(super) fn used(&self) -> Duration {
        self.usage().before
    }

    /// Returns the response for a request that the meter has ended.
    pub(super) fn refusal(&self, call: &Call) -> Box<Status> {
        if self.is_late() {
            return Box::new(Status::timeout(
                "request did not complete within the allotted timeout",
                0,
            ));
        }
        let most = self.most.as_secs_f64();
        let reason = format!("the request takes more than {most} seconds of processor time");
        Box::new(match call.received().length() {
            Some(0) => Status::timeout(format!("{reason}; ask for less, or with a limit"), 0),
            _ => Status::request_too_large(format!("{reason}; send a smaller object or patch")),
        })
    }
}

impl steps::Meter for Meter {
    fn may_continue(&self) -> bool {
        if self.committed.load(Ordering::Relaxed) {
            return true;
        }
        if self.abandoned.load(Ordering::Relaxed) {
            return false;
        }
        let now = Instant::now();
        let mut usage = self.usage();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            usage.is_late = true;
            return false;
        }
        let before = usage.before;
        let poll = usage.poll.get_or_insert(Running { next: now + RESOLUTION, began: None });
        if now < poll.next {
            return true;
        }
        let clock = rt::processor_time();
        let began = *poll.began.get_or_insert_with(|| {
            if let Some((busy, call)) = &self.about {
                busy.calls().insert(self.id(), (now, call.clone()));
            }
            clock
        });
        poll.next = now + RESOLUTION;
        before + clock.saturating_sub(began) < self.most
    }

    fn commit(&self) {
        self.committed.store(true, Ordering::Relaxed);
    }
}

/// Ends the computation of a request when its client disconnects.
pub(super) struct AbandonOnDrop(pub(super) Arc<Meter>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Ordering::Relaxed);
    }
}

pin_project! {
    struct Metered<F> {
        meter: Arc<Meter>,
        #[pin]
        work: F,
    }
}

/// Runs a future under a meter, which adds up the processor time of each poll.
pub(super) fn metered<F: Future>(
    meter: &Arc<Meter>,
    work: F,
) -> impl Future<Output = Result<F::Output, BudgetUsedUp>> {
    Metered { meter: meter.clone(), work }
}

impl<F: Future> Future for Metered<F> {
    type Output = Result<F::Output, BudgetUsedUp>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let meter: Arc<dyn steps::Meter> = this.meter.clone();
        let polled = steps::metered(Some(&meter), || this.work.poll(context));
        this.meter.pause();
        match polled {
            Ok(poll) => poll.map(Ok),
            Err(ended) => Poll::Ready(Err(ended)),
        }
    }
}

/// Runs a nested request without the meter of the request that waits for it.
pub(super) async fn unmetered<F: Future>(work: F) -> F::Output {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        let polled = steps::metered(None, || work.as_mut().poll(context));
        polled.unwrap_or_else(|BudgetUsedUp| unreachable!("nothing ends what has no meter"))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(until: impl Fn() -> bool) {
        while !until() {
            steps::spend(1);
        }
    }

    #[tokio::test]
    async fn ends_work_that_uses_up_its_processor_time() {
        let meter = Arc::new(Meter::new(Duration::from_millis(5), None));
        let caught =
            rt::catch("a metered test", "x", metered(&meter, async { spin(|| false) })).await;
        assert_eq!(caught, Ok(Err(BudgetUsedUp)));
        assert!(!rt::panics().contains_key("a metered test"));
        assert!(!meter.is_late());
        let meter = Arc::new(Meter::new(Duration::from_secs(60), None));
        assert_eq!(metered(&meter, async { 5 }).await, Ok(5));
    }

    #[tokio::test]
    async fn adds_up_processor_time_of_all_polls() {
        let meter = Arc::new(Meter::new(Duration::from_millis(40), None));
        let work = async {
            loop {
                let began = rt::processor_time();
                spin(|| rt::processor_time() - began > Duration::from_millis(10));
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(metered(&meter, work).await, Err::<(), _>(BudgetUsedUp));
    }

    #[tokio::test]
    async fn does_not_count_time_spent_waiting() {
        let meter = Arc::new(Meter::new(Duration::from_millis(50), None));
        let work = async {
            let began = rt::processor_time();
            spin(|| rt::processor_time() - began > Duration::from_millis(5));
            let never = std::future::pending::<()>();
            tokio::time::timeout(Duration::from_millis(100), never).await.unwrap_err();
            steps::spend(10 * steps::CHUNK);
        };
        assert_eq!(metered(&meter, work).await, Ok(()));
    }

    #[tokio::test]
    async fn ends_work_after_its_deadline_or_its_client() {
        let meter = Arc::new(Meter::new(Duration::from_secs(60), Some(Instant::now())));
        assert_eq!(metered(&meter, async { spin(|| false) }).await, Err(BudgetUsedUp));
        assert!(meter.is_late());
        let meter = Arc::new(Meter::new(Duration::from_secs(60), None));
        drop(AbandonOnDrop(meter.clone()));
        assert_eq!(metered(&meter, async { spin(|| false) }).await, Err(BudgetUsedUp));
    }

    #[tokio::test]
    async fn does_not_end_work_that_has_written() {
        let meter = Arc::new(Meter::new(Duration::from_millis(1), Some(Instant::now())));
        let work = async {
            steps::commit();
            let began = rt::processor_time();
            spin(|| rt::processor_time() - began > Duration::from_millis(20));
        };
        assert_eq!(metered(&meter, work).await, Ok(()));
    }

    #[tokio::test]
    async fn keeps_nested_requests_out_of_the_meter() {
        let meter = Arc::new(Meter::new(Duration::from_millis(1), None));
        let work = unmetered(async {
            let began = rt::processor_time();
            spin(|| rt::processor_time() - began > Duration::from_millis(20));
        });
        assert_eq!(metered(&meter, work).await, Ok(()));
    }
}

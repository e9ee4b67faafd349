//! The asynchronous part: queues the tasks of requests until `Flow` starts them.

use std::{any::Any, collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use api_meta::{Attributes, Changed, GroupResource, Observer, Status};
use tokio::sync::oneshot;

use crate::{
    bootstrap::{FLOW_SCHEMAS, PRIORITY_LEVELS},
    controller::{Arrival, Flow, LevelState, Verdict},
    level::{RejectReason, Ticket},
};

/// The flow control of a server, shared by all of its requests.
pub struct Gate {
    state: Mutex<State>,
    epoch: Instant,
    /// The maximum time in a queue.
    patience: Duration,
}

struct State {
    flow: Flow,
    /// The queued requests. Their number is limited by the limits of the queues.
    queued: HashMap<Ticket, oneshot::Sender<()>>,
    /// The times at which seats are released, even if their permits still exist.
    deadlines: HashMap<Ticket, Duration>,
}

/// The error of a rejected request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("flow control rejected the request: {} in priority level {level} of flow schema {schema}", reason.as_str())]
pub struct Rejection {
    /// The name of the flow schema.
    pub schema: Arc<str>,
    /// The name of the priority level.
    pub level: Arc<str>,
    /// The reason.
    pub reason: RejectReason,
}

impl Rejection {
    /// Returns the response: 429, with `Retry-After`.
    pub fn status(&self) -> Status {
        Status::too_many_requests("Too many requests, please try again later.", 1)
    }
}

/// A request that may run until its permit is dropped.
pub struct AdmittedRequest {
    /// The matched configuration. `schema_uid` and `level_uid` are sent as `X-Kubernetes-PF-FlowSchema-UID` and
    /// `X-Kubernetes-PF-PriorityLevel-UID`.
    pub arrival: Arrival,
    /// The permit with the request's seats.
    pub permit: Permit,
}

/// Holds the seats of a request. A watch drops it after its initial events.
pub struct Permit {
    gate: Arc<Gate>,
    held: Option<SeatState>,
    /// `true` if the seats are released at a deadline.
    has_deadline: bool,
    /// A value that is dropped with the permit.
    kept: Option<Box<dyn Any + Send + Sync>>,
}

impl Permit {
    /// Keeps a value until the permit is dropped.
    pub fn keep(&mut self, value: impl Any + Send + Sync) {
        self.kept = Some(Box::new(value));
    }

    /// Limits the time that the seats are held, for requests that a client can prolong: a client that never reads the
    /// initial events of a watch would otherwise hold the seat indefinitely.
    #[must_use]
    pub fn for_at_most(mut self, most: Duration) -> Self {
        if let Some(SeatState::Running(ticket)) = self.held {
            let until = self.gate.now() + most;
            self.gate.lock().deadlines.insert(ticket, until);
            self.has_deadline = true;
        }
        self
    }
}

#[derive(Clone, Copy)]
enum SeatState {
    Running(Ticket),
    Waiting(Ticket),
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let now = self.gate.now();
        let mut state = self.gate.lock();
        let started = match held {
            SeatState::Running(ticket)
                if self.has_deadline && state.deadlines.remove(&ticket).is_none() =>
            {
                return;
            }
            SeatState::Running(ticket) => state.flow.finish(ticket, now),
            // Given up, or started just when the caller disconnected.
            SeatState::Waiting(ticket) => match state.queued.remove(&ticket) {
                Some(_) => state.flow.give_up(ticket, now),
                None => state.flow.finish(ticket, now),
            },
        };
        state.wake(started);
    }
}

impl State {
    fn wake(&mut self, started: Vec<Ticket>) {
        for ticket in started {
            if let Some(waiter) = self.queued.remove(&ticket) {
                // If the receiver is gone, its permit ends the request.
                waiter.send(()).ok();
            }
        }
    }
}

impl Gate {
    /// Creates the flow control. `seats` is the sum of `--max-requests-inflight` and
    /// `--max-mutating-requests-inflight`, and `patience` the maximum time in a queue.
    pub fn new(seats: u32, patience: Duration) -> Arc<Self> {
        let state =
            State { flow: Flow::new(seats), queued: HashMap::new(), deadlines: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state), epoch: Instant::now(), patience })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Waits until the request may run. Dropping the future, or later the permit, releases the seats.
    pub async fn enter(
        self: &Arc<Self>,
        request: &Attributes<'_>,
        seats: u32,
    ) -> Result<AdmittedRequest, Rejection> {
        let (arrival, waiter, permit) = self.arrive(request, seats);
        let rejected = |reason| Rejection {
            schema: arrival.schema.clone(),
            level: arrival.level.clone(),
            reason,
        };
        if let Verdict::Reject(reason) = arrival.verdict {
            return Err(rejected(reason));
        }
        let mut permit = permit;
        if let Some(waiter) = waiter {
            if !matches!(tokio::time::timeout(self.patience, waiter).await, Ok(Ok(()))) {
                return Err(rejected(RejectReason::TimeOut));
            }
            if let Some(SeatState::Waiting(ticket)) = permit.held {
                permit.held = Some(SeatState::Running(ticket));
            }
        }
        Ok(AdmittedRequest { arrival, permit })
    }

    fn arrive(
        self: &Arc<Self>,
        request: &Attributes<'_>,
        seats: u32,
    ) -> (Arrival, Option<oneshot::Receiver<()>>, Permit) {
        let now = self.now();
        let mut state = self.lock();
        let arrival = state.flow.arrive(request, seats, now);
        let (held, waiter) = match arrival.verdict {
            Verdict::Exempt | Verdict::Reject(_) => (None, None),
            Verdict::Run(ticket) => (Some(SeatState::Running(ticket)), None),
            Verdict::Wait(ticket) => {
                let (wake, waiter) = oneshot::channel();
                state.queued.insert(ticket, wake);
                (Some(SeatState::Waiting(ticket)), Some(waiter))
            }
        };
        drop(state);
        (arrival, waiter, Permit { gate: self.clone(), held, has_deadline: false, kept: None })
    }

    /// Moves unused seats to levels with demand, and releases seats whose time is over. To be called about every ten
    /// seconds.
    pub fn rebalance(&self) {
        let now = self.now();
        let mut state = self.lock();
        let overdue: Vec<Ticket> = state
            .deadlines
            .extract_if(|_, until| *until <= now)
            .map(|(ticket, _)| ticket)
            .collect();
        for ticket in overdue {
            let started = state.flow.finish(ticket, now);
            state.wake(started);
        }
        let started = state.flow.rebalance(now);
        state.wake(started);
    }

    /// Returns the states of all limited levels, for metrics.
    pub fn levels(&self) -> Vec<LevelState> {
        self.lock().flow.levels()
    }
}

impl Observer for Gate {
    fn resources(&self) -> &[GroupResource] {
        const WATCHED: [GroupResource; 2] = [FLOW_SCHEMAS, PRIORITY_LEVELS];
        &WATCHED
    }

    fn changed(&self, change: Changed<'_>) {
        let now = self.now();
        let mut state = self.lock();
        let started = state.flow.changed(change, now);
        state.wake(started);
    }
}

/// The maximum number of seats of a request.
pub(crate) const MAX_SEATS: u32 = 10;

impl Gate {
    /// Returns the seats of a list: one for each hundred objects, up to upstream's limit.
    pub fn seats_of_list(objects: u64) -> u32 {
        u32::try_from(objects.div_ceil(100)).unwrap_or(MAX_SEATS).clamp(1, MAX_SEATS)
    }

    /// Returns the seats of a request with a body of this length. The longest body that the API accepts has as many as
    /// the largest list.
    pub fn seats_of_body(length: u64) -> u32 {
        const OF_ONE: u64 = 320 << 10;
        u32::try_from(length.div_ceil(OF_ONE)).unwrap_or(MAX_SEATS).clamp(1, MAX_SEATS)
    }
}

//! The door of a server: waits where `Flow` says wait.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use api_meta::{Attributes, Changed, GroupResource, Observer, Status};
use tokio::sync::oneshot;

use crate::{
    bootstrap::{FLOW_SCHEMAS, PRIORITY_LEVELS},
    controller::{Arrival, Flow, LevelState, Verdict},
    level::{Ticket, Why},
};

/// A server's flow control, shared by all of its requests.
pub struct Gate {
    state: Mutex<State>,
    epoch: Instant,
    /// The longest that a request may wait.
    patience: Duration,
}

struct State {
    flow: Flow,
    /// Those who wait; a bound on them is the bound on the queues.
    waiting: HashMap<Ticket, oneshot::Sender<()>>,
    /// Seats that go back at a time, whether or not their permits are dropped by then.
    lent: HashMap<Ticket, Duration>,
}

/// The request was turned away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("flow control turned the request away: {} in priority level {level} of flow schema {schema}", why.as_str())]
pub struct Rejected {
    pub schema: Arc<str>,
    pub level: Arc<str>,
    pub why: Why,
}

impl Rejected {
    /// The answer: 429, with `Retry-After`.
    pub fn status(&self) -> Status {
        Status::too_many_requests("Too many requests, please try again later.", 1)
    }
}

/// A request that may run, until its permit is dropped.
pub struct Entered {
    /// `schema_uid` and `level_uid` go out as `X-Kubernetes-PF-FlowSchema-UID` and `X-Kubernetes-PF-PriorityLevel-UID`.
    pub arrival: Arrival,
    pub permit: Permit,
}

/// Holds a request's seats. A watch drops it when its first events are out.
pub struct Permit {
    gate: Arc<Gate>,
    held: Option<Held>,
    lent: bool,
}

impl Permit {
    /// Holds the seats for no longer than that, for one whose end is up to a client: who does not read what a watch
    /// begins with would hold his seat for ever.
    #[must_use]
    pub fn for_at_most(mut self, most: Duration) -> Self {
        if let Some(Held::Running(ticket)) = self.held {
            let until = self.gate.now() + most;
            self.gate.lock().lent.insert(ticket, until);
            self.lent = true;
        }
        self
    }
}

#[derive(Clone, Copy)]
enum Held {
    Running(Ticket),
    Waiting(Ticket),
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let now = self.gate.now();
        let mut state = self.gate.lock();
        let started = match held {
            Held::Running(ticket) if self.lent && state.lent.remove(&ticket).is_none() => return,
            Held::Running(ticket) => state.flow.finish(ticket, now),
            // Given up, or let in at the moment when the caller went away.
            Held::Waiting(ticket) => match state.waiting.remove(&ticket) {
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
            if let Some(waiter) = self.waiting.remove(&ticket) {
                // One who has just gone away finishes by dropping its permit.
                waiter.send(()).ok();
            }
        }
    }
}

impl Gate {
    /// `seats` is the sum of `--max-requests-inflight` and `--max-mutating-requests-inflight`.
    pub fn new(seats: u32, patience: Duration) -> Arc<Self> {
        let state = State { flow: Flow::new(seats), waiting: HashMap::new(), lent: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state), epoch: Instant::now(), patience })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Waits for the request's turn. Dropping the future, or later the permit, gives the seats back.
    pub async fn enter(
        self: &Arc<Self>,
        request: &Attributes<'_>,
        seats: u32,
    ) -> Result<Entered, Rejected> {
        let (arrival, waiter, permit) = self.arrive(request, seats);
        let rejected =
            |why| Rejected { schema: arrival.schema.clone(), level: arrival.level.clone(), why };
        if let Verdict::Reject(why) = arrival.verdict {
            return Err(rejected(why));
        }
        let mut permit = permit;
        if let Some(waiter) = waiter {
            if !matches!(tokio::time::timeout(self.patience, waiter).await, Ok(Ok(()))) {
                return Err(rejected(Why::TimeOut));
            }
            if let Some(Held::Waiting(ticket)) = permit.held {
                permit.held = Some(Held::Running(ticket));
            }
        }
        Ok(Entered { arrival, permit })
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
            Verdict::Run(ticket) => (Some(Held::Running(ticket)), None),
            Verdict::Wait(ticket) => {
                let (wake, waiter) = oneshot::channel();
                state.waiting.insert(ticket, wake);
                (Some(Held::Waiting(ticket)), Some(waiter))
            }
        };
        drop(state);
        (arrival, waiter, Permit { gate: self.clone(), held, lent: false })
    }

    /// Moves unused seats to where they are wanted, and takes those back that were lent for long enough; the owner
    /// calls it every ten seconds.
    pub fn rebalance(&self) {
        let now = self.now();
        let mut state = self.lock();
        let overdue: Vec<Ticket> =
            state.lent.extract_if(|_, until| *until <= now).map(|(ticket, _)| ticket).collect();
        for ticket in overdue {
            let started = state.flow.finish(ticket, now);
            state.wake(started);
        }
        let started = state.flow.rebalance(now);
        state.wake(started);
    }

    /// The levels that limit anything, for metrics.
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

/// How many seats a list takes: one for each hundred objects that it looks at, within bounds.
pub(crate) const MAX_SEATS: u32 = 10;

impl Gate {
    /// What a list of so many objects takes: a seat for each hundred, up to upstream's limit.
    pub fn seats_of_list(objects: u64) -> u32 {
        u32::try_from(objects.div_ceil(100)).unwrap_or(MAX_SEATS).clamp(1, MAX_SEATS)
    }

    /// The seats of a request with a body of so many bytes: the longest body that the API takes has as many as the
    /// widest list.
    pub fn seats_of_body(length: u64) -> u32 {
        const OF_ONE: u64 = 320 << 10;
        u32::try_from(length.div_ceil(OF_ONE)).unwrap_or(MAX_SEATS).clamp(1, MAX_SEATS)
    }
}

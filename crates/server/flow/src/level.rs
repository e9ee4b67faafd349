//! A priority level: its seats and queues, with fair queuing and shuffle sharding.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

/// Identifies a request that runs or is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// The reason for which a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The queues of the request's flow are full.
    QueueFull,
    /// The level has no queues and no free seat.
    ConcurrencyLimit,
    /// The request waited for the maximum time.
    TimeOut,
}

impl RejectReason {
    /// Returns the name of the reason in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue-full",
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::TimeOut => "time-out",
        }
    }
}

/// The queues of a level, and the bounds of shuffle sharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queuing {
    pub(crate) queues: usize,
    pub(crate) hand_size: usize,
    pub(crate) length_limit: usize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Ticket, u32)>,
    executing: usize,
    /// The virtual time at which the next request would start if the queue had its fair share.
    next_start: f64,
}

struct RunningRequest {
    /// `None` if the level has no queues.
    queue: Option<usize>,
    seats: u32,
    since: Duration,
}

/// The assumed duration of a request in seconds, until its real one is known. A long duration is charged in advance and
/// refunded at the end.
const GUESS: f64 = 60.0;

/// A priority level: its queued and its running requests.
pub(crate) struct Level {
    /// The current limit of seats, which changes as levels borrow and lend.
    pub(crate) limit: u32,
    queuing: Option<Queuing>,
    queues: Vec<Queue>,
    running: HashMap<Ticket, RunningRequest>,
    in_use: u32,
    waiting_seats: u32,
    /// The maximum number of seats used or requested since the last query.
    peak: u32,
    virtual_now: f64,
    last: Duration,
}

/// The decision about a new request.
pub(crate) enum Decision {
    Run,
    Wait,
    Reject(RejectReason),
}

impl Level {
    pub(crate) fn new(limit: u32, queuing: Option<Queuing>) -> Self {
        let mut level = Self {
            limit,
            queuing: None,
            queues: Vec::new(),
            running: HashMap::new(),
            in_use: 0,
            waiting_seats: 0,
            peak: 0,
            virtual_now: 0.0,
            last: Duration::ZERO,
        };
        level.configure(queuing);
        level
    }

    /// Applies a configuration. Queues beyond the new number remain until they are empty.
    pub(crate) fn configure(&mut self, queuing: Option<Queuing>) {
        self.queuing = queuing.map(|q| Queuing {
            queues: q.queues.max(1),
            hand_size: q.hand_size.clamp(1, q.queues.max(1)),
            ..q
        });
        let wanted = self.queuing.map_or(0, |q| q.queues);
        if self.queues.len() < wanted {
            self.queues.resize_with(wanted, Queue::default);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting_seats == 0
    }

    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queues.iter().map(|q| q.waiting.len()).sum()
    }

    /// Returns the peak demand since the last call.
    pub(crate) fn take_peak(&mut self) -> u32 {
        let now = self.in_use + self.waiting_seats;
        std::mem::replace(&mut self.peak, now).max(now)
    }

    pub(crate) fn arrive(
        &mut self,
        ticket: Ticket,
        flow: u64,
        seats: u32,
        now: Duration,
    ) -> Decision {
        self.advance(now);
        let Some(queuing) = self.queuing else {
            if !self.fits(seats) {
                return Decision::Reject(RejectReason::ConcurrencyLimit);
            }
            self.start(ticket, None, seats, now);
            return Decision::Run;
        };
        let chosen = self.shortest_of_hand(flow, queuing);
        let queue = &mut self.queues[chosen];
        let full = queue.waiting.len() >= queuing.length_limit;
        if full && !(self.waiting_seats == 0 && self.in_use + seats <= self.limit) {
            return Decision::Reject(RejectReason::QueueFull);
        }
        if queue.waiting.is_empty() && queue.executing == 0 {
            queue.next_start = self.virtual_now;
        }
        queue.waiting.push_back((ticket, seats));
        self.waiting_seats += seats;
        self.peak = self.peak.max(self.in_use + self.waiting_seats);
        let started = self.dispatch(now);
        debug_assert!(
            started.iter().all(|t| *t == ticket),
            "a request that could run was left in a queue"
        );
        if started.contains(&ticket) { Decision::Run } else { Decision::Wait }
    }

    /// Ends a running request. Returns the requests that start as a result.
    pub(crate) fn finish(&mut self, ticket: Ticket, now: Duration) -> Vec<Ticket> {
        self.advance(now);
        let Some(running) = self.running.remove(&ticket) else { return Vec::new() };
        self.in_use -= running.seats;
        if let Some(queue) = running.queue.map(|q| &mut self.queues[q]) {
            queue.executing -= 1;
            let lasted = now.saturating_sub(running.since).as_secs_f64();
            queue.next_start -= (GUESS - lasted) * f64::from(running.seats);
        }
        self.dispatch(now)
    }

    /// Removes a queued request. Returns the requests that start as a result, as it may have blocked the head of a
    /// queue.
    pub(crate) fn give_up(&mut self, ticket: Ticket, now: Duration) -> Vec<Ticket> {
        self.advance(now);
        for queue in &mut self.queues {
            if let Some(at) = queue.waiting.iter().position(|(t, _)| *t == ticket) {
                if let Some((_, seats)) = queue.waiting.remove(at) {
                    self.waiting_seats -= seats;
                }
                break;
            }
        }
        self.dispatch(now)
    }

    /// Starts queued requests while there are enough seats.
    pub(crate) fn dispatch(&mut self, now: Duration) -> Vec<Ticket> {
        let mut started = Vec::new();
        while self.waiting_seats > 0
            && let Some(next) = self.next_queue()
        {
            let Some(&(ticket, seats)) = self.queues[next].waiting.front() else { break };
            if !self.fits(seats) {
                break;
            }
            self.queues[next].waiting.pop_front();
            self.waiting_seats -= seats;
            self.start(ticket, Some(next), seats, now);
            started.push(ticket);
        }
        started
    }

    fn start(&mut self, ticket: Ticket, queue: Option<usize>, seats: u32, now: Duration) {
        self.in_use += seats;
        self.peak = self.peak.max(self.in_use);
        if let Some(queue) = queue.map(|q| &mut self.queues[q]) {
            queue.executing += 1;
            queue.next_start += GUESS * f64::from(seats);
        }
        self.running.insert(ticket, RunningRequest { queue, seats, since: now });
    }

    /// Returns `true` if the seats are free. A request wider than the level runs alone.
    fn fits(&self, seats: u32) -> bool {
        self.in_use == 0 && self.limit > 0 || self.in_use + seats <= self.limit
    }

    /// Returns the queue whose request starts next.
    fn next_queue(&self) -> Option<usize> {
        let waiting = self.queues.iter().enumerate().filter(|(_, q)| !q.waiting.is_empty());
        waiting.min_by(|(_, a), (_, b)| a.next_start.total_cmp(&b.next_start)).map(|(i, _)| i)
    }

    /// Advances virtual time. It runs at the rate at which each busy queue would receive seats if they were shared
    /// equally.
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.last).as_secs_f64();
        self.last = self.last.max(now);
        if self.is_idle() {
            return;
        }
        let busy = self.queues.iter().filter(|q| q.executing > 0 || !q.waiting.is_empty()).count();
        if busy > 0 {
            let served = (self.in_use + self.waiting_seats).min(self.limit);
            self.virtual_now += passed * f64::from(served) / busy as f64;
        }
    }

    /// Returns the least loaded queue of the hand that is dealt to a flow.
    fn shortest_of_hand(&self, flow: u64, queuing: Queuing) -> usize {
        let load = |queue: &usize| {
            let queue = &self.queues[*queue];
            (queue.waiting.iter().map(|(_, seats)| seats).sum::<u32>(), queue.executing)
        };
        deal(flow, queuing).into_iter().min_by_key(load).unwrap_or(0)
    }
}

/// Deals a hand of distinct queues from the digits of the flow's number, so that two flows rarely share all of their
/// queues.
fn deal(flow: u64, queuing: Queuing) -> Vec<usize> {
    let mut rest = flow;
    let mut hand: Vec<usize> = Vec::with_capacity(queuing.hand_size);
    let mut sorted: Vec<usize> = Vec::with_capacity(queuing.hand_size);
    for dealt in 0..queuing.hand_size {
        let left = (queuing.queues - dealt) as u64;
        let mut card = (rest % left) as usize;
        rest /= left;
        // The card is an index among the queues that are not dealt yet.
        let mut lower = 0;
        while sorted.get(lower).is_some_and(|other| card >= *other) {
            card += 1;
            lower += 1;
        }
        sorted.insert(lower, card);
        hand.push(card);
    }
    hand
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn deals_distinct_queues(flow in any::<u64>(), queues in 1_usize..200, hand_size in 1_usize..12) {
            let queuing = Queuing { queues, hand_size: hand_size.min(queues), length_limit: 1 };
            let mut hand = deal(flow, queuing);
            prop_assert!(hand.iter().all(|q| *q < queues));
            hand.sort_unstable();
            hand.dedup();
            prop_assert_eq!(hand.len(), hand_size.min(queues));
        }
    }
}

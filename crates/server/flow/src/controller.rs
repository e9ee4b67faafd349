//! The state machine of all priority levels and flow schemas.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use api_meta::{Attributes, Changed, Tree as _};
use serde_json::Value;

use crate::{
    bootstrap::{FLOW_SCHEMAS, bootstrap_objects},
    level::{Decision, Level, Queuing, RejectReason, Ticket},
    schema::Schema,
};

/// The flow control of a server. See the crate's documentation.
pub struct Flow {
    /// The seats of the whole server.
    seats: u32,
    /// The schemas by precedence, then by name. The first match counts.
    schemas: Vec<Schema>,
    levels: BTreeMap<Arc<str>, LevelEntry>,
    /// The priority level of each ticket.
    tickets: HashMap<Ticket, Arc<str>>,
    next_ticket: u64,
}

struct LevelEntry {
    uid: Arc<str>,
    /// `None` for the exempt level.
    level: Option<Level>,
    shares: u32,
    lendable_percent: u32,
    /// The borrowing limit, as a percentage of the nominal seats; `None` without a limit.
    borrowing_percent: Option<u32>,
    /// `true` if the level is deleted, but still has requests.
    deleted: bool,
    /// The smoothed demand: it rises at once and falls slowly.
    demand: f64,
}

/// The verdict on a request, and the configuration that it matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The name of the flow schema; empty if none matched.
    pub schema: Arc<str>,
    /// The UID of the flow schema.
    pub schema_uid: Arc<str>,
    /// The name of the priority level.
    pub level: Arc<str>,
    /// The UID of the priority level.
    pub level_uid: Arc<str>,
    /// The verdict.
    pub verdict: Verdict,
}

/// The verdict on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is exempt: it uses no seats and has no ticket.
    Exempt,
    /// The request has its seats. They are released with the ticket.
    Run(Ticket),
    /// The request is queued. The ticket is returned later when it starts; until then it can be given up.
    Wait(Ticket),
    /// The response is 429: the queues are full, or the level has no queues and no free seat.
    Reject(RejectReason),
}

/// The state of a priority level, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelState {
    /// The name of the priority level.
    pub name: String,
    /// The seats that are the level's share, before lending and borrowing.
    pub nominal: u32,
    /// The seats that may currently be used.
    pub limit: u32,
    /// The seats in use.
    pub in_use: u32,
    /// The number of queued requests (not seats).
    pub waiting: usize,
}

impl Flow {
    /// Starts with the bootstrap configuration, so that requests are classified before any object was read.
    pub fn new(seats: u32) -> Self {
        let mut flow = Self {
            seats: seats.max(1),
            schemas: Vec::new(),
            levels: BTreeMap::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
        };
        for (resource, object) in bootstrap_objects() {
            flow.changed(Changed::of(resource, object), Duration::ZERO);
        }
        flow
    }

    /// Applies a change of a FlowSchema or PriorityLevelConfiguration. Returns the requests that start as a result.
    pub fn changed(&mut self, change: Changed<'_>, now: Duration) -> Vec<Ticket> {
        let subject: Arc<str> = change.name.into();
        if *change.resource == FLOW_SCHEMAS {
            self.schemas.retain(|schema| schema.name != subject);
            match change.object.map(Schema::read) {
                Some(Ok(schema)) => self.schemas.push(schema),
                Some(Err(error)) => {
                    tracing::error!(
                        schema = %subject,
                        %error,
                        "failed to read a FlowSchema; it matches nothing until it is corrected"
                    );
                }
                None => {}
            }
            self.schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
            return Vec::new();
        }
        match change.object {
            Some(object) => self.configure(subject, object),
            None => {
                if let Some(level) = self.levels.get_mut(&subject) {
                    level.deleted = true;
                }
            }
        }
        self.remove_deleted();
        self.distribute_seats(now)
    }

    fn configure(&mut self, name: Arc<str>, object: &Value) {
        let spec = &object["spec"];
        let exempt = spec["type"] == "Exempt";
        let part = if exempt { &spec["exempt"] } else { &spec["limited"] };
        let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        let queuing = part.at("limitResponse.queuing");
        let size =
            |field: &str, otherwise: u32| number(&queuing[field]).unwrap_or(otherwise) as usize;
        let queuing = (part.text("limitResponse.type") == "Queue").then(|| Queuing {
            queues: size("queues", 64),
            hand_size: size("handSize", 8),
            length_limit: size("queueLengthLimit", 50),
        });
        let configured = self.levels.entry(name).or_insert_with(|| LevelEntry {
            uid: Arc::default(),
            level: None,
            shares: 0,
            lendable_percent: 0,
            borrowing_percent: None,
            deleted: false,
            demand: 0.0,
        });
        configured.uid = object.uid().into();
        configured.shares =
            number(&part["nominalConcurrencyShares"]).unwrap_or(if exempt { 0 } else { 30 });
        configured.lendable_percent = number(&part["lendablePercent"]).unwrap_or(0).min(100);
        configured.borrowing_percent = number(&part["borrowingLimitPercent"]);
        configured.deleted = false;
        match (&mut configured.level, exempt) {
            (level, true) => *level = None,
            (Some(level), false) => level.configure(queuing),
            (level @ None, false) => *level = Some(Level::new(0, queuing)),
        }
    }

    fn remove_deleted(&mut self) {
        self.levels
            .retain(|_, c| !c.deleted || c.level.as_ref().is_some_and(|level| !level.is_idle()));
    }

    /// Classifies a request and decides about it. `seats` is its width: one, except for large lists.
    pub fn arrive(&mut self, request: &Attributes<'_>, seats: u32, now: Duration) -> Arrival {
        let usable =
            |schema: &Schema| self.levels.get(&schema.level).is_some_and(|level| !level.deleted);
        let Some(schema) =
            self.schemas.iter().find(|schema| schema.matches(request) && usable(schema))
        else {
            // The mandatory catch-all schema is missing. Without configuration, requests are not limited.
            return Arrival {
                schema: Arc::default(),
                schema_uid: Arc::default(),
                level: Arc::default(),
                level_uid: Arc::default(),
                verdict: Verdict::Exempt,
            };
        };
        let flow = schema.flow(request);
        let mut arrival = Arrival {
            schema: schema.name.clone(),
            schema_uid: schema.uid.clone(),
            level: schema.level.clone(),
            level_uid: Arc::default(),
            verdict: Verdict::Exempt,
        };
        if let Some(configured) = self.levels.get_mut(&arrival.level) {
            arrival.level_uid.clone_from(&configured.uid);
            if let Some(level) = &mut configured.level {
                let ticket = Ticket(self.next_ticket);
                self.next_ticket += 1;
                arrival.verdict = match level.arrive(ticket, flow, seats.max(1), now) {
                    Decision::Run => Verdict::Run(ticket),
                    Decision::Wait => Verdict::Wait(ticket),
                    Decision::Reject(why) => Verdict::Reject(why),
                };
                if !matches!(arrival.verdict, Verdict::Reject(_)) {
                    self.tickets.insert(ticket, arrival.level.clone());
                }
            }
        }
        arrival
    }

    /// Ends a running request. Returns the requests that start as a result.
    pub fn finish(&mut self, ticket: Ticket, now: Duration) -> Vec<Ticket> {
        self.leave(ticket, |level| level.finish(ticket, now))
    }

    /// Removes a queued request. Returns the requests that start as a result.
    pub fn give_up(&mut self, ticket: Ticket, now: Duration) -> Vec<Ticket> {
        self.leave(ticket, |level| level.give_up(ticket, now))
    }

    fn leave(
        &mut self,
        ticket: Ticket,
        change: impl FnOnce(&mut Level) -> Vec<Ticket>,
    ) -> Vec<Ticket> {
        let Some(name) = self.tickets.remove(&ticket) else { return Vec::new() };
        let Some(configured) = self.levels.get_mut(&name) else { return Vec::new() };
        let started = configured.level.as_mut().map(change).unwrap_or_default();
        if configured.deleted {
            self.remove_deleted();
        }
        started
    }

    /// Moves unused seats to levels with demand. To be called about every ten seconds.
    pub fn rebalance(&mut self, now: Duration) -> Vec<Ticket> {
        for configured in self.levels.values_mut() {
            if let Some(level) = &mut configured.level {
                let peak = f64::from(level.take_peak());
                configured.demand = peak.max(configured.demand * 0.9 + peak * 0.1);
            }
        }
        self.distribute_seats(now)
    }

    /// Returns the function that computes a level's share of all seats.
    fn nominal(&self) -> impl Fn(&LevelEntry) -> f64 + use<> {
        let shares: f64 = self.levels.values().map(|c| f64::from(c.shares)).sum();
        let total = f64::from(self.seats);
        move |c| (total * f64::from(c.shares) / shares.max(1.0)).ceil()
    }

    /// Sets the limit of each level between its minimum (seats that it may not lend) and maximum (seats that it may
    /// borrow), in fair proportion to demand.
    fn distribute_seats(&mut self, now: Duration) -> Vec<Ticket> {
        let total = f64::from(self.seats);
        let nominal = self.nominal();
        let bounds = |c: &LevelEntry| {
            let nominal = nominal(c);
            let least = nominal - (nominal * f64::from(c.lendable_percent) / 100.0).round();
            let most = c
                .borrowing_percent
                .map_or(total, |p| nominal + (nominal * f64::from(p) / 100.0).round());
            (nominal, least, most.max(least))
        };
        // With proportion 0, every level has its minimum. The proportion grows until all seats are used.
        let given = |proportion: f64| -> Vec<f64> {
            let levels = self.levels.values().filter(|c| c.level.is_some());
            levels
                .map(|c| {
                    let (nominal, least, most) = bounds(c);
                    // A level without demand counts with half of its nominal seats, so that it can start requests at
                    // once.
                    let wish = if c.demand > least { c.demand } else { least.max(nominal * 0.5) };
                    (wish * proportion).clamp(least, most)
                })
                .collect()
        };
        let (mut low, mut high) = (0.0, total);
        for _ in 0..50 {
            let middle = (low + high) / 2.0;
            if given(middle).iter().sum::<f64>() > total { high = middle } else { low = middle }
        }
        let limits = given(low);
        let mut started = Vec::new();
        let levels = self.levels.values_mut().filter_map(|c| c.level.as_mut());
        for (level, limit) in levels.zip(limits) {
            level.limit = (limit.floor() as u32).max(1);
            started.extend(level.dispatch(now));
        }
        started
    }

    /// Returns the states of all limited levels, for metrics.
    pub fn levels(&self) -> Vec<LevelState> {
        let nominal = self.nominal();
        let limited = self.levels.iter().filter_map(|(name, c)| Some((name, c, c.level.as_ref()?)));
        limited
            .map(|(name, configured, level)| LevelState {
                name: name.to_string(),
                nominal: nominal(configured) as u32,
                limit: level.limit,
                in_use: level.in_use(),
                waiting: level.waiting(),
            })
            .collect()
    }
}

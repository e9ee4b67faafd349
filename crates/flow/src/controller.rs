//! All levels and schemas together.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use api_meta::{Attributes, Changed, Tree as _};
use serde_json::Value;

use crate::{
    bootstrap::{FLOW_SCHEMAS, bootstrap_objects},
    level::{Level, Queuing, Taken, Ticket, Why},
    schema::Schema,
};

/// Decides about requests. See the crate's words.
pub struct Flow {
    /// Seats of the whole server.
    seats: u32,
    /// By precedence, then by name: the first that matches counts.
    schemas: Vec<Schema>,
    levels: BTreeMap<Arc<str>, Configured>,
    /// Which level each ticket is of.
    tickets: HashMap<Ticket, Arc<str>>,
    next_ticket: u64,
}

struct Configured {
    uid: Arc<str>,
    /// `None` for the level that is exempt.
    level: Option<Level>,
    shares: u32,
    lendable_percent: u32,
    /// Of the nominal seats; `None` for as many as others lend.
    borrowing_percent: Option<u32>,
    /// Deleted, but requests are still in it.
    gone: bool,
    /// Demand, smoothed: it rises at once and falls slowly.
    demand: f64,
}

/// What became of a request, and what of the configuration decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub schema: Arc<str>,
    pub schema_uid: Arc<str>,
    pub level: Arc<str>,
    pub level_uid: Arc<str>,
    pub verdict: Verdict,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is counted; there is nothing to finish.
    Exempt,
    /// It has its seats, to be given back with the ticket.
    Run(Ticket),
    /// It stands in a queue; the ticket says later that it runs, or is given up.
    Wait(Ticket),
    /// The queues are full, or there are none: 429.
    Reject(Why),
}

/// A level as metrics and people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelState {
    pub name: String,
    /// Seats that are its share, before it lends or borrows any.
    pub nominal: u32,
    /// Seats that may be taken at once.
    pub limit: u32,
    pub in_use: u32,
    /// Requests, not seats.
    pub waiting: usize,
}

impl Flow {
    /// Begins with the bootstrap configuration, so that requests are sorted before any object was read.
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

    /// A FlowSchema or PriorityLevelConfiguration changed. Returns the requests that start by it.
    pub fn changed(&mut self, change: Changed<'_>, now: Duration) -> Vec<Ticket> {
        let subject: Arc<str> = change.name.into();
        if *change.resource == FLOW_SCHEMAS {
            self.schemas.retain(|schema| schema.name != subject);
            match change.object.map(Schema::read) {
                Some(Ok(schema)) => self.schemas.push(schema),
                Some(Err(error)) => {
                    tracing::error!(schema = %subject, %error, "cannot read a FlowSchema; it matches nothing until it is corrected");
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
                    level.gone = true;
                }
            }
        }
        self.drop_gone();
        self.share_out(now)
    }

    fn configure(&mut self, name: Arc<str>, object: &Value) {
        let spec = &object["spec"];
        let exempt = spec["type"] == "Exempt";
        let part = if exempt { &spec["exempt"] } else { &spec["limited"] };
        let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        let queuing = &part["limitResponse"]["queuing"];
        let size =
            |field: &str, otherwise: u32| number(&queuing[field]).unwrap_or(otherwise) as usize;
        let queuing = (part["limitResponse"]["type"] == "Queue").then(|| Queuing {
            queues: size("queues", 64),
            hand_size: size("handSize", 8),
            length_limit: size("queueLengthLimit", 50),
        });
        let configured = self.levels.entry(name).or_insert_with(|| Configured {
            uid: Arc::default(),
            level: None,
            shares: 0,
            lendable_percent: 0,
            borrowing_percent: None,
            gone: false,
            demand: 0.0,
        });
        configured.uid = object.uid().into();
        configured.shares =
            number(&part["nominalConcurrencyShares"]).unwrap_or(if exempt { 0 } else { 30 });
        configured.lendable_percent = number(&part["lendablePercent"]).unwrap_or(0).min(100);
        configured.borrowing_percent = number(&part["borrowingLimitPercent"]);
        configured.gone = false;
        match (&mut configured.level, exempt) {
            (level, true) => *level = None,
            (Some(level), false) => level.configure(queuing),
            (level @ None, false) => *level = Some(Level::new(0, queuing)),
        }
    }

    fn drop_gone(&mut self) {
        self.levels
            .retain(|_, c| !c.gone || c.level.as_ref().is_some_and(|level| !level.is_idle()));
    }

    /// Sorts a request and says what becomes of it. `seats` is how wide it is: one, but for large lists.
    pub fn arrive(&mut self, request: &Attributes<'_>, seats: u32, now: Duration) -> Arrival {
        let usable =
            |schema: &Schema| self.levels.get(&schema.level).is_some_and(|level| !level.gone);
        let Some(schema) =
            self.schemas.iter().find(|schema| schema.matches(request) && usable(schema))
        else {
            // The mandatory catch-all is gone: what nobody configured is not held up.
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
                    Taken::Run => Verdict::Run(ticket),
                    Taken::Wait => Verdict::Wait(ticket),
                    Taken::Reject(why) => Verdict::Reject(why),
                };
                if !matches!(arrival.verdict, Verdict::Reject(_)) {
                    self.tickets.insert(ticket, arrival.level.clone());
                }
            }
        }
        arrival
    }

    /// A request that ran is over. Returns those that start now.
    pub fn finish(&mut self, ticket: Ticket, now: Duration) -> Vec<Ticket> {
        self.leave(ticket, |level| level.finish(ticket, now))
    }

    /// A request that waits goes away. Returns those that start now.
    pub fn give_up(&mut self, ticket: Ticket, now: Duration) -> Vec<Ticket> {
        self.leave(ticket, |level| level.give_up(ticket, now))
    }

    fn leave(
        &mut self,
        ticket: Ticket,
        how: impl FnOnce(&mut Level) -> Vec<Ticket>,
    ) -> Vec<Ticket> {
        let Some(name) = self.tickets.remove(&ticket) else { return Vec::new() };
        let Some(configured) = self.levels.get_mut(&name) else { return Vec::new() };
        let started = configured.level.as_mut().map(how).unwrap_or_default();
        if configured.gone {
            self.drop_gone();
        }
        started
    }

    /// Moves unused seats to levels that want more. Call it every ten seconds or so.
    pub fn rebalance(&mut self, now: Duration) -> Vec<Ticket> {
        for configured in self.levels.values_mut() {
            if let Some(level) = &mut configured.level {
                let peak = f64::from(level.take_peak());
                configured.demand = peak.max(configured.demand * 0.9 + peak * 0.1);
            }
        }
        self.share_out(now)
    }

    /// How many seats are a level's share of all.
    fn nominal(&self) -> impl Fn(&Configured) -> f64 + use<> {
        let shares: f64 = self.levels.values().map(|c| f64::from(c.shares)).sum();
        let total = f64::from(self.seats);
        move |c| (total * f64::from(c.shares) / shares.max(1.0)).ceil()
    }

    /// Gives each level a limit between what it may not lend and what it may borrow, nearest to what it wants in fair
    /// proportion.
    fn share_out(&mut self, now: Duration) -> Vec<Ticket> {
        let total = f64::from(self.seats);
        let nominal = self.nominal();
        let bounds = |c: &Configured| {
            let nominal = nominal(c);
            let least = nominal - (nominal * f64::from(c.lendable_percent) / 100.0).round();
            let most = c
                .borrowing_percent
                .map_or(total, |p| nominal + (nominal * f64::from(p) / 100.0).round());
            (nominal, least, most.max(least))
        };
        // With proportion 0 every level has its nominal seats less what it lends; it grows until the seats are out.
        let given = |proportion: f64| -> Vec<f64> {
            let levels = self.levels.values().filter(|c| c.level.is_some());
            levels
                .map(|c| {
                    let (nominal, least, most) = bounds(c);
                    // A level that asks for nothing keeps its nominal seats as its wish, so that it can begin at once.
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

    /// The levels that limit anything, for metrics.
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

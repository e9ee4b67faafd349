//! API Priority and Fairness: decides which requests run, wait or are rejected with 429. Start with [`Gate`], the
//! asynchronous interface, and [`Flow`], the state machine behind it.
//!
//! FlowSchemas classify requests into flows of priority levels. Each level has a share of the server's seats. The
//! requests of a flow use only a few of the level's queues, so that a flood of one flow does not block others.
//!
//! Invariants:
//! - [`Flow`] is a pure state machine, driven by arrivals, departures, configuration and the time as an argument. Only
//!   [`Gate`] waits.
//! - A level never uses more seats than its limit, except for a single request that is wider than the level.
//! - Every queue is bounded.

mod bootstrap;
mod controller;
mod gate;
mod level;
mod schema;
#[cfg(test)]
mod tests;

pub use bootstrap::{Ensure, FLOW_SCHEMAS, PRIORITY_LEVELS, bootstrap_objects, ensure_bootstrap};
pub use controller::{Arrival, Flow, LevelState, Verdict};
pub use gate::{AdmittedRequest, Gate, Permit, Rejection};
pub use level::{RejectReason, Ticket};

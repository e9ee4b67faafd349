//! API priority and fairness: which request runs, which waits and which is told to come back later.
//!
//! FlowSchemas sort requests into flows of priority levels; a level has a share of the server's seats; a flow's
//! requests go to few of the level's queues, so that a flood of one flow leaves the others their turn.
//!
//! Invariants: `Flow` is a pure state machine, driven by arrivals, departures and configuration, with the time as an
//! argument. A level never runs more seats than it has, but for one request wider than the level while nothing else
//! runs. Every queue is bounded. `Gate` is the only part that waits.

mod bootstrap;
mod controller;
mod gate;
mod level;
mod schema;
#[cfg(test)]
mod tests;

pub use bootstrap::{Ensure, FLOW_SCHEMAS, PRIORITY_LEVELS, bootstrap_objects, ensure_bootstrap};
pub use controller::{Arrival, Flow, LevelState, Verdict};
pub use gate::{Entered, Gate, Permit, Rejected};
pub use level::{Ticket, Why};

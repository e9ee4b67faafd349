//! The runtime layer: owned tasks, shutdown, panics, clocks, randomness, retries and backoff, values built from files,
//! programs with limits, and the causes of errors.
//!
//! Read [`Tasks`] first. All time, random values and identifiers come from here, so that a [`Simulation`] can replace
//! them.
//!
//! Invariant: every task has an owner that knows its name and drains it at shutdown. No other crate of the workspace
//! calls `tokio::spawn`.

mod backoff;
mod causes;
mod clock;
mod compute;
mod files;
mod level;
mod machine;
mod panics;
mod program;
mod random;
mod simulation;
mod tasks;
mod threads;
mod wait;

pub use backoff::Backoff;
pub use causes::with_causes;
pub use clock::{Clock, FAR, ManualClock, SystemClock, now, processor_time};
pub use compute::{ComputePool, PoolError};
pub use files::FromFiles;
pub use level::Level;
pub use machine::{hostname, node_name};
pub use panics::{Catch, CaughtPanic, catch, catch_sync, note_panic, panics, until_it_ends};
pub use program::{Excess, RunError, RunLimits, RunOutput};
pub use random::{id, random, random_in, shuffle};
pub use simulation::Simulation;
pub use tasks::{DrainResult, MissingTask, Shutdown, Tasks, UnreadyGuard};
pub use threads::HomeRuntime;
pub use wait::{retry, wait_until};

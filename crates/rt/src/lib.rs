//! Owned tasks, shutdown, clocks and back-off.
//!
//! Invariant: every task has an owner that knows it by name and drains it at shutdown. Nothing else in the
//! workspace calls `tokio::spawn`.

mod backoff;
mod clock;
mod tasks;

pub use backoff::Backoff;
pub use clock::{Clock, ManualClock, SystemClock};
pub use tasks::{Drained, Shutdown, Tasks};

//! Owned tasks, shutdown, panics, clocks, waits and back-off, and values that follow their files.
//!
//! Invariant: every task has an owner that knows it by name and drains it at shutdown. Nothing else in the
//! workspace calls `tokio::spawn`.

mod backoff;
mod clock;
mod files;
mod panics;
mod tasks;
mod wait;

pub use backoff::Backoff;
pub use clock::{Clock, FAR, ManualClock, SystemClock};
pub use files::FromFiles;
pub use panics::{
    Catch, Panicked, catch, catch_sync, note_panic, panics, panics_text, until_it_ends,
};
pub use tasks::{Drained, Missing, Shutdown, Tasks, Unready};
pub use wait::{retry, wait_until};

//! Logs, metrics, the bootstrap timeline, and progress on a terminal. Start with [`init_logging`], [`metrics::Metrics`]
//! and [`Progress`]. Not responsible for serving the metrics page.
//!
//! Invariants:
//! - Logs are written to standard error. Standard output belongs to the result of a command.
//! - The timeline is bounded on disk, and a failure to write it never fails the recorded step.

pub mod exposition;
mod logging;
pub mod metrics;
mod progress;
mod stability;
pub mod timeline;

pub use logging::{InitError, filter_for_verbosity, init_logging};
pub use progress::Progress;
pub use timeline::{Recorder, RunningStep};

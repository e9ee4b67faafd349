//! What a running Windlass tells about itself: logs, metrics, the bootstrap timeline, and progress on a terminal.
//!
//! Invariants: logs go to standard error, never to standard output, which belongs to a command's result;
//! the timeline is bounded on disk, and that it cannot be written never fails the step that it records.

pub mod exposition;
mod logging;
pub mod metrics;
mod progress;
pub mod timeline;

pub use logging::{InitError, filter_for_verbosity, init_logging};
pub use progress::Progress;
pub use timeline::{Recorder, Running};

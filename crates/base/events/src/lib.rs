//! Records Kubernetes Events: what happened to an object and why, for its users.
//!
//! Events are best effort and not part of a component's state. Read [`EventRecorder`] first.
//!
//! Invariants:
//! - Recording never blocks and never fails; surplus Events are dropped.
//! - Repeated Events become one with a count, and one object cannot flood the API.
//! - [`Correlator`] decides without clock or network; [`EventRecorder`] sends the result.

mod correlator;
mod occurrence;
mod recorder;

pub use correlator::{Correlator, Decision};
pub use occurrence::{EventKind, ObjectRef, Occurrence};
pub use recorder::EventRecorder;

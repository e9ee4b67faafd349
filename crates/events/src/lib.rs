//! Events: what happened to an object and why, for people who look at it.
//!
//! Invariants: recording never waits and never fails (an Event too many is dropped); repeated Events become
//! one with a count; one object cannot flood the API. [`Correlator`] decides all this without clock or
//! socket; [`EventRecorder`] sends what it decides.

mod correlator;
mod recorder;

pub use correlator::{Correlator, Decision};
pub use recorder::EventRecorder;

use serde::{Deserialize, Serialize};

/// The object that an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    pub api_version: String,
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// `spec.containers{name}` for an Event about one container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

/// Whether people should worry; the names are the API's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    Normal,
    Warning,
}

impl EventKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub struct Occurrence {
    pub regarding: ObjectRef,
    pub kind: EventKind,
    pub reason: String,
    pub message: String,
}
